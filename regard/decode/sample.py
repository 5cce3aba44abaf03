"""Sampling: each next token is drawn from the model's distribution, made sharper and cut to its head.

    p(u) ~ exp(logit_u / temperature)       temperature 1: the model's own; toward 0: always the likeliest
    top_k: only the k likeliest             top_p: the fewest that have p of the probability together (nucleus)

Source: holtzman2020, sections 3.1 to 3.3.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.config import SampleConfig
from regard.decode.stepper import scored
from regard.telling import Answer, Answered, Rows, Step, is_heard, tell


@runtime_checkable
class Continues(Protocol):
    """What is sampled from: a model whose state takes one token more a row at each step."""

    def begin(self, rows: int) -> Any:
        """The state before the first token."""
        ...

    def step(self, tokens: Int[Tensor, " rows"], state: Any) -> tuple[Float[Tensor, "rows vocab"], Any]:
        """Scores of the next token, and the state after this one."""
        ...


def narrowed(logits: Float[Tensor, "rows vocab"], config: SampleConfig) -> Float[Tensor, "rows vocab"]:
    """The probabilities that are drawn from; temperature 0 leaves the likeliest alone."""
    logits = logits.float()
    if config.temperature == 0:
        return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    shares = logits.softmax(-1)
    if config.top_p < 1:
        ordered, order = shares.sort(-1, descending=True)
        # One is kept as long as those before it have less than p: so the likeliest always is.
        beyond = ordered.cumsum(-1) - ordered >= config.top_p
        shares = shares.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), 0.0)
        shares = shares / shares.sum(-1, keepdim=True)
    return shares


def check_scores(logits: Float[Tensor, "rows vocab"]) -> None:
    """Raises ValueError for scores of which no share follows."""
    highest = logits.amax(-1)  # NaN where there is one
    if not bool((highest < math.inf).all()):
        raise ValueError("logits must not hold NaN or infinity, got one")


@torch.no_grad()
def sample(
    model: Continues, prompt: list[int], config: SampleConfig, *, window: int | None, seed: int, banned: list[int]
) -> Iterator[int]:
    """Tokens that go on from the prompt, one after the other, config.length of them.

    window: most tokens that the model sees; beyond them it goes on from the last half of them.
    banned: tokens that are never drawn.
    Raises: ValueError if the prompt is empty, or for NaN among the scores.
    """
    if not prompt:
        raise ValueError("the prompt must have a token at least, but is empty")
    draw = torch.Generator().manual_seed(seed)
    seen = list(prompt)
    fed = list(seen if window is None else seen[-window:])
    logits, state, heard = _fed(model, fed)
    for number in range(1, config.length + 1):
        check_scores(logits)
        logits[:, banned] = -math.inf
        token = int(torch.multinomial(narrowed(logits, config).cpu(), 1, generator=draw))
        yield token
        seen.append(token)
        if number == config.length:
            break
        if window is not None and len(fed) >= window:
            tell(lambda fed=fed, token=token, heard=heard: Answered([[_answer(fed, token, heard)]]))
            fed = seen[-max(1, window // 2) :]
            tell(lambda: Rows([0]))  # from here on, what was read before is read once more
            logits, state, heard = _fed(model, fed)
        else:
            logits, state = _step(model, token, state, heard)
            fed.append(token)
    tell(lambda: Answered([[_answer(fed, seen[-1], heard)]]))


@torch.no_grad()
def follow(model: Continues, tokens: list[int], *, banned: list[int]) -> None:
    """Lead the model through tokens as they are, for those who look on: what it read and expected after each.

    Behind the last comes the likeliest that is not banned.
    Raises: ValueError if there is no token.
    """
    if not tokens:
        raise ValueError("the text must have a token at least, but is empty")
    logits, _, heard = _fed(model, tokens)
    logits[:, banned] = -math.inf
    tell(lambda: Answered([[_answer(tokens, int(logits[0].argmax()), heard)]]))


def _fed(model: Continues, tokens: list[int]) -> tuple[Tensor, Any, list[Tensor]]:
    """The scores after these tokens, the state, and all scores if somebody looks on."""
    state, logits = model.begin(1), torch.empty(0)
    heard: list[Tensor] = []
    for token in tokens:
        logits, state = _step(model, token, state, heard)
    return logits, state, heard


def _step(model: Continues, token: int, state: Any, heard: list[Tensor]) -> tuple[Tensor, Any]:
    device = next(model.parameters()).device if isinstance(model, torch.nn.Module) else torch.device("cpu")
    tell(lambda: Step([0]))
    logits, state = model.step(torch.tensor([token], device=device), state)
    if is_heard():
        heard.append(logits.detach().float().log_softmax(-1))
        tell(lambda: scored(heard[-1]))
    return logits, state


def _answer(fed: list[int], last: int, heard: list[Tensor]) -> Answer:
    """What followed each token that was fed."""
    said = [*fed[1:], last]
    likely = [float(log_probs[0, token]) for log_probs, token in zip(heard, said, strict=True)]
    return Answer(said, [0] * len(said), likely, begin=fed[0])
