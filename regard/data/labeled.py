"""Texts with a label each: read from the user's files, numbered, and put in batches.

    label i of n          numbered in the order of their names (numbers: by size), as training knows them
    a batch               texts of like lengths, so many tokens, and the number of each one's label

Source: the forms of files are those of pairs (regard.data.pairs), a label standing where a pair has its target.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention.masks import Padded
from regard.data.batches import Ragged, pad, plan_batches
from regard.data.config import LabeledConfig, OnBad
from regard.data.pairs import Pairs, read_pairs
from regard.data.spellings import Spellings
from regard.errors import UserError
from regard.files import did_you_mean, read_json

_VERSION = 1
_SHOWN, _EXCERPT = 20, 60
_ALSO: dict[str, tuple[type, ...]] = {"class": (int,), "labels": (int, list), "number": (int, float, list)}
"""What a target of each kind may be in a file beside a text."""


@dataclass(frozen=True)
class Labels:
    """The classes of a task, by number."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Sequence[str], *, least: int = 2, origin: str = "") -> "Labels":
        """All labels that occur, numbers by size and other names by letter.

        origin: the files that they are from, for messages.
        Raises: UserError for fewer than `least`.
        """
        found = sorted(
            set(labels), key=lambda name: (not _is_number(name), float(name) if _is_number(name) else 0, name)
        )
        before = f"{origin}: " if origin else ""
        if not found:
            raise UserError(f"{before}there must be a label at least, but no training text has any.")
        if len(found) < least:  # of classes, with one there is nothing to learn
            shown = repr(found[0][:_EXCERPT])
            raise UserError(f"{before}there must be two labels at least, but all training texts are labeled {shown}.")
        return cls(tuple(found))

    def __len__(self) -> int:
        return len(self.names)

    def numbers(
        self, found: Sequence[str], on_bad: OnBad, *, where: Callable[[int], str], origin: str, what: tuple[str, str]
    ) -> tuple[list[int], list[int]]:
        """Which of the items have a known label, and its number.

        where(i), origin: the place of item i and of all; what: what labels and items are called in messages.
        Raises:  UserError naming the first item that has another label, unless on_bad is skip, or if none is known.
        """
        known, (name, item) = {label: number for number, label in enumerate(self.names)}, what
        unknown = [i for i, label in enumerate(found) if label not in known]
        if unknown and on_bad == "error":
            hint = f"With `on_bad` = skip, such {item}s are left out and counted."
            raise UserError(f"{where(unknown[0])}: {self.unknown(found[unknown[0]], what)}. {hint}")
        keep = [i for i, label in enumerate(found) if label in known]
        if not keep:
            shown = ", ".join(name[:_EXCERPT] for name in self.names[:_SHOWN])
            raise UserError(f"{origin}: no {item} has a {name} of the training {item}s: {shown}.")
        return keep, [known[found[i]] for i in keep]

    def unknown(self, label: str, what: tuple[str, str]) -> str:
        """What is wrong with a label that is none of these."""
        near = did_you_mean(label, list(self.names)).rstrip(".")
        shown = ", ".join(name[:_EXCERPT] for name in self.names[:_SHOWN])
        return f"{what[0]} {label[:_EXCERPT]!r} is none of those of the training {what[1]}s: {shown}" + (
            near and f".{near}"
        )

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        content = {"format": "regard-labels", "version": _VERSION, "names": list(self.names)}
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Labels":
        """Read what `save` wrote. Raises UserError naming the file."""
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        content = read_json(path)
        names = content.get("names") if isinstance(content, dict) and content.get("version") == _VERSION else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: damaged, or of another version: it must list the names of the labels")
        return cls(tuple(names))


@dataclass(frozen=True)
class LabeledBatch:
    """Rows of token ids, padded with 0, and each row's target: the number of its label, or what else is learned."""

    source: "Padded | Opined"
    target: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "LabeledBatch":
        """The same batch on a device."""
        return LabeledBatch(self.source.to(device), self.target.to(device, non_blocking=True), self.indices)


