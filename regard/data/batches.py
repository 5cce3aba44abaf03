"""Pairs of token ids to batches: which pairs go together, in which order, and their padded tensors.

    plan(epoch)             the indices of every batch: a pure function of (lengths, seed, epoch)
    collate(epoch, indices) the tensors of those pairs

Pairs of like length go together, so that little is padding, and a batch has a budget of tokens, not of pairs:

    rows * max(longest source, longest target) <= batch_tokens

The order comes from the raw stream of a PCG64 generator, which NumPy promises never to change: the same on
every machine and in every version, so that a run can be repeated and resumed anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.masks import Padded
from regard.data.tokenize import BOS, EOS, PAD
from regard.errors import UserError


@dataclass(frozen=True)
class Batch:
    """Rows of token ids, padded with 0.

    `source.items` (rows, source) ends in EOS; `target.items` (rows, target) is BOS w1 .. wn EOS; both int64,
    with the special ids counted in `lengths`. `indices` tells which example each row is.
    """

    source: Padded
    target: Padded
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        return Batch(self.source.to(device), self.target.to(device), self.indices)

    @property
    def num_target_tokens(self) -> int:
        """Tokens to predict: every target token but BOS."""
        return int(self.target.lengths.sum()) - len(self.indices)


class Batches(Protocol):
    """What a training loop asks of a data set."""

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The indices of each batch of an epoch: the same list whenever it is asked."""
        ...

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch:
        """The tensors of some examples of an epoch."""
        ...


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids end to end in one array: sequence i is ids[offsets[i] : offsets[i + 1]]."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        """Pack sequences of ids."""
        rows = [np.asarray(sequence, dtype=np.int32).reshape(-1) for sequence in sequences]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be between 0 and {len(self) - 1}, but is {index} instead.")
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of ids of each sequence."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Encoded:
    """Pairs of id sequences, without special ids; both sides have equally many."""

    sources: Ragged
    targets: Ragged

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ValueError(
                f"both sides must have equally many sequences, but are {len(self.sources)} sources and "
                f"{len(self.targets)} targets instead."
            )

    @classmethod
    def of(cls, sources: Iterable[Sequence[int]], targets: Iterable[Sequence[int]]) -> "Encoded":
        """Pack two lists of id sequences."""
        return cls(Ragged.of(sources), Ragged.of(targets))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(source, target) lengths as in a batch: EOS added to the source, BOS and EOS to the target."""
        source, target = self.sources.lengths + 1, self.targets.lengths + 2
        return list(zip(source.tolist(), target.tolist(), strict=True))


