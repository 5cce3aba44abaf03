"""Who decodes: this library's ways to run a model, and Transformers' `generate`, all under one call.

    decode(sentences, batch, beam) -> ids of each sentence, `tokens` of them, as no sentence ends (see same_weights)

Another engine of this library is one entry more in OURS: a function from the model to a `search` with the arguments of
regard.decode.search.search less the model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from regard.data.batches import pad
from regard.data.tokenise import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.search import search
from regard.models.model import Model

__all__ = ["OURS", "Decode", "ours", "theirs", "with_threads"]

Decode = Callable[[Sequence[Sequence[int]], int, int], list[list[int]]]
Search = Callable[..., list[list[Hypothesis]]]

OURS: dict[str, Callable[[Model], Search]] = {
    "regard, torch": lambda model: partial(search, model),
}
"""Name to what makes a search of a model; names begin with the library's."""


def ours(run: Search, tokens: int) -> Decode:
    """An engine of this library."""

    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, len(sentences), batch):
            part = sentences[start : start + batch]
            budget = beam * len(part) * max(map(len, part))  # the part is one batch
            config = DecodeConfig(beam=beam, max_ratio=0.0, max_extra=tokens, batch_tokens=budget)
            found += [best.tokens for best, *_ in run(part, config=config, bos=BOS, eos=EOS, pad=PAD)]
        return found

    return decode


def theirs(model: Any, tokens: int) -> Decode:
    """Transformers' generate with its cache."""

    @torch.inference_mode()
    def decode(sentences: Sequence[Sequence[int]], batch: int, beam: int) -> list[list[int]]:
        found: list[list[int]] = []
        how = {"num_beams": beam, "do_sample": False, "max_new_tokens": tokens, "use_cache": True}
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
