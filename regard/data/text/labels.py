"""Data sets of labeled texts: readers, the mapping from labels to class indices, parsing of label
lists, and batches.

Class indices are in the order of the names of the labels (numbers: by value). A batch has texts of
similar length, up to a budget of tokens. File formats are those of pairs (regard.data.text.pairs),
with the label in place of the target.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import with_hint
from regard.data.batches import Batch, Ragged, generator, pad, plan_batches
from regard.data.config import LabeledConfig, OnBad
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.numbers import parse_number
from regard.data.text.pairs import Pairs, read_pairs
from regard.data.tokenizer import UNK
from regard.errors import UserError, did_you_mean
from regard.system.files import read_json

_VERSION = 1
_SHOWN, _EXCERPT = 20, 60
_SEPARATORS, _LEAST_SHARE = ",;|\t", 10
_ALSO: dict[str, tuple[type, ...]] = {
    "class": (bool, int),
    "labels": (int, list),
    "number": (int, float, list),
}
"""Types of a target of each kind that are allowed in a file besides str."""


@dataclass(frozen=True)
class Labels:
    """Names of the classes of a task, by class index."""

    names: tuple[str, ...]

    @classmethod
    def from_names(cls, labels: Sequence[str], *, least: int = 2, origin: str = "") -> "Labels":
        """Collect the different labels: numbers sorted by value, then other names in alphabetical
        order.

        origin: files that the labels are from, for messages.
        Raises: UserError for fewer than `least` labels.
        """
        names = sorted(
            set(labels),
            key=lambda name: (not _is_number(name), float(name) if _is_number(name) else 0, name),
        )
        before = f"{origin}: " if origin else ""
        if not names:
            raise UserError(
                f"{before}there must be at least one label, got none in the training data."
            )
        if len(names) < least:
            shown = repr(names[0][:_EXCERPT])
            raise UserError(
                f"{before}there must be at least two labels, got only {shown} in the training data."
            )
        return cls(tuple(names))

    def __len__(self) -> int:
        return len(self.names)

    def encode(
        self,
        labels: Sequence[str],
        on_bad: OnBad,
        *,
        where: Callable[[int], str],
        origin: str,
        nouns: tuple[str, str],
    ) -> tuple[list[int], list[int]]:
        """Return the indices of the items that have a known label, and their class indices.

        where(i), origin: location of item i and of all items; nouns: for a label and an item, in
        messages.
        Raises:  UserError naming the first item with an unknown label, unless on_bad is skip, or if
                 no label is known.
        """
        known, (name, item) = {label: number for number, label in enumerate(self.names)}, nouns
        unknown = next((i for i, label in enumerate(labels) if label not in known), None)
        if unknown is not None and on_bad == "error":
            problem = f"{where(unknown)}: {self.describe_unknown(labels[unknown], nouns)}"
            raise UserError(with_hint(problem, f"{item}s"))
        keep = [i for i, label in enumerate(labels) if label in known]
        if not keep:
            shown = ", ".join(name[:_EXCERPT] for name in self.names[:_SHOWN])
            raise UserError(f"{origin}: no {item} has a {name} of the training {item}s ({shown}).")
        return keep, [known[labels[i]] for i in keep]

    def describe_unknown(self, label: str, nouns: tuple[str, str]) -> str:
        """Return the message about an unknown label."""
        value = parse_number(label, most=math.inf)
        equal = [
            name
            for name in self.names
            if value is not None and parse_number(name, most=math.inf) == value
        ]
        near = f" Did you mean {equal[0]!r}?" if equal else did_you_mean(label, self.names)
        shown = ", ".join(name[:_EXCERPT] for name in self.names[:_SHOWN])
        return (
            f"{nouns[0]} {label[:_EXCERPT]!r} does not occur in the training {nouns[1]}s ({shown})"
            + (near and f".{near}")
        )

    def save(self, path: Path) -> None:
        """Write the names as JSON."""
        content = {"format": "regard-labels", "version": _VERSION, "names": list(self.names)}
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Labels":
        """Read a file written by `save`. Raises UserError naming the file if it is missing or
        damaged."""
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        content = read_json(path)
        names = (
            content.get("names")
            if isinstance(content, dict) and content.get("version") == _VERSION
            else None
        )
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"{path}: damaged, or of another version: expected a list of the names of the "
                f"labels"
            )
        return cls(tuple(names))


LabeledBatch = Batch[Any, Tensor]
"""Texts (token ids, padded with 0, or what `extend` returned) and their targets: class indices, or
other targets."""


class LabeledBatches:
    """Batches of tokenized texts and numeric targets: labels, one for each text, or of shape
    (texts, ...).

    word_dropout: share of the tokens replaced by UNK, others in each epoch.
    extend(source, indices): returns the source of a batch with what else the model reads of these
    texts; or None.
    Raises:  UserError by `plan` if one text alone exceeds batch_tokens.
    """

    def __init__(
        self,
        texts: Ragged,
        labels: Sequence[int] | np.ndarray,
        *,
        batch_tokens: int,
        seed: int,
        word_dropout: float = 0.0,
        extend: Callable[[Padded, Sequence[int]], Any] | None = None,
        origin: str = "",
    ):
        self.origin = origin
        self.texts, self.labels = texts, np.asarray(labels)
        self.batch_tokens, self.seed, self.word_dropout, self.extend = (
            batch_tokens,
            seed,
            word_dropout,
            extend,
        )

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the indices of each batch, a pure function of (lengths, seed, epoch)."""
        lengths = [(max(1, length), 1) for length in self.texts.lengths.tolist()]
        return plan_batches(
            lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch, origin=self.origin
        )

    def collate(self, epoch: int, indices: Sequence[int]) -> LabeledBatch:
        """Return the tensors of the given texts."""
        rows = [self.texts[i] for i in indices]
        if self.word_dropout:
            draws = [
                generator(self.seed, epoch, i).random(len(row))
                for row, i in zip(rows, indices, strict=True)
            ]
            rows = [
                np.where(draw < self.word_dropout, UNK, row)
                for row, draw in zip(rows, draws, strict=True)
            ]
        source = pad([row.tolist() for row in rows])
        target = self.target(source, indices)
        return Batch(
            source if self.extend is None else self.extend(source, indices), target, tuple(indices)
        )

    def target(self, source: Padded, indices: Sequence[int]) -> Tensor:
        """Return the targets of the given texts."""
        return torch.from_numpy(self.labels[list(indices)])


