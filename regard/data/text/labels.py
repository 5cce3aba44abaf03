"""Data sets of labeled texts: readers, class indices of labels, lists of labels, and batches.

Class indices are in the order of the names of the labels (numbers: by value). A batch has texts of
similar length, up to a budget of tokens. File formats are those of pairs (regard.data.text.pairs),
with the label in place of the target.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.artifact import Artifact
from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, Ragged, generator, pad, plan_batches
from regard.data.config import ImagesConfig, LabeledConfig, TargetKind
from regard.data.tables import MAX_SHOWN, Table, as_text, excerpt, locate, numeric_order
from regard.data.text.pairs import Pairs, collect_pairs, read_columns
from regard.data.tokenizer import UNK
from regard.errors import UserError
from regard.system.writing import valid_text

REJECT = "<reject>"
"""Answer for an input whose most probable class has a probability below the threshold."""
_HOLDS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
"""Cells of a column that is a label, in lower case."""


class Labels(Artifact, frozen=True, dict=True):
    """Names of the classes of a task, by class index."""

    names: tuple[str, ...]

    @classmethod
    def from_names(cls, labels: Sequence[str], *, origin: str, least: int = 2) -> Self:
        """Collect the different labels: numbers by value, then other names in alphabetical order.
        Raises UserError for fewer than `least`."""
        names = sorted(set(labels), key=numeric_order)
        if len(names) < least:
            shown = ", ".join(map(excerpt, names)) or "none"
            problem = f"there must be at least {least} labels in the training data, got {shown}."
            raise UserError(f"{origin}: {problem}")
        return cls(tuple(names))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def index(self, label: str, nouns: tuple[str, str]) -> int:
        """Return the class index of a label. Raises: UserError if it is unknown.

        nouns: for a label and what has it, in messages.
        """
        if label not in self._indices:
            shown = ", ".join(name[:MAX_SHOWN] for name in self.names[:20])
            problem = f"does not occur in the training {nouns[1]}s ({shown})"
            raise UserError(f"{nouns[0]} {excerpt(label)} {problem}")
        return self._indices[label]


LabeledBatch = Batch[Any, Tensor]
"""Texts (token ids, padded with 0, or what `extend` returned) and their targets."""


@dataclass(eq=False)
class LabeledBatches:
    """Batches of tokenized texts and numeric targets."""

    texts: Ragged
    labels: Any
    """Sequence or array (texts,) or (texts, ...)."""
    _: KW_ONLY
    batch_tokens: int
    seed: int
    word_dropout: float = 0.0
    """Share of the tokens replaced by `filler`, others in each epoch."""
    filler: int = UNK
    extend: Callable[[Padded, Sequence[int]], Any] | None = None
    """Function that adds to the source of a batch what else the model reads of these texts."""
    origin: str = "texts"

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        lengths = [(max(1, length), 1) for length in self.texts.lengths.tolist()]
        return plan_batches(
            lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch, origin=self.origin
        )

    def collate(self, epoch: int, indices: Sequence[int]) -> LabeledBatch:
        rows = [self.texts[i] for i in indices]
        if self.word_dropout:
            for position, (row, i) in enumerate(zip(rows, indices, strict=True)):
                draw = generator(self.seed, epoch, i).random(len(row))
                rows[position] = np.where(draw < self.word_dropout, self.filler, row)
        texts = pad(rows)
        source = texts if self.extend is None else self.extend(texts, indices)
        return Batch(source, self.target(texts, indices), tuple(indices))

    def target(self, source: Padded, indices: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.asarray(self.labels)[list(indices)])


def read_labeled(config: LabeledConfig, path: str | Path, split: str) -> Pairs:
    """Read texts and their labels of a file in the format given by the config."""
    bad_rows = BadRows(config.on_bad, "texts")
    source = ("text", config.text_column)
    rows = read_labels(path, source, config, bad_rows, split)
    return collect_pairs(
        rows,
        str(path),
        ("text", "label"),
        bad_rows,
        may_be_empty=config.target == "labels",
        normalize=normalize_label if config.target == "class" else str,
    )


def read_labels(
    path: str | Path,
    source: tuple[str, int | str | None],
    config: LabeledConfig | ImagesConfig,
    bad_rows: BadRows,
    split: str = "train",
) -> Iterable[tuple[int, Sequence[Any]]]:
    """Return the rows of an input and its target. Several columns are one target, a list.
    `source` is the usual name of the column of inputs, and the one chosen."""
    columns = [source, *(("label", chosen) for chosen in config.label_column or (None,))]
    table = read_columns(path, columns, config, split, bad_rows)
    return _combine_columns(table, config.target, bad_rows) if len(columns) > 2 else table


def _combine_columns(
    table: Table, target: TargetKind, bad_rows: BadRows
) -> Iterator[tuple[int, tuple[Any, Any]]]:
    """Yield rows with one target, a list of the numbers in the cells after the first, or (target
    labels) of the names of the columns whose cell is 1 or true."""
    for number, (source, *cells) in table:
        if target != "labels":
            yield number, (source, cells)
            continue
        with bad_rows.catch(locate(table.path, number)):
            labels = []
            for name, cell in zip(table.names[1:], cells, strict=True):
                text = as_text(cell).strip().lower()
                if text not in _HOLDS:
                    raise UserError(f"expected 1, true, 0, false or nothing, got {excerpt(text)}")
                if _HOLDS[text]:
                    labels.append(name)
            yield number, (source, labels)


def normalize_label(label: str) -> str:
    """Return a label in Unicode form NFC (macOS decomposes letters in names of folders). Raises
    UserError for one that is not valid Unicode, and for REJECT."""
    if label == REJECT:
        raise UserError(f"{REJECT} is an answer below a threshold: expected a class")
    if valid_text(label) != label:
        raise UserError(f"label {label!r} is not valid Unicode")
    return unicodedata.normalize("NFC", label)


def parse_labels(text: str, separator: str) -> list[str]:
    """Return the labels of a target in form NFC. Raises UserError as `split_list`."""
    return [normalize_label(str(label)) for label in split_list(text, separator)]


def split_list(text: str, separator: str) -> list[str | int | float]:
    """Split a target into strings or numbers: a JSON list, or parts between separators. Raises
    UserError for an invalid JSON list, or other types in the list."""
    if not text.startswith("["):
        return [part.strip() for part in text.split(separator) if part.strip()]
    try:
        return msgspec.json.decode(text, type=list[str | int | float])
    except ValueError as error:
        raise UserError(f"expected a list of strings or numbers: {error}") from None
