"""Interface of engines, which decode with a trained model.

    hypotheses = engine.search(sentences, config=..., bos=..., eos=..., pad=...)
    tokens     = engine.generate(prompts, sampling, window=..., seeds=..., banned=...)

`search` is of an encoder-decoder and has the contract of `regard.decode.search.search`; `generate`
is of a language model and has that of `regard.decode.sample.sample`, for several prompts at once.
The torch engine calls these functions; the outputs of other engines are tested against them.

Inputs are checked here, the same for all engines. Engines do not check bounds themselves: an id
outside the vocabulary would read memory beyond its table.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis, Rules
from regard.decode.rules import TokenRules, make_rules
from regard.trace import Trace

Ids = Sequence[Sequence[int]]
"""Sentences or prompts, as ids."""


@dataclass(frozen=True)
class Limits:
    """Inputs that a model accepts. None: unlimited or unknown."""

    is_encoder_decoder: bool
    """True for an encoder-decoder (`search`), False for a language model (`generate`)."""
    source_ids: int | None
    """Size of the source vocabulary."""
    target_ids: int | None
    """Size of the target vocabulary."""
    positions: int | None = None
    """Number of learned positions."""
    unsupported_slide_reason: str | None = None
    """Why keys and values of old tokens cannot be dropped (SampleConfig.context slide)."""


class Engine(ABC):
    """Trained model, ready to decode; created by `regard.engines.registry.prepare`.

    Except for the torch engine it owns a copy of the model: later changes have no effect.
    """

    name: str
    """Name in `regard.engines.config.ENGINES`."""
    compute_type: str
    """Data type of the computation."""
    limits: Limits
    """Inputs that the model accepts."""
    traces: ClassVar[bool] = False
    """True if searches can be traced, and attention recorded."""

    def __repr__(self) -> str:
        return f"<engine {self.name}, {self.compute_type}>"

    def share(self) -> "Engine":
        """Return an engine with the same weights that another thread may use."""
        return self

    @abstractmethod
    def _search(self, ids: Ids, config: DecodeConfig, **options: Any) -> list[list[Hypothesis]]:
        """Implement `search` for inputs within the limits; options: bos, eos, pad, rules, trace."""

    @abstractmethod
    def _generate(
        self,
        prompts: Ids,
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
        rules: TokenRules,
        trace: Trace | None,
    ) -> list[list[int]]:
        """Implement `generate` for at least one prompt, within the limits."""

    def search(
        self,
        sentences: Ids,
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
        rules: TokenRules | None = None,
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence of ids, best first.

        PAD and BOS are never generated.
        rules:  rules of outputs; by default those of `config`.
        trace:  receives the steps and the outputs; only with an engine that `traces`.
        Raises: ValueError for a sentence without ids, an id outside the vocabulary, or a trace that
                the engine does not support; TypeError if the model is not an encoder-decoder.
        """
        self._check_trace(trace)
        limits = self.limits
        if not limits.is_encoder_decoder:
            raise TypeError("`search` needs an encoder-decoder, got a language model")
        for number, sentence in enumerate(sentences):
            where = f"sentence {number}"
            _check_ids(sentence, limits.source_ids, where)
            if not len(sentence):
                raise ValueError(f"sentences must hold at least one id, got none in {where}")
        _check_ids((bos, eos, pad), limits.target_ids, "bos, eos, pad")
        Rules(bos=bos, eos=eos, banned=(pad, bos))  # checks them
        check_positions(max(map(len, sentences), default=0), limits.positions)
        rules = make_rules(config, eos=eos) if rules is None else rules
        _check_ids(rules.ids, limits.target_ids, "rules")
        options: Any = {"bos": bos, "eos": eos, "pad": pad, "rules": rules, "trace": trace}
        return self._search(sentences, config, **options)

    def search_images(
        self, images: Float[Tensor, "batch channels height width"], **settings: Any
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each image, best first; see regard.decode.search.search.

        Raises: TypeError, except in the torch engine: no other reads images.
        """
        raise TypeError(f"engine {self.name!r} reads token ids, not images")

    def generate(
        self,
        prompts: Ids,
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
        rules: TokenRules | None = None,
        trace: Trace | None = None,
    ) -> list[list[int]]:
        """Return config.length tokens that continue each prompt.

        window: maximum context length, and then config.context applies (regard.decode.sample);
                None: unlimited.
        seeds:  one per prompt. The same seeds give the same tokens in the same engine, but not in
                another one, except at temperature 0.
        banned: ids that are never drawn.
        rules:  rules of outputs; by default those of `config`.
        trace:  as in `search`; row i of its samples is prompt i.
        Raises: ValueError for an empty prompt, an id outside the vocabulary, a trace that the
                engine does not support, or a context that slides if the model cannot drop keys and
                values; TypeError if the model is not a language model.
        """
        self._check_trace(trace)
        limits = self.limits
        if limits.is_encoder_decoder:
            raise TypeError("`generate` needs a language model, got an encoder-decoder")
        vocab = limits.target_ids
        if len(seeds) != len(prompts):
            raise ValueError(f"seeds must be one per prompt ({len(prompts)}), got {len(seeds)}")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        for number, prompt in enumerate(prompts):
            where = f"prompt {number}"
            if not len(prompt):
                raise ValueError(f"prompts must hold at least one token, got none in {where}")
            _check_ids(prompt, vocab, where)
        _check_ids(banned, vocab, "banned")
        if len(set(banned)) == vocab:
            raise ValueError(f"banned must leave at least one id of {vocab}, got all of them")
        reason = limits.unsupported_slide_reason
        if config.context == "slide" and window is not None and reason is not None:
            raise ValueError(f"context must be restart or last, since {reason}, got slide")
        if not prompts:
            return []
        # The last new token is not read.
        longest = max(map(len, prompts)) + config.length - 1
        check_positions(longest if window is None else min(window, longest), limits.positions)
        rules = make_rules(config) if rules is None else rules
        _check_ids(rules.ids, vocab, "rules")
        options: Any = {"window": window, "seeds": seeds, "banned": banned, "rules": rules}
        return self._generate(prompts, config, trace=trace, **options)

    def _check_trace(self, trace: Trace | None) -> None:
        if trace is not None and not self.traces:
            raise ValueError(f"engine {self.name!r} records no trace; use engine 'torch'")


def _check_ids(ids: Sequence[int], vocab: int | None, where: str) -> None:
    """Raise ValueError for an id outside the vocabulary, TypeError if an id is not an integer."""
    if vocab is None:
        return
    outside = next((i for i in map(index, ids) if not 0 <= i < vocab), None)
    if outside is not None:
        raise ValueError(f"ids must be from 0 to {vocab - 1}, got {outside} in {where}")


def check_positions(count: int, limit: int | None) -> None:
    """Raise ValueError for more items than learned positions; limit None is unlimited."""
    if limit is not None and count > limit:
        raise ValueError(f"at most {limit} positions were learned, got {count}")


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context with this default device, independent of that of the caller."""
    # A default device slows down each call of torch: it is set only if another one is.
    return nullcontext() if torch.get_default_device() == device else device