def read_labeled(config: LabeledConfig, path: str | Path, split: str) -> Pairs:
    """Read texts and their labels in the format given by the config. Raises UserError as
    `read_pairs`."""
    is_binary = config.target == "labels" and len(config.label_column) > 1
    pairs = read_pairs(
        path,
        format=config.format,
        source_column=config.text_column,
        target_column=config.label_column,
        header=config.header,
        is_numeric=config.target == "number" or is_binary,
        is_binary=is_binary,
        on_bad=config.on_bad,
        split=split,
        also=(bool, int, float) if is_binary else _ALSO[config.target],
        names=("text", "label"),
    )
    if config.target != "class":  # several labels are split later
        return pairs
    normalizer = LabelNormalizer()
    targets = [normalizer[label] for label in pairs.targets]
    normalizer.warn(pairs.origin)
    return replace(pairs, targets=targets)


def split_list(text: str, separator: str) -> list[str | int | float]:
    """Split a target into strings or numbers: a JSON list, or parts between separators. Empty for
    an empty text.

    Raises: ValueError for an invalid JSON list, or other types in the list.
    """
    if not text.startswith("["):
        return [part.strip() for part in text.split(separator) if part.strip()]
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("a text that begins with a bracket must be a JSON list") from error
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int | float):
            raise ValueError("expected a list of strings or numbers")  # noqa: TRY004  # it is a value of a file
    return parts


def find_separator(texts: Sequence[str], separator: str) -> str:
    """Return the character that seems to separate the parts of targets in place of `separator`, or
    an empty string.

    It is the most frequent of comma, semicolon, vertical bar and tab, if at least a tenth of the
    targets contain it and none contains `separator`.
    """
    if any(separator in text for text in texts):
        return ""
    counts = {
        sign: sum(sign in text and not text.startswith("[") for text in texts)
        for sign in _SEPARATORS
    }
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] * _LEAST_SHARE >= max(1, len(texts)) else ""


def find_joined(labels: Sequence[str]) -> tuple[str, str]:
    """Return a label that seems to be several, and their separator; empty if there is none.

    With the separator, each of its parts is a part of another label, or a label of its own.
    """
    for sign in _SEPARATORS:
        parts = {label: {part.strip() for part in label.split(sign)} for label in set(labels)}
        counts = Counter(part for own in parts.values() for part in own)
        joined = (
            label
            for label, own in parts.items()
            if len(own) > 1 and all(counts[part] > 1 for part in own)
        )
        if label := min(joined, default=""):
            return label, sign
    return "", ""


def parse_labels(text: str, separator: str, normalizer: LabelNormalizer) -> list[str]:
    """Return the labels of a target, normalized. Raises ValueError as `split_list`."""
    return [normalizer[str(label)] for label in split_list(text, separator)]


def _is_number(name: str) -> bool:
    """Return True if the name is a number that can be sorted by value, which excludes nan."""
    try:
        return not math.isnan(float(name))
    except ValueError:
        return False
