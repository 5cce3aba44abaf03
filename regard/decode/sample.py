"""Sampling from a causal language model with temperature, top-k, top-p (nucleus) and min-p filters.

    p(u) ~ exp(logit_u / temperature)     1: the model's distribution; 0: the most likely token
    top_k: only the k most likely tokens
    top_p: the smallest set of most likely tokens with total probability >= p
    min_p: of these, the tokens whose probability is at least p times the highest one

A model reads at most a context of k tokens. The token after u_1 .. u_n with n > k is predicted from

    last       u_{n-k+1} .. u_n at positions 0 .. k - 1, read anew for each token
    restart    the tokens since the last restart: when there are k, the context is cut to the last
               k/2, read anew
    slide      keys and values of u_{n-k+1} .. u_n, each computed when its token was read; the same
               as causal attention with a window of k (TransformerConfig.window) over all tokens

A prompt of more than k tokens is cut to its last k.

Source: holtzman2020, sections 3.1 to 3.3; nguyen2025, section 3 (min-p); context of the last k
tokens: lectures, D.14; radford2018, section 3.1; windows: beltagy2020, section 3.1.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.config import SampleConfig, SamplingConfig
from regard.decode.rules import TokenRules, make_rules
from regard.decode.stepper import trace_likely
from regard.trace import SearchOutput, Trace


@runtime_checkable
class CausalLanguageModel(Protocol):
    """Interface of a language model that reads some tokens at a time."""

    def start(self, source: None = None, *, rows: int = 1) -> Any:
        """Return the state of `rows` rows before the first token."""

    def steps(
        self, tokens: Int[Tensor, "rows time"], state: Any
    ) -> tuple[Float[Tensor, "rows vocab"], Any]:
        """Return the logits of the next token, and the state after `tokens`."""

    def slide(self, state: Any, window: int) -> Any:
        """Return the state with the keys and values of the last `window` tokens only."""


def filter_logits(
    logits: Float[Tensor, "rows vocab"], config: SamplingConfig
) -> Float[Tensor, "rows vocab"]:
    """Return the probabilities after temperature, top-k, top-p and min-p filtering."""
    logits = logits.float()
    if config.temperature == 0:
        return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        smallest = logits.topk(config.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -math.inf)
    probs = logits.softmax(-1)
    if config.top_p < 1:
        ordered, order = probs.sort(-1, descending=True)
        # A token stays while those before it sum to less than p (up to the rounding of the sums),
        # so the most likely token always stays.
        removed = ordered.cumsum(-1) - ordered >= config.top_p * (1 - 1e-6)
        probs = probs.masked_fill(torch.zeros_like(removed).scatter(1, order, removed), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if config.min_p > 0:
        probs = probs.masked_fill(probs < config.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def check_highest(logit: Tensor) -> None:
    """Raise ValueError if the highest of some logits is NaN, as if any is, or +inf."""
    if not logit.item() < math.inf:
        raise ValueError("logits must not hold NaN or infinity, got one")


@torch.no_grad()
def sample(
    model: CausalLanguageModel,
    prompt: list[int],
    config: SampleConfig,
    *,
    window: int | None,
    seed: int,
    banned: list[int],
    rules: TokenRules | None = None,
    trace: Trace | None = None,
) -> Iterator[int]:
    """Yield config.length tokens that continue the prompt.

    window: maximum context length k, and then config.context applies; None: the model reads all
    tokens.
    banned: ids that are never drawn.
    rules:  rules of outputs; by default those of `config`.
    trace:  receives the steps and the output (regard.trace); a segment for each context that is
    read anew.
    Raises: ValueError if the prompt is empty, or if logits hold NaN or +inf.
    """
    if not prompt:
        raise ValueError("prompt must hold at least one token, got none")
    rules = make_rules(config) if rules is None else rules
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    context = list(tokens if window is None else tokens[-window:])
    sliding = window if config.context == "slide" else None
    run = _Context(model, trace, window=sliding)
    banned_ids = torch.tensor(banned, dtype=torch.int64, device=run.device)
    logits = run.read(context)
    for number in range(1, config.length + 1):
        highest = logits.amax()
        logits.index_fill_(1, banned_ids, -math.inf)
        if rules.active:
            rules.apply(logits, logits, torch.tensor([tokens], device=run.device))
            rules.check(logits)
        if config.temperature == 0:
            token = int(logits.argmax(-1))
            check_highest(highest)
        else:
            probs = filter_logits(logits, config).cpu()
            check_highest(highest)  # a device has finished by now, and is not waited for twice
            token = int(torch.multinomial(probs, 1, generator=generator))
        yield token
        tokens.append(token)
        if number == config.length:
            break
        if window is not None and sliding is None and len(context) >= window:
            run.end(token)
            context = tokens[-num_reread(config, window) :]
            if trace is not None:
                trace.begin_segment()  # these tokens are read a second time
            run = _Context(model, trace)
            logits = run.read(context)
        else:
            logits = run.read([token])
            context.append(token)
    run.end(tokens[-1])


def num_reread(config: SampleConfig, window: int) -> int:
    """Return the number of last tokens from which a full context of `window` tokens begins anew."""
    return window if config.context == "last" else max(1, window // 2)


def contexts(
    prompt: Sequence[int], tokens: Sequence[int], config: SampleConfig, window: int | None
) -> Iterator[list[int]]:
    """Yield the tokens of each context that `sample` read, and of each the token after the last.

    tokens: those that it yielded. Not of a context that slides.
    """
    text, context = list(prompt), list(prompt if window is None else prompt[-window:])
    for token in tokens[:-1]:
        text.append(token)
        if window is not None and len(context) >= window:
            yield [*context, token]
            context = text[-num_reread(config, window) :]
        else:
            context.append(token)
    yield [*context, tokens[-1]]


class _Context:
    """Tokens that a language model has read from its initial state, and their trace, if any.

    window: number of last tokens whose keys and values are kept; None: all.
    """

    def __init__(
        self, model: CausalLanguageModel, trace: Trace | None, *, window: int | None = None
    ):
        self._model, self._trace, self._window, self._state = model, trace, window, model.start()
        self.device = torch.get_default_device()
        if isinstance(model, torch.nn.Module):
            self.device = next(model.parameters()).device
        self._tokens: list[int] = []
        self._log_probs: list[Tensor] = []

    def read(self, tokens: list[int]) -> Tensor:
        """Return the logits (1, vocab) after these tokens, read one by one for a trace."""
        if self._trace is None:
            return self._advance(tokens)
        logits = torch.empty(0)
        for token in tokens:
            self._trace.begin_step([0])
            logits = self._advance([token])
            self._tokens.append(token)
            self._log_probs.append(logits.detach().float().log_softmax(-1))
            trace_likely(self._trace, self._log_probs[-1])
        return logits

    def _advance(self, tokens: list[int]) -> Tensor:
        inputs = torch.tensor([tokens], device=self.device)
        logits, self._state = self._model.steps(inputs, self._state)
        if self._window is not None:
            self._state, self._window = self._model.slide(self._state, self._window), None
        return logits

    def end(self, last: int) -> None:
        """Add the output to the trace: each next token with its log-probability."""
        if self._trace is not None:
            begin, *tokens = *self._tokens, last
            pairs = zip(self._log_probs, tokens, strict=True)
            log_probs = [float(log_probs[0, token]) for log_probs, token in pairs]
            output = SearchOutput(tokens, [0] * len(tokens), log_probs, begin=begin)
            self._trace.add_outputs([[output]])
