"""What counting says of each piece of a text, and of each pair of neighbours: which class it speaks for.

    r_w(c) = log p(w | c) - mean over classes of the same       p(w | c) = (n(w, c) + 1) / (N(c) + V)

n(w, c): training texts of class c that hold w, a piece or two that are neighbours; N(c): their sum over all w; V: how
many w there are. The sum of r over a text is multinomial naive Bayes, classes being equally likely beforehand.

A training text is part of the counts, and what it says of itself is far too sure: of such a text n, N and V are those
of all others (leave one out), exactly. Unknown pieces, and what the others never said, are of no opinion: r = 0.

Source: wang2012, section 2.1 (log-count ratios, binarised counts).
"""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from regard.data.batches import Ragged
from regard.data.tokenise import UNK
from regard.errors import UserError

__all__ = ["Opinions"]

_VERSION = 1
_PAIR = 1 << 31
"""Pieces a, b that are neighbours are number (a + 1) * _PAIR + b; a piece alone is its own."""
_NOTHING = -1


@dataclass(frozen=True)
class Opinions:
    """Counts of training texts. Make them with `of` or `load`."""

    numbers: NDArray[np.int64]
    """What was counted, in order: (V,)."""
    counts: NDArray[np.int64]
    """Texts of each class that hold it: (V, classes)."""
    pairs: bool
    """Whether pairs were counted, too."""

    @classmethod
    def of(
        cls, texts: Ragged, classes: Sequence[int] | NDArray[np.int64], *, num_classes: int, pairs: bool
    ) -> "Opinions":
        """Count texts of ids, each of one class. Raises UserError if all of their pieces are unknown."""
        found = [_held(texts[i], pairs=pairs) for i in range(len(texts))]
        held = [row[row != _NOTHING] for row in found]
        numbers, place = np.unique(np.concatenate([*held, np.zeros(0, np.int64)]), return_inverse=True)
        if not len(numbers):
            raise UserError("no opinions can be counted: the training texts hold no known piece (opinions none)")
        counts = np.zeros((len(numbers), num_classes), np.int64)
        np.add.at(counts, (place, np.repeat(np.asarray(classes, np.int64), [len(row) for row in held])), 1)
        return cls(numbers, counts, pairs)

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """N of each class."""
        return self.counts.sum(0)

    def of_text(self, ids: NDArray[np.int32], own: int | None = None) -> NDArray[np.float32]:
        """r of each piece, with that of the pair it ends: (pieces, classes). What is said twice counts once.

        own: the class of a text that was counted, which is then left out of the counts.
        """
        held = _held(ids, pairs=self.pairs)
        at = np.searchsorted(self.numbers, held).clip(max=len(self.numbers) - 1)
        known = self.numbers[at] == held
        counts = self.counts[at] * known[..., None]  # (pieces, 1 or 2, classes)
        total, different = self.totals, len(self.numbers)
        if own is not None:
            leave = np.arange(len(total)) == own
            counts = counts - known[..., None] * leave
            total = total - known.sum() * leave
            different -= (known & (counts.sum(-1) == 0)).sum()
        log_p = np.log((counts + 1) / (total + different))
        opinions = log_p - log_p.mean(-1, keepdims=True)
        return (opinions * (counts.sum(-1, keepdims=True) > 0)).sum(1).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write them as npz."""
        with path.open("wb") as file:
            np.savez_compressed(
                file, version=np.int64(_VERSION), numbers=self.numbers, counts=self.counts, pairs=np.bool_(self.pairs)
            )

    @classmethod
    def load(cls, path: Path, num_classes: int) -> "Opinions":
        """Read what `save` wrote. Raises UserError naming the file if it is missing, damaged, or of other classes."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                version, numbers, counts, pairs = (file[name] for name in ("version", "numbers", "counts", "pairs"))
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing: the run is not complete ({error.strerror})") from error
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{path}: damaged: it must hold counts of pieces of text ({error})") from error
        is_whole = all(part.dtype == np.int64 for part in (version, numbers, counts)) and pairs.dtype == np.bool_
        shapes = (version.shape, pairs.shape, numbers.shape, counts.shape)
        if not is_whole or shapes != ((), (), (len(counts),), (numbers.size, num_classes)) or version != _VERSION:
            raise UserError(f"{path}: damaged, or of another version: it must hold counts for {num_classes} classes")
        if not len(numbers) or (np.diff(numbers) <= 0).any() or (counts < 0).any():
            raise UserError(f"{path}: damaged: its numbers must be in order, and no count negative")
        return cls(numbers, counts, bool(pairs))


def _held(ids: NDArray[np.int32], *, pairs: bool) -> NDArray[np.int64]:
    """The numbers of each piece and of the pair that it ends, each where it is met first: (pieces, 1 or 2)."""
    pieces = ids.astype(np.int64)
    known = pieces != UNK
    columns = [np.where(known, pieces, _NOTHING)]
    if pairs:
        ends = np.full(len(pieces), _NOTHING)
        ends[1:] = np.where(known[1:] & known[:-1], (pieces[:-1] + 1) * _PAIR + pieces[1:], _NOTHING)
        columns.append(ends)
    held = np.stack(columns, 1)
    first = np.zeros(held.size, bool)
    first[np.unique(held, return_index=True)[1]] = True
    return np.where(first.reshape(held.shape), held, _NOTHING)
