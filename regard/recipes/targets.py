"""Targets of recipes that map an input to one vector (reviews, images): a class, several labels, or numbers.

target = get_target_type(data).fit(raw, data)    names of classes or labels, scales of numbers
target.encode(raw)              targets as rows of an array; errors name the file and the line
target.build_writer(...)        the output layer
target.score(answers, targets)  metrics; `metric` names the one that selects the best checkpoint
target.rank(answers, n)         answers as text, best first
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.config import ImagesConfig, LabeledConfig, OnBad
from regard.data.labeled import Labels, parse_labels, split_list
from regard.data.numbers import parse_numbers
from regard.data.spellings import LabelNormalizer
from regard.errors import UserError
from regard.files import read_json
from regard.models.config import ClassifierConfig
from regard.models.writes.classes import ClassWriter
from regard.models.writes.labels import LabelWriter
from regard.models.writes.numbers import NumberWriter
from regard.models.writes.vector import VectorWriter
from regard.recipes.vector_scores import LABEL_THRESHOLD, class_scores, label_scores, number_scores

_SAMPLES, _SHOWN, _EXCERPT = 5, 10, 60
_MOST, _LEAST, _FINENESS = 1e15, 1e-15, 1e-6
"""Limits of numeric targets: largest magnitude; smallest deviation, absolute and relative to the mean (float32)."""


class Answer(NamedTuple):
    """Predicted target as text, and its probability (1 for numbers, which have none)."""

    text: str
    score: float


class RawTargets(NamedTuple):
    """Targets of some inputs as the files have them, not parsed yet."""

    texts: Sequence[str]
    """A label, labels or numbers, as text."""
    where: Callable[[int], str]
    """Returns the file and line of an input, for messages."""
    origin: str
    what: tuple[str, str]
    """Nouns for a target and an input in messages: ("label", "text")."""
    on_bad: OnBad


class Target(ABC):
    """Kind of targets of a run: encodes them, builds the output layer, scores and formats answers."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        """Create the target from the training data. Raises UserError if there is nothing to learn."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """Read what `save` wrote. Raises UserError naming the file."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the target to a run folder."""

    @abstractmethod
    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return the indices of the inputs with a valid target, and these targets.

        Raises UserError naming the first invalid one with its line, unless on_bad is skip, or if none is valid.
        """

    @abstractmethod
    def build_writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Return the output layer that maps vectors to answers."""

    @abstractmethod
    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of the answers."""

    @abstractmethod
    def rank(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """Return the best answers of each row, best first. Raises UserError if n_best is too large."""

    @abstractmethod
    def to_values(self, answers: Tensor) -> list[Any]:
        """Return the answer of each row as a Python value."""

    @abstractmethod
    def to_texts(self, targets: Tensor) -> list[str]:
        """Return targets as text, in the form of `rank`."""

    @property
    @abstractmethod
    def signature(self) -> str:
        """Description of the possible answers: "3 classes: bad, good, odd"."""

    def encode_for_training(self, raw: RawTargets, tell: Callable[[str], None]) -> tuple[list[int], NDArray[Any]]:
        """Return the same as `encode`, and call `tell` if inputs were left out."""
        keep, targets = self.encode(raw)
        if left_out := len(raw.texts) - len(keep):
            tell(f"{raw.origin}: left out {left_out} {raw.what[1]}s whose {raw.what[0]} cannot be used")
        return keep, targets

    def make_samples(self, inputs: Sequence[str], answers: Tensor, targets: Tensor) -> list[dict[str, str]]:
        """Return a few inputs with their outputs and references."""
        outputs = (best.text for best, *_ in self.rank(answers[:_SAMPLES], 1))
        rows = zip(inputs[:_SAMPLES], outputs, self.to_texts(targets[:_SAMPLES]), strict=True)
        return [dict(zip(("source", "output", "reference"), row, strict=True)) for row in rows]

    def format_title(self, best: Answer) -> str:
        """Return an answer for the title of a figure."""
        return f"{best.text} ({best.score:.2f})"


class _NamedTarget(Target):
    """Targets from a fixed set of names."""

    noun: ClassVar[str]

    def __init__(self, labels: Labels, names: Sequence[str] = (), separator: str = ","):
        self.labels = labels
        self.names = tuple(names) if len(names) == len(labels) else labels.names
        self.separator = separator

    @classmethod
    def _from_labels(cls, labels: Labels, data: LabeledConfig | ImagesConfig) -> Self:
        return cls(labels, data.names if isinstance(data, ImagesConfig) else (), data.separator)

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """Load the names from labels.json."""
        return cls._from_labels(Labels.load(folder / "labels.json"), data)

    def save(self, folder: Path) -> None:
        """Save the names to labels.json."""
        self.labels.save(folder / "labels.json")

    @property
    def signature(self) -> str:
        """Number of names, and the first of them."""
        return f"{len(self.names)} {self.noun}: {', '.join(self.names[:_SHOWN])}"


class ClassTarget(_NamedTarget):
    """One of several classes."""

    metric = "accuracy"
    noun = "classes"

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        """Collect all classes that occur, at least two."""
        return cls._from_labels(Labels.from_names(raw.texts, origin=raw.origin), data)

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return class indices (rows,)."""
        location = {"where": raw.where, "origin": raw.origin}
        keep, numbers = self.labels.encode(raw.texts, raw.on_bad, **location, what=raw.what)
        return keep, np.asarray(numbers, np.int64)

    def build_writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Return a softmax classifier."""
        return ClassWriter(dim, len(self.names), dropout=config.dropout, label_smoothing=label_smoothing)

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Return accuracy, macro F1 and nll."""
        return class_scores(answers, targets)

    def rank(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """Return the most likely classes."""
        return _rank_names(answers, self.names, n_best)

    def to_values(self, answers: Tensor) -> list[str]:
        """Return the most likely class of each row."""
        return [self.names[number] for number in answers.argmax(-1).tolist()]

    def to_texts(self, targets: Tensor) -> list[str]:
        """Return the name of each class."""
        return [self.names[number] for number in targets.tolist()]


class LabelsTarget(_NamedTarget):
    """Any subset of several labels (multi-label classification)."""

    metric = "micro_f1"
    noun = "labels"

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        """Collect all labels that occur, at least one."""
        spellings = LabelNormalizer()
        _, lists = _parse(raw, lambda text: parse_labels(text, data.separator, spellings))
        spellings.warn_merged(raw.origin)
        names = [label for labels in lists for label in labels]
        return cls._from_labels(Labels.from_names(names, least=1, origin=raw.origin), data)

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return multi-hot rows (rows, labels)."""
        known, spellings = {label: number for number, label in enumerate(self.labels.names)}, LabelNormalizer()

        def parse(text: str) -> list[int]:
            labels = parse_labels(text, self.separator, spellings)
            unknown = [label for label in labels if label not in known]
            if unknown:
                raise ValueError(self.labels.describe_unknown(unknown[0], raw.what))
            return [known[label] for label in labels]

        keep, rows = _parse(raw, parse)
        _check_not_empty(raw, keep)
        targets = np.zeros((len(keep), len(known)), np.float32)
        for row, numbers in enumerate(rows):
            targets[row, numbers] = 1
        return keep, targets

    def build_writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Return an output layer with a sigmoid for each label."""
        return LabelWriter(dim, len(self.names), dropout=config.dropout, label_smoothing=label_smoothing)

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Return micro and macro F1, exact match, average precision and nll."""
        return label_scores(answers, targets)

    def rank(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """Return the predicted label set with its probability; with n_best > 1, the most likely labels."""
        if n_best > 1:
            return _rank_names(answers, self.names, n_best)
        predicted = answers >= LABEL_THRESHOLD
        likelihood = answers.where(predicted, 1 - answers).double().prod(-1).tolist()
        return [[Answer(text, score)] for text, score in zip(self.to_texts(predicted), likelihood, strict=True)]

    def to_values(self, answers: Tensor) -> list[tuple[str, ...]]:
        """Return the predicted labels of each row."""
        return [self._to_names(row) for row in answers >= LABEL_THRESHOLD]

    def to_texts(self, targets: Tensor) -> list[str]:
        """Return the labels of each row, separated as in the files."""
        return [self.separator.join(self._to_names(row)) for row in targets]

    def _to_names(self, row: Tensor) -> tuple[str, ...]:
        return tuple(self.names[number] for number in row.nonzero().squeeze(1).tolist())


class NumberTarget(Target):
    """One or several numbers (regression)."""

    metric = "mae"
    higher_is_better = False

    def __init__(self, means: Sequence[float], deviations: Sequence[float], separator: str = ","):
        self.means, self.deviations, self.separator = tuple(means), tuple(deviations), separator

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        """Compute mean and standard deviation; the first target determines how many numbers there are."""
        count: int | None = None

        def parse(text: str) -> list[float]:
            nonlocal count
            row = _parse_numbers(text, data.separator, count)
            count = len(row)
            return row

        keep, rows = _parse(raw, parse)
        _check_not_empty(raw, keep)
        values = np.asarray(rows, np.float64)
        for position, column in enumerate(values.T, start=1):
            name = f"number {position} of each" if values.shape[1] > 1 else "the number"
            if (column == column[0]).all():
                raise UserError(f"{raw.origin}: {name} is {column[0]:g} everywhere: there is nothing to learn.")
            if column.std() < max(_LEAST, _FINENESS * abs(column.mean())):
                raise UserError(f"{raw.origin}: {name} varies by only {column.std():g}, too little for float32.")
        return cls(values.mean(0).tolist(), values.std(0).tolist(), data.separator)

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """Load means and standard deviations from numbers.json."""
        path = folder / "numbers.json"
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        content = read_json(path)
        try:
            means, deviations = ([float(value) for value in content[name]] for name in ("means", "deviations"))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(f"{path}: damaged: it must hold means and deviations") from error
        fits = 0 < len(means) == len(deviations) and min(deviations) > 0
        if content.get("version") != 1 or not fits or not all(map(math.isfinite, (*means, *deviations))):
            raise UserError(f"{path}: damaged, or of another version: it must hold means and positive deviations")
        return cls(means, deviations, data.separator)

    def save(self, folder: Path) -> None:
        """Save means and standard deviations to numbers.json."""
        content = {"format": "regard-numbers", "version": 1, "means": self.means, "deviations": self.deviations}
        (folder / "numbers.json").write_text(json.dumps(content) + "\n", encoding="utf-8")

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return the numbers (rows, numbers)."""
        keep, rows = _parse(raw, lambda text: _parse_numbers(text, self.separator, len(self.means)))
        _check_not_empty(raw, keep)
        return keep, np.asarray(rows, np.float32)

    def build_writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Return a regression output layer with these means and standard deviations."""
        scales = {"means": self.means, "deviations": self.deviations}
        return NumberWriter(dim, **scales, error=config.number_error, dropout=config.dropout)

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Return mean absolute error, root mean squared error and R^2."""
        return number_scores(answers, targets)

    def rank(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """Return the numbers of each row, its only answer."""
        if n_best > 1:
            raise UserError(f"--n-best must be 1 for a run that predicts numbers, got {n_best}")
        return [[Answer(text, 1.0)] for text in self.to_texts(answers)]

    def to_values(self, answers: Tensor) -> list[float | tuple[float, ...]]:
        """Return a number or a tuple of numbers for each row."""
        rows = answers.double().tolist()
        return [row[0] for row in rows] if len(self.means) == 1 else [tuple(row) for row in rows]

    def to_texts(self, targets: Tensor) -> list[str]:
        """Return the numbers of each row with five digits, separated as in the files."""
        return [self.separator.join(f"{number:.5g}" for number in row) for row in targets.tolist()]

    @property
    def signature(self) -> str:
        """Number of values, and their mean and standard deviation in training."""
        scales = zip(self.means, self.deviations, strict=True)
        return ", ".join(f"a number, {mean:.4g} +- {deviation:.4g} in training" for mean, deviation in scales)

    def format_title(self, best: Answer) -> str:
        """Return the numbers alone: they have no probability."""
        return best.text


_KINDS: dict[str, type[Target]] = {"class": ClassTarget, "labels": LabelsTarget, "number": NumberTarget}


def get_target_type(data: LabeledConfig | ImagesConfig) -> type[Target]:
    """Return the target class for the setting `data.target`."""
    return _KINDS[data.target]


def _rank_names(probabilities: Tensor, names: Sequence[str], n_best: int) -> list[list[Answer]]:
    values, numbers = probabilities.topk(min(n_best, len(names)), dim=-1)
    rows = zip(values.tolist(), numbers.tolist(), strict=True)
    return [[Answer(names[i], value) for value, i in zip(*row, strict=True)] for row in rows]


def _parse_numbers(text: str, separator: str, count: int | None) -> list[float]:
    """Return the `count` numbers of one input (None: at least one). Raises ValueError for anything else."""
    parts = split_list(text, separator)
    row = parse_numbers(parts, most=_MOST)
    if not row or len(row) != (count or len(row)):
        expected = "a number" if count in (None, 1) else f"{count} numbers, separated by {separator!r} or a JSON list"
        raise ValueError(f"expected {expected} (at most {_MOST:g})")
    return row


def _parse(raw: RawTargets, parse: Callable[[str], list[Any]]) -> tuple[list[int], list[list[Any]]]:
    """Return the indices of the targets that `parse` accepts, and the parsed targets.

    Raises UserError naming the first that raises ValueError, unless on_bad is skip.
    """
    keep, rows = [], []
    for i, text in enumerate(raw.texts):
        try:
            rows.append(parse(text))
            keep.append(i)
        except ValueError as error:
            if raw.on_bad == "error":
                raise _target_error(raw, i, f"{error}, got {text[:_EXCERPT]!r}") from None
    return keep, rows


def _target_error(raw: RawTargets, index: int, problem: str) -> UserError:
    hint = f"With `on_bad` = skip, such {raw.what[1]}s are left out and counted."
    return UserError(f"{raw.where(index)}: {problem}. {hint}")


def _check_not_empty(raw: RawTargets, keep: Sequence[int]) -> None:
    if not keep:
        raise UserError(f"{raw.origin}: no {raw.what[1]} has a {raw.what[0]} that can be used.")