class LabeledBatches:
    """Batches over texts as ids with targets as numbers: one a text, or a row (texts, ...).

    change(ids, epoch, index): what training shows of a text (words left out at random), a pure function; or None.
    opinions: of each text what counting says of its pieces (pieces, kinds, classes), which then goes with it; or None.
    Raises:  UserError by `plan` if one text alone exceeds batch_tokens.
    """

    def __init__(
        self,
        texts: Ragged,
        labels: Sequence[int] | np.ndarray,
        *,
        batch_tokens: int,
        seed: int,
        change: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
        opinions: Sequence[np.ndarray] | None = None,
        origin: str = "",
    ):
        self.origin = origin
        self.texts, self.labels = texts, np.asarray(labels)
        self.batch_tokens, self.seed, self.change, self.opinions = batch_tokens, seed, change, opinions

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (lengths, seed, epoch)."""
        lengths = [(max(1, length), 1) for length in self.texts.lengths.tolist()]
        return plan_batches(lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch, origin=self.origin)

    def collate(self, epoch: int, indices: Sequence[int]) -> LabeledBatch:
        """The tensors of these rows."""
        rows = [self.texts[i] for i in indices]
        if self.change is not None:
            rows = [self.change(row, epoch, i) for row, i in zip(rows, indices, strict=True)]
        target = torch.from_numpy(self.labels[list(indices)])
        source = pad([row.tolist() for row in rows])
        if self.opinions is not None:
            return LabeledBatch(opined(source, [self.opinions[i] for i in indices]), target, tuple(indices))
        return LabeledBatch(source, target, tuple(indices))


class Opined(NamedTuple):
    """Texts, and what counting says of each of their pieces."""

    text: Padded
    opinions: Float[Tensor, "batch time kinds classes"]
    """Noughts where there is padding."""

    def to(self, device: torch.device | str) -> "Opined":
        """The same on a device."""
        return Opined(self.text.to(device), self.opinions.to(device, non_blocking=True))


def opined(source: Padded, opinions: Sequence[np.ndarray]) -> Opined:
    """Texts with the opinions on their pieces, padded as they are."""
    return Opined(source, pad_sequence([torch.from_numpy(rows) for rows in opinions], batch_first=True))


def read_labeled(config: LabeledConfig, path: str | Path, split: str) -> Pairs:
    """Texts and their labels, as the config says they are written. Raises UserError as `read_pairs`."""
    pairs = read_pairs(
        path,
        format=config.format,
        source_column=config.text_column,
        target_column=config.label_column,
        on_bad=config.on_bad,
        split=split,
        also=_ALSO[config.target],
        names=("text", "label"),
    )
    if config.target != "class":  # several labels are told apart later
        return pairs
    spellings = Spellings()
    targets = [spellings[label] for label in pairs.targets]
    spellings.warn_merged(pairs.origin)
    return replace(pairs, targets=targets)


def several(text: str, separator: str) -> list[str | int | float]:
    """The texts or numbers that a target lists: a JSON list, or parts between separators; none if it is empty.

    Raises: ValueError for a list that is no JSON, or holds anything else.
    """
    if not text.startswith("["):
        return [part.strip() for part in text.split(separator) if part.strip()]
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("expected a JSON list where a text begins with a bracket") from error
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int | float):
            raise ValueError("expected a list of texts or numbers")  # noqa: TRY004  # it is a value of a file
    return parts


def _is_number(name: str) -> bool:
    """Whether it has a place among numbers; nan is a name like others, which compares with no number."""
    try:
        return not math.isnan(float(name))
    except ValueError:
        return False


def labels_in(text: str, separator: str, spellings: Spellings) -> list[str]:
    """The labels that a target lists. Raises ValueError as `several`."""
    return [spellings[str(label)] for label in several(text, separator)]
