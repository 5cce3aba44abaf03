"""Decoders to compare: the engines of this library and Transformers' `generate`, with one
interface.

    decode(sentences, batch, beam) -> ids of each sentence, `tokens` of them, as no sentence ends
    (see same_weights)

To add an engine of this library, add an entry to OURS: `Engine(lambda model:
part_by_part(SEARCH_OF(model)))`, where a search has the arguments of regard.decode.search.search
without the model. `at_once` instead passes all sentences of a round in one call, for engines that
decode several batches in parallel (like CTranslate2 with several workers).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.data.batches import pad
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.search import search
from regard.engines.registry import prepare
from regard.models.model import Model

__all__ = [
    "OURS",
    "TOKENS",
    "Decode",
    "Engine",
    "at_once",
    "decode_with_transformers",
    "part_by_part",
    "with_threads",
]

TOKENS = 20
"""Number of tokens generated for each sentence."""

Decode = Callable[[Sequence[Sequence[int]], int, int], list[list[int]]]
Search = Callable[..., list[list[Hypothesis]]]


def part_by_part(run: Search) -> Decode:
    """Search one batch of sentences after the other."""

    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        outputs: list[list[int]] = []
        for start in range(0, len(sentences), batch):
            outputs += _search(run, sentences[start : start + batch], batch, beam)
        return outputs

    return decode


def at_once(run: Search) -> Decode:
    """Search all sentences in one call; the engine splits them into batches."""
    return lambda sentences, batch, beam: _search(run, sentences, batch, beam)


def _search(
    run: Search, sentences: Sequence[Sequence[int]], batch: int, beam: int
) -> list[list[int]]:
    budget = beam * (batch * max(map(len, sentences)) if batch > 1 else 1)  # 1: each sentence alone
    config = DecodeConfig(beam=beam, max_ratio=0.0, max_extra=TOKENS, batch_tokens=budget)
    return [best.tokens for best, *_ in run(sentences, config=config, bos=BOS, eos=EOS, pad=PAD)]


class Engine(NamedTuple):
    """Engine of this library."""

    make: Callable[[Model], Decode]
    varies: bool = True
    """If True, run with one thread of torch and with all; otherwise leave the threads unchanged."""


def _compiled_engine(compute_type: str, workers: int) -> Engine:
    """Return the compiled engine with one stream, or with as many batches (sentences) in parallel
    as workers."""
    several = part_by_part if workers == 1 else at_once
    options = {"compute_type": compute_type, "workers": workers}

    def make(model: Model) -> Decode:
        return several(prepare("compiled", model, **options).search)

    return Engine(make, varies=False)


OURS: dict[str, Engine] = {
    "regard, torch": Engine(lambda model: part_by_part(partial(search, model))),
    **{
        f"regard, compiled {kind} {workers}x1": _compiled_engine(kind, workers)
        for kind in ("float32", "bfloat16", "int8")
        for workers in (1, 2)
    },
}
"""Names start with that of the library; all outputs are compared with the first. 2x1: two workers
of one thread."""


def decode_with_transformers(model: Any, **settings: Any) -> Decode:
    """Decode with Transformers' `generate` and its cache, with further settings of it."""

    @torch.inference_mode()
    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        outputs: list[list[int]] = []
        options = {
            "num_beams": beam,
            "do_sample": False,
            "max_new_tokens": TOKENS,
            "use_cache": True,
            **settings,
        }
        for start in range(0, len(sentences), batch):
            ids = pad(sentences[start : start + batch]).items.to(model.device)
            outputs += model.generate(input_ids=ids, attention_mask=ids.ne(PAD).long(), **options)[
                :, 1:
            ].tolist()
        return outputs

    return decode


def with_threads(decode: Callable[..., Any], threads: int) -> Callable[..., Any]:
    """Run a decoder with this number of threads of torch."""

    def decode_with(*arguments: Any) -> Any:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return decode(*arguments)
        finally:
            torch.set_num_threads(num_threads)

    return decode_with
