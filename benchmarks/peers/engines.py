"""Who decodes: this library's ways to run a model, and Transformers' `generate`, all under one call.

    decode(sentences, batch, beam) -> ids of each sentence, `tokens` of them, as no sentence ends (see same_weights)

Another engine of this library is one entry more in OURS: `Engine(lambda model: part_by_part(SEARCH_OF(model)))`, where
a search has the arguments of regard.decode.search.search less the model. `at_once` instead hands it all sentences of a
round in one call, for engines that have several in flight (beside CTranslate2 with several workers).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.data.batches import pad
from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.search import search
from regard.engines.registry import prepare
from regard.models.model import Model

__all__ = ["OURS", "TOKENS", "Decode", "Engine", "at_once", "part_by_part", "theirs", "with_threads"]

TOKENS = 20
"""Tokens made of each sentence."""

Decode = Callable[[Sequence[Sequence[int]], int, int], list[list[int]]]
Search = Callable[..., list[list[Hypothesis]]]


def part_by_part(run: Search) -> Decode:
    """A search of so many sentences at a time, one part after the other."""

    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, len(sentences), batch):
            found += _searched(run, sentences[start : start + batch], batch, beam)
        return found

    return decode


def at_once(run: Search) -> Decode:
    """A search of all sentences, cut into batches by the engine."""
    return lambda sentences, batch, beam: _searched(run, sentences, batch, beam)


def _searched(run: Search, sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
    budget = beam * (batch * max(map(len, sentences)) if batch > 1 else 1)  # 1: each sentence alone
    config = DecodeConfig(beam=beam, max_ratio=0.0, max_extra=TOKENS, batch_tokens=budget)
    return [best.tokens for best, *_ in run(sentences, config=config, bos=BOS, eos=EOS, pad=PAD)]


class Engine(NamedTuple):
    """A way of this library to run a model."""

    make: Callable[[Model], Decode]
    varies: bool = True
    """Whether it is to run with one thread of torch and with all; else it is left alone."""


def _compiled(compute_type: str, workers: int) -> Engine:
    """One worker: a stream; more: as many batches (sentences) in flight."""
    several = part_by_part if workers == 1 else at_once
    how = {"compute_type": compute_type, "workers": workers}

    def make(model: Model) -> Decode:
        return several(prepare("compiled", model, **how).search)

    return Engine(make, varies=False)


OURS: dict[str, Engine] = {
    "regard, torch": Engine(lambda model: part_by_part(partial(search, model))),
    **{
        f"regard, compiled {kind} {workers}x1": _compiled(kind, workers)
        for kind in ("float32", "bfloat16", "int8")
        for workers in (1, 2)
    },
}
"""Names begin with the library's; the first is what all outputs are compared with. 2x1: two workers of one thread."""


def theirs(model: Any) -> Decode:
    """Transformers' generate with its cache."""

    @torch.inference_mode()
    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        found: list[list[int]] = []
        how = {"num_beams": beam, "do_sample": False, "max_new_tokens": TOKENS, "use_cache": True}
        for start in range(0, len(sentences), batch):
            ids = pad(sentences[start : start + batch]).items
            found += model.generate(input_ids=ids, attention_mask=ids.ne(PAD).long(), **how)[:, 1:].tolist()
        return found

    return decode


def with_threads(decode: Callable[..., Any], threads: int) -> Callable[..., Any]:
    """The same with so many threads of torch."""

    def decode_with(*arguments: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return decode(*arguments)
        finally:
            torch.set_num_threads(before)

    return decode_with
