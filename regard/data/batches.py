"""Batches of pairs of token sequences: planned by number of tokens, collated into padded tensors.

    plan(epoch)             the indices of every batch: a pure function of (lengths, seed, epoch)
    collate(epoch, indices) the tensors of those pairs

Pairs of similar length share a batch, which reduces padding, and a batch has a budget of tokens,
not of pairs:

    rows * max(longest source, longest target) <= batch_tokens

The order comes from the raw stream of a PCG64 generator, which NumPy guarantees never to change. It
is the same on every machine and in every version, so a run can be repeated and resumed anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention.masks import Padded
from regard.data.tokenizer import NO_ENDS, SOURCE_ENDS, TARGET_ENDS, Ends
from regard.errors import UserError
from regard.ops.copies import copy_to

SourceT = TypeVar("SourceT")
TargetT = TypeVar("TargetT")


@dataclass(frozen=True)
class Batch(Generic[SourceT, TargetT]):
    """Batch of examples: inputs, targets (tensors, values with a method `to`, or None), and the
    example of each row."""

    source: SourceT
    target: TargetT
    indices: tuple[int, ...] = ()

    def to(self, device: torch.device | str) -> "Batch[SourceT, TargetT]":
        return Batch(_move(self.source, device), _move(self.target, device), self.indices)


PairBatch = Batch[Padded, Padded]
"""Token ids of pairs, with those around them, padded with 0: sources and targets (rows, time)."""


def count_target_tokens(batch: PairBatch) -> int:
    """Return the number of tokens to predict: every target token except the first."""
    return int(batch.target.lengths.sum()) - len(batch.indices)


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids of different lengths in one array: ids[offsets[i] : offsets[i + 1]]."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def from_sequences(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        rows = [np.asarray(sequence, dtype=np.int32).reshape(-1) for sequence in sequences]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class EncodedPairs:
    """Source and target token ids of each pair, and the ids around each in a batch."""

    sources: Ragged
    targets: Ragged
    source_ends: Ends = SOURCE_ENDS
    target_ends: Ends = TARGET_ENDS

    @classmethod
    def from_sequences(
        cls, sources: Iterable[Sequence[int]], targets: Iterable[Sequence[int]], *ends: Ends
    ) -> "EncodedPairs":
        return cls(Ragged.from_sequences(sources), Ragged.from_sequences(targets), *ends)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Lengths (source, target) as in a batch."""
        lengths = []
        for side, ends in ((self.sources, self.source_ends), (self.targets, self.target_ends)):
            lengths.append((side.lengths + len(ends.before) + len(ends.after)).tolist())
        return list(zip(*lengths, strict=True))


class TokenBatches:
    """Batches of pairs by number of tokens. The pairs are fixed, or generated for each epoch.

    Args:
        examples: the pairs; or a function from the epoch to its pairs, the same at every call.
        batch_tokens: maximum number of tokens of the longer side of a batch, padding included.
        seed: seed and epoch determine which pairs share a batch, and the order of the batches.
        origin: files that the pairs are from, for messages.
    """

    def __init__(
        self,
        examples: EncodedPairs | Callable[[int], EncodedPairs],
        *,
        batch_tokens: int,
        seed: int,
        origin: str = "pairs",
    ) -> None:
        self.batch_tokens, self.seed, self.origin = batch_tokens, seed, origin
        make = examples if callable(examples) else lambda epoch: examples
        self.examples: Callable[[int], EncodedPairs] = lru_cache(maxsize=1)(make)

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        lengths = self.examples(epoch).lengths
        return plan_batches(
            lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch, origin=self.origin
        )

    def collate(self, epoch: int, indices: Sequence[int]) -> PairBatch:
        encoded = self.examples(epoch)
        source = pad([encoded.sources[i] for i in indices], encoded.source_ends)
        target = pad([encoded.targets[i] for i in indices], encoded.target_ends)
        return Batch(source, target, tuple(indices))


@dataclass(eq=False)
class BatchesByCount:
    """Batches of `rows` examples each, shuffled in each epoch, or in their order (is_fixed)."""

    data: Any
    _: KW_ONLY
    rows: int
    seed: int
    is_fixed: bool = False

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Return the examples of an epoch in order; `draw` is then used to shuffle them."""
        return np.arange(len(self.data))

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the indices of each batch, a pure function of (seed, epoch)."""
        draw = generator(self.seed, epoch)
        order = self.examples(epoch, draw)
        order = order if self.is_fixed else draw.permutation(order)
        return [tuple(order[i : i + self.rows].tolist()) for i in range(0, len(order), self.rows)]


