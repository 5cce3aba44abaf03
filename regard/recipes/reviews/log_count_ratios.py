"""Naive-Bayes features of texts: log-count ratios of tokens, prefixes and bigrams, for each class.

    r_w(c)   = log p(w | c) - mean over classes of the same
    p(w | c) = (n(w, c) + 1) / (N(c) + V)

n(w, c): number of training texts of class c that contain the feature w; N(c): sum of n(w, c) over
all w of its kind; V: number of different features of the kind. The sum of r over the features of
one kind in a text is the score of multinomial naive Bayes with a uniform prior. Kinds:

    words          tokens
    bigrams        tokens, and pairs of adjacent tokens
    prefixes       tokens, the first five letters of longer ones, and pairs of adjacent tokens cut
                   to five letters

A training text is part of the counts, which would make its own ratios overconfident: its n, N and V
are those of all other texts (leave-one-out), exactly. r = 0 for features that do not occur in the
other texts. Features are stored as digests of eight bytes, without the text.

Source: wang2012, section 2.1 (log-count ratios, binarized counts).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import load_arrays
from regard.data.config import FeatureKinds
from regard.system.files import read_bytes

KINDS: dict[FeatureKinds, tuple[str, ...]] = {
    "words": ("word",),
    "bigrams": ("word", "bigram"),
    "prefixes": ("word", "prefix", "bigram of prefixes"),
}
"""Kinds of features, by setting."""
_LETTERS, _NO_FEATURE = 5, 0


@dataclass(frozen=True)
class LogCountRatios:
    """Extractor of log-count ratios, created by `from_texts` (counts of training) or `load`."""

    kinds: FeatureKinds
    numbers: NDArray[np.int64]
    """Sorted digests of the features: (V of all kinds,)."""
    kind: NDArray[np.int64]
    """Kind of each feature, as an index of KINDS: (V of all kinds,)."""
    counts: NDArray[np.int64]
    """Number of texts of each class that contain the feature: (V of all kinds, classes)."""

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[Sequence[str]],
        classes: Sequence[int] | NDArray[np.int64],
        *,
        num_classes: int,
        kinds: FeatureKinds,
    ) -> "LogCountRatios":
        """Count the features of tokenized texts, each of one class."""
        present, columns, labels = [], [], []
        for tokens, label in zip(texts, classes, strict=True):
            features = _features(tokens, kinds)
            is_present = features != _NO_FEATURE
            present.append(features[is_present])
            columns.append(is_present.nonzero()[1])
            labels.append(np.full(len(present[-1]), label))
        every = np.concatenate(present)
        numbers, first, inverse = np.unique(every, return_index=True, return_inverse=True)
        counts = np.zeros((len(numbers), num_classes), np.int64)
        np.add.at(counts, (inverse, np.concatenate(labels)), 1)
        return cls(kinds, numbers, np.concatenate(columns)[first], counts)

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """N of each kind and class: (kinds, classes)."""
        totals = np.zeros((len(KINDS[self.kinds]), self.counts.shape[1]), np.int64)
        np.add.at(totals, self.kind, self.counts)
        return totals

    @cached_property
    def num_features(self) -> NDArray[np.int64]:
        """V of each kind: (kinds,)."""
        return np.bincount(self.kind, minlength=len(KINDS[self.kinds]))

    def compute(self, tokens: Sequence[str], own: int | None = None) -> NDArray[np.float32]:
        """Compute r of each token, and prefix and bigram that end at it: (tokens, kinds, classes).

        A feature that occurs several times in the text counts at its first occurrence only.

        own: class of the text if it was counted, which is then excluded from the counts
             (leave-one-out).
        """
        features = _features(tokens, self.kinds)
        index = np.searchsorted(self.numbers, features).clip(max=len(self.numbers) - 1)
        known = self.numbers[index] == features
        counts = self.counts[index] * known[..., None]  # (tokens, kinds, classes)
        total, num_features = self.totals, self.num_features
        if own is not None:
            is_own = np.arange(counts.shape[-1]) == own
            counts = counts - known[..., None] * is_own
            total = total - known.sum(0)[:, None] * is_own
            num_features = num_features - (known & (counts.sum(-1) == 0)).sum(0)
        log_p = np.log((counts + 1) / np.maximum(total + num_features[:, None], 1))
        ratios = log_p - log_p.mean(-1, keepdims=True)
        return (ratios * (counts.sum(-1, keepdims=True) > 0)).astype(np.float32)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, numbers=self.numbers, kind=self.kind, counts=self.counts)

    @classmethod
    def load(cls, path: Path, kinds: FeatureKinds) -> "LogCountRatios":
        """Read a file of `save`. Raises UserError if it is missing or damaged."""
        names = ("numbers", "kind", "counts")
        numbers, kind, counts = load_arrays(read_bytes(path), str(path), names).values()
        return cls(kinds, numbers, kind, counts)


def _features(tokens: Sequence[str], kinds: FeatureKinds) -> NDArray[np.int64]:
    """Return digests of features at the token of their first occurrence's end: (tokens, kinds)."""
    prefixes = [token[:_LETTERS] for token in tokens]
    columns: dict[str, Sequence[str]] = {
        "word": tokens,
        "prefix": [token[:_LETTERS] if len(token) > _LETTERS else "" for token in tokens],
        "bigram": ["", *map("\n".join, pairwise(tokens))],
        "bigram of prefixes": ["", *map("\n".join, pairwise(prefixes))],
    }
    rows = [[_digest(name, text) for text in columns[name]] for name in KINDS[kinds]]
    features = np.array(rows, np.int64).T
    first = np.zeros(features.size, bool)
    first[np.unique(features, return_index=True)[1]] = True
    return np.where(first.reshape(features.shape), features, _NO_FEATURE)


def _digest(kind: str, text: str) -> int:
    if not text:
        return _NO_FEATURE
    digest = blake2b(f"{kind}\n{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
