"""What counting says of each piece of a text, and of what it is part of: which class it speaks for.

    r_w(c) = log p(w | c) - mean over classes of the same       p(w | c) = (n(w, c) + 1) / (N(c) + V)

n(w, c): training texts of class c that hold w; N(c): their sum over all w of its kind; V: how many of its kind
there are. The sum of a kind's r over a text is multinomial naive Bayes, classes being equally likely beforehand. Kinds:

    words          pieces                                       pairs         words, and two pieces that are neighbors
    beginnings     words, the first five letters of longer ones, and pairs of neighbors cut to five letters

A training text is part of the counts, and what it says of itself is far too sure: of such a text n, N and V are those
of all others (leave one out), exactly. What the others never said is of no opinion: r = 0. Pieces are known by eight
bytes of a digest, so that no text is kept.

Source: wang2012, section 2.1 (log-count ratios, binarized counts).
"""

import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from regard.data.config import OpinionKinds
from regard.errors import UserError
from regard.files import check_file, file_limit

KINDS: dict[OpinionKinds, tuple[str, ...]] = {
    "words": ("word",),
    "pairs": ("word", "pair"),
    "beginnings": ("word", "beginning", "pair of beginnings"),
}
"""What is counted, by setting."""
_VERSION, _LETTERS, _NOTHING = 1, 5, 0


@dataclass(frozen=True)
class Opinions:
    """Counts of training texts. Make them with `of` or `load`."""

    kinds: OpinionKinds
    numbers: NDArray[np.int64]
    """The digests of what was counted, in order: (V of all kinds,)."""
    kind: NDArray[np.int64]
    """The kind of each, by its place in KINDS: (V of all kinds,)."""
    counts: NDArray[np.int64]
    """Texts of each class that hold it: (V of all kinds, classes)."""

    @classmethod
    def of(
        cls,
        texts: Iterable[Sequence[str]],
        classes: Sequence[int] | NDArray[np.int64],
        *,
        num_classes: int,
        kinds: OpinionKinds,
    ) -> "Opinions":
        """Count texts of pieces, each of one class."""
        held = [_held(pieces, kinds) for pieces in texts]
        said = [rows != _NOTHING for rows in held]
        found = [rows[there] for rows, there in zip(held, said, strict=True)]
        numbers, first, place = np.unique(np.concatenate(found), return_index=True, return_inverse=True)
        if len(numbers) * num_classes * 8 > file_limit():
            raise UserError(
                f"the counts of {len(numbers):,} pieces of text in {num_classes:,} classes take more than "
                f"{file_limit():,} bytes: use fewer classes, or none of these counts (--opinions none)."
            )
        kind = np.concatenate([there.nonzero()[1] for there in said])[first]
        counts = np.zeros((len(numbers), num_classes), np.int64)
        np.add.at(counts, (place, np.repeat(np.asarray(classes, np.int64), [len(row) for row in found])), 1)
        return cls(kinds, numbers, kind, counts)

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """N of each kind and class: (kinds, classes)."""
        found = np.zeros((len(KINDS[self.kinds]), self.counts.shape[1]), np.int64)
        np.add.at(found, self.kind, self.counts)
        return found

    @cached_property
    def different(self) -> NDArray[np.int64]:
        """V of each kind: (kinds,)."""
        return np.bincount(self.kind, minlength=len(KINDS[self.kinds]))

    def of_text(self, pieces: Sequence[str], own: int | None = None) -> NDArray[np.float32]:
        """r of each piece, and of what it ends: (pieces, kinds, classes). What is said twice counts once.

        own: the class of a text that was counted, which is then left out of the counts.
        """
        held = _held(pieces, self.kinds)
        at = np.searchsorted(self.numbers, held).clip(max=len(self.numbers) - 1)
        known = self.numbers[at] == held
        counts = self.counts[at] * known[..., None]  # (pieces, kinds, classes)
        total, different = self.totals, self.different
        if own is not None:
            leave = np.arange(counts.shape[-1]) == own
            counts = counts - known[..., None] * leave
            total = total - known.sum(0)[:, None] * leave
            different = different - (known & (counts.sum(-1) == 0)).sum(0)
        log_p = np.log((counts + 1) / np.maximum(total + different[:, None], 1))
        opinions = log_p - log_p.mean(-1, keepdims=True)
        return (opinions * (counts.sum(-1, keepdims=True) > 0)).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write them as npz."""
        arrays = {"numbers": self.numbers, "kind": self.kind, "counts": self.counts}
        with path.open("wb") as file:
            np.savez_compressed(file, version=np.int64(_VERSION), **arrays)

    @classmethod
    def load(cls, path: Path, kinds: OpinionKinds, num_classes: int) -> "Opinions":
        """Read what `save` wrote. Raises UserError naming the file if it is missing, damaged, or of other classes."""
        if path.exists():
            check_file(path)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                version, numbers, kind, counts = (file[name] for name in ("version", "numbers", "kind", "counts"))
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing: the run is not complete ({error.strerror})") from error
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{path}: damaged: it must hold counts of pieces of text ({error})") from error
        shapes = (version.shape, numbers.shape, kind.shape, counts.shape)
        are_whole = all(part.dtype == np.int64 for part in (version, numbers, kind, counts))
        size = numbers.size
        if not are_whole or shapes != ((), (size,), (size,), (size, num_classes)) or version != _VERSION:
            raise UserError(f"{path}: damaged, or of another version: it must hold counts for {num_classes} classes")
        in_range = size and kind.min() >= 0 and kind.max() < len(KINDS[kinds]) and counts.min() >= 0
        if not in_range or (numbers[1:] <= numbers[:-1]).any():
            raise UserError(f"{path}: damaged: its numbers must be in order, and its counts not negative")
        return cls(kinds, numbers, kind, counts)


def _held(pieces: Sequence[str], kinds: OpinionKinds) -> NDArray[np.int64]:
    """The digests of what ends at each piece, each where it is met first: (pieces, kinds)."""
    cut = [piece[:_LETTERS] for piece in pieces]
    columns: dict[str, Iterable[str]] = {
        "word": pieces,
        "beginning": (c if len(c) < len(piece) else "" for c, piece in zip(cut, pieces, strict=True)),
        "pair": _pairs(pieces),
        "pair of beginnings": _pairs(cut),
    }
    rows = [[_digest(name, text) for text in columns[name]] for name in KINDS[kinds]]
    held = np.array(rows, np.int64).T
    first = np.zeros(held.size, bool)
    first[np.unique(held, return_index=True)[1]] = True
    return np.where(first.reshape(held.shape), held, _NOTHING)


def _pairs(pieces: Sequence[str]) -> Iterable[str]:
    return chain([""], (f"{one}\n{other}" for one, other in pairwise(pieces)))


def _digest(kind: str, text: str) -> int:
    if not text:
        return _NOTHING
    return int.from_bytes(blake2b(f"{kind}\n{text}".encode(), digest_size=8).digest(), "little", signed=True)