class TokenBatches:
    """Batches over pairs of id sequences: fixed pairs, or pairs made anew for each epoch.

    Args:
        examples: the pairs; or a function from the epoch to its pairs. It must give the same pairs for the
            same epoch whenever it is called. The pairs of the last epoch asked for are kept.
        batch_tokens: budget of a batch, in tokens, special ids and padding counted, of its longer side.
        seed: not negative; with the epoch it decides which pairs meet in a batch, and the batches' order.
        max_rows: most pairs in a batch; None is no limit.
        origin: the files that the pairs are from, for messages.

    Raises:  ValueError by `plan` and `collate` if there are no pairs; UserError by `plan` if one pair alone
             exceeds the budget.
    """

    def __init__(
        self,
        examples: Encoded | Callable[[int], Encoded],
        *,
        batch_tokens: int,
        seed: int,
        max_rows: int | None = None,
        origin: str = "",
    ) -> None:
        self.batch_tokens, self.seed, self.max_rows, self.origin = batch_tokens, seed, max_rows, origin
        self._make: Callable[[int], Encoded] = (lambda _: examples) if isinstance(examples, Encoded) else examples
        self._last: tuple[int, Encoded] | None = None

    def examples(self, epoch: int) -> Encoded:
        """The pairs of an epoch."""
        if self._last is None or self._last[0] != epoch:
            encoded = self._make(epoch)
            if not len(encoded):
                raise ValueError(f"an epoch must have at least one pair, but epoch {epoch} has none.")
            self._last = (epoch, encoded)
        return self._last[1]

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The indices of each batch of an epoch, a pure function of (seed, epoch); see `plan_batches`."""
        return plan_batches(
            self.examples(epoch).lengths,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
            max_rows=self.max_rows,
            origin=self.origin,
        )

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch:
        """The padded tensors of some pairs of an epoch, a row for each of `indices` (which may be empty)."""
        encoded = self.examples(epoch)
        index = np.asarray(indices, dtype=np.int64).reshape(-1)
        source = _padded(encoded.sources, index, before=(), after=(EOS,))
        target = _padded(encoded.targets, index, before=(BOS,), after=(EOS,))
        return Batch(source, target, tuple(index.tolist()))


def plan_batches(
    lengths: Sequence[tuple[int, int]],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    max_rows: int | None = None,
    origin: str = "",
) -> list[tuple[int, ...]]:
    """Which pairs make up each batch; every index is in exactly one, and only the arguments decide.

    Pairs are sorted by the length of their longer side, then by target - source, up and down in turn so that
    neighbors differ little; those of equal lengths are shuffled. They are cut into batches in which

        rows * max(longest source, longest target) <= batch_tokens    and    rows <= max_rows

    The batches then come in random order. `lengths` are (source, target) tokens as the tensors hold them.

    Cost:    O(n log n); about 0.05 s for 30,000 pairs.
    Raises:  UserError if one pair is longer than `batch_tokens` (its index and lengths are in the message);
             ValueError if seed or epoch is negative, or batch_tokens or max_rows is not positive.
    """
    for name, value, least in (
        ("batch_tokens", batch_tokens, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("max_rows", 1 if max_rows is None else max_rows, 1),
    ):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, but is {value} instead.")
    if not lengths:
        return []
    table = np.asarray(lengths, dtype=np.int64)
    longer = table.max(axis=1)
    _check_budget(table, longer, batch_tokens, origin)
    stream = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
    slant = (table[:, 1] - table[:, 0]) * np.where(longer % 2, 1, -1)
    order = np.lexsort((stream.random_raw(len(table)), slant, longer))
    cuts = _cut(longer[order].tolist(), batch_tokens, max_rows or len(table))
    batches = [tuple(part.tolist()) for part in np.split(order, cuts)]
    return [batches[place] for place in np.argsort(stream.random_raw(len(batches)), kind="stable")]


def pad(sequences: Iterable[Sequence[int]]) -> Padded:
    """Sequences of ids as one tensor (rows, longest), 0 behind each; adds no EOS, which a source needs."""
    ragged = Ragged.of(sequences)
    return _padded(ragged, np.arange(len(ragged)), before=(), after=())


def filled_share(lengths: Sequence[tuple[int, int]], plan: Sequence[Sequence[int]]) -> float:
    """Share of the places in the planned batches' tensors that hold tokens, not padding: between 0 and 1.

    real tokens / sum over batches of rows * (longest source + longest target)
    """
    table = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    batches = [table[list(batch)] for batch in plan if len(batch)]
    places = sum(len(batch) * int(batch.max(axis=0).sum()) for batch in batches)
    return sum(int(batch.sum()) for batch in batches) / places if places else 1.0


def _check_budget(table: NDArray[np.int64], longer: NDArray[np.int64], batch_tokens: int, origin: str) -> None:
    worst = int(longer.argmax())
    if longer[worst] > batch_tokens:
        source, target = table[worst].tolist()
        before = f"{origin}: " if origin else ""
        raise UserError(
            f"{before}pair {worst} has {source} source and {target} target tokens (special ones counted), more than "
            f"a whole batch may hold: batch_tokens = {batch_tokens}. Raise batch_tokens, or lower max_length."
        )


def _cut(longer: Sequence[int], batch_tokens: int, max_rows: int) -> list[int]:
    """Where to cut the sorted pairs so that no batch exceeds its budget."""
    cuts, start, longest = [], 0, 0
    for place, length in enumerate(longer):
        rows = place - start + 1
        longest = max(longest, length)
        if rows > max_rows or rows * longest > batch_tokens:
            cuts.append(place)
            start, longest = place, length
    return cuts


def _padded(ragged: Ragged, index: NDArray[np.int64], *, before: tuple[int, ...], after: tuple[int, ...]) -> Padded:
    """The sequences `index`, each between `before` and `after`, as a padded tensor."""
    starts = ragged.offsets[index]
    counts = ragged.offsets[index + 1] - starts
    lengths = counts + len(before) + len(after)
    width = int(lengths.max(initial=len(before) + len(after)))
    items = np.full((len(index), width), PAD, dtype=np.int64)
    items[:, : len(before)] = before
    column = np.arange(width - len(before) - len(after))
    inside = column < counts[:, None]  # (rows, longest)
    items[:, len(before) : width - len(after)][inside] = ragged.ids[(starts[:, None] + column)[inside]]
    for place, number in enumerate(after):
        items[np.arange(len(index)), counts + len(before) + place] = number
    return Padded(torch.from_numpy(items), torch.from_numpy(lengths))