@dataclass(eq=False)
class InputBatches(BatchesByCount):
    """Batches of inputs without targets, for autoencoders."""

    data: Callable[[int], Sequence[int]]
    """Function from the number of an epoch to the indices of its inputs."""
    read: Callable[[list[int]], Tensor]
    """Function that returns the inputs at some indices."""

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.array(self.data(epoch))

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Tensor, Tensor]:
        return Batch(self.read([*indices]), torch.zeros(len(indices)), tuple(indices))


def generator(*numbers: int) -> np.random.Generator:
    """Return a generator of random numbers for a seed and other numbers, such as an epoch."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))


def plan_batches(
    lengths: Sequence[tuple[int, int]],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    origin: str = "pairs",
) -> list[tuple[int, ...]]:
    """Partition pairs into batches in random order, a pure function of the arguments.

    Pairs are sorted by the length of their longer side, then by target - source, in alternating
    directions so that neighbors differ little; pairs of equal lengths are shuffled. `lengths` are
    (source, target) numbers of tokens as in the tensors.

    Raises:  UserError naming a pair that is longer than `batch_tokens`.
    """
    if not lengths:
        return []
    table = np.asarray(lengths, dtype=np.int64)
    longer = table.max(axis=1)
    worst = int(longer.argmax())
    if longer[worst] > batch_tokens:
        source, target = table[worst].tolist()
        sizes = f"{source} source and {target} target tokens"
        limit = f"more than a batch (--train.batch-tokens {batch_tokens})"
        raise UserError(f"{origin}: pair {worst} has {sizes}, {limit}.")
    stream = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
    slant = (table[:, 1] - table[:, 0]) * np.where(longer % 2, 1, -1)
    order = np.lexsort((stream.random_raw(len(table)), slant, longer))
    batches = []
    for part in plan_by_length(longer[order].tolist(), batch_tokens):
        batches.append(tuple(order[part.start : part.stop].tolist()))
    return [batches[index] for index in np.argsort(stream.random_raw(len(batches)), kind="stable")]


def plan_by_length(lengths: Sequence[int], most: int) -> list[range]:
    """Return ranges of consecutive rows with at most `most` padded items, or single rows."""
    ranges, start, longest = [], 0, 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > start and (i + 1 - start) * longest > most:
            ranges.append(range(start, i))
            start, longest = i, length
    return [*ranges, range(start, len(lengths))] if len(lengths) else []


def plan_by_sum(sizes: Sequence[int], most: int) -> list[range]:
    """Return ranges of examples with sizes of at most `most` together, or of one example."""
    ranges, start, total = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and total + size > most:
            ranges.append(range(start, i))
            start, total = i, 0
        total += size
    return [*ranges, range(start, len(sizes))] if sizes else []


def pad(sequences: Iterable[Sequence[int] | NDArray[Any]], ends: Ends = NO_ENDS) -> Padded:
    """Pad sequences of ids, each with the ids of `ends` around it, with 0 to one tensor (rows,
    longest). No model reads the padding, so that any id may be it."""
    rows, first = list(sequences), len(ends.before)
    least = first + len(ends.after)
    lengths = np.array([least + len(row) for row in rows], np.int64)
    items = np.zeros((len(rows), int(lengths.max(initial=least))), np.int64)
    items[:, :first] = ends.before
    for number, row in enumerate(rows):
        end = first + len(row)
        items[number, first:end] = row
        items[number, end : end + len(ends.after)] = ends.after
    return Padded(torch.from_numpy(items), torch.from_numpy(lengths))


def pad_arrays(arrays: Sequence[NDArray[Any]]) -> Padded:
    """Pad arrays (items, ...) with 0 to one tensor (rows, longest, ...) of float32."""
    rows = [torch.from_numpy(np.asarray(array, np.float32)) for array in arrays]
    lengths = np.array([*map(len, rows)], np.int64)
    return Padded(pad_sequence(rows, batch_first=True), torch.from_numpy(lengths))


def _move(part: Any, device: torch.device | str) -> Any:
    if isinstance(part, Tensor):
        return copy_to(part, device)
    return part if part is None else part.to(device)
