"""Batches and sentences for all contestants: Multi30k English to German, and characters of
Shakespeare.

Tokenizer (joint BPE) and batches (by length, 4,096 tokens of the longer side with padding) are this
library's; all contestants get the same tensors.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, PairBatch, TokenBatches
from regard.data.config import PairTokenizerConfig
from regard.data.text.windows import WindowBatch, WindowBatches
from regard.data.tokenizer import EOS, Tokenizer, train_tokenizers

__all__ = [
    "CHARACTERS",
    "VOCAB",
    "character_batches",
    "inputs_and_targets",
    "small",
    "test_sentences",
    "translation_batches",
]

VOCAB = 10_000
"""Size of the joint vocabulary, in subwords."""
CHARACTERS = 65
"""Number of distinct characters in the Shakespeare text."""


def translation_batches(folder: Path, count: int, *, batch_tokens: int = 4096) -> list[PairBatch]:
    """Return the first batches of an epoch: sources end in EOS, targets are BOS w1 .. wn EOS,
    padding is 0."""
    sides, (source, target) = _pairs_and_tokenizers(folder)
    encoded = EncodedPairs.from_sequences(
        source.encode_batch(sides[0]), target.encode_batch(sides[1])
    )
    batches = TokenBatches(encoded, batch_tokens=batch_tokens, seed=1)
    plan = batches.plan(0)
    return [batches.collate(0, plan[number % len(plan)]) for number in range(count)]


def test_sentences(folder: Path) -> list[list[int]]:
    """Return the ids of the test sentences, each with EOS, shortest first."""
    _, (source, _) = _pairs_and_tokenizers(folder)
    texts = _lines(folder / "multi30k" / "test_2016_flickr.lc.norm.tok.en.gz")
    return sorted(([*ids, EOS] for ids in source.encode_batch(texts)), key=len)


def character_batches(folder: Path, *, context: int, rows: int) -> Iterator[WindowBatch]:
    """Yield windows of `context` predicted characters, numbered by code point from 0, endlessly."""
    with gzip.open(
        folder / "tinyshakespeare" / "input.txt.gz", "rt", encoding="ascii", newline="\n"
    ) as file:
        codes = np.frombuffer(file.read().encode("ascii"), np.uint8)
    characters, ids = np.unique(codes, return_inverse=True)
    if len(characters) != CHARACTERS:
        raise ValueError(
            f"the text must have {CHARACTERS} distinct characters, got {len(characters)}"
        )
    batches = WindowBatches(ids.astype(np.int32), context=context, rows=rows, seed=1)
    epoch = 0
    while True:
        full = [part for part in batches.plan(epoch) if len(part) == rows]
        yield from (batches.collate(epoch, part) for part in full)
        epoch += 1


def inputs_and_targets(batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return source ids, decoder input ids and target ids; int64, padded with 0."""
    target = batch.target.items
    inputs, targets = target[:, :-1], target[:, 1:]
    return batch.source.items, torch.where(inputs == EOS, 0, inputs), targets


def small(batch: PairBatch) -> PairBatch:
    """Return two rows of a batch."""
    shortened = ((part.items[:2], part.lengths[:2]) for part in (batch.source, batch.target))
    source, target = (
        Padded(items[:, : int(lengths.max())], lengths) for items, lengths in shortened
    )
    return PairBatch(source, target, batch.indices[:2])


def _pairs_and_tokenizers(folder: Path) -> tuple[list[list[str]], tuple[Tokenizer, Tokenizer]]:
    sides = [
        _lines(folder / "multi30k" / f"train.lc.norm.tok.{language}.gz")
        for language in ("en", "de")
    ]
    source, target = train_tokenizers(sides[0], sides[1], PairTokenizerConfig(vocab_size=VOCAB))
    return sides, (source, target)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.strip() for line in file]
