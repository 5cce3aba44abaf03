"""What inputs are answered with: a class, several labels, or numbers.

    target = learned(kind, said)     as the training files say: names of classes or labels, scales of numbers
    target.rows(said)                other files' targets as a tensor's rows; what is malformed is named with its line
    target.writer(...)               which writer makes it of a vector
    target.scores(answers, right)    how good answers are; `metric` is the figure that decides
    target.ranked(answers, n)        answers as people read them

Recipes that make one vector of an input (reviews, images) differ in what they read; what they write is here.
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
from regard.data.labeled import Labels, labels_in, several
from regard.data.numbers import numbers
from regard.data.spellings import Spellings
from regard.errors import UserError
from regard.files import read_json
from regard.models.config import ClassifierConfig
from regard.models.writes.classes import ClassWriter
from regard.models.writes.labels import LabelWriter
from regard.models.writes.numbers import NumberWriter
from regard.models.writes.vector import VectorWriter
from regard.recipes.vector_scores import SAID, class_scores, label_scores, number_scores

_SAMPLES, _SHOWN, _EXCERPT = 5, 10, 60
_MOST, _LEAST, _FINENESS = 1e15, 1e-15, 1e-6
"""Numbers to learn: the largest; the least deviation, absolute and as a share of the mean, that float32 can tell."""


class Answer(NamedTuple):
    """What is said of an input, and its probability (1 for numbers, which have none)."""

    text: str
    score: float


class Said(NamedTuple):
    """What files say of some inputs."""

    texts: Sequence[str]
    """As they stand there: a label, labels, numbers."""
    where: Callable[[int], str]
    """The place of an input, for messages."""
    origin: str
    what: tuple[str, str]
    """What a target and an input are called in messages: ("label", "text")."""
    on_bad: OnBad


class Target(ABC):
    """What a run's inputs are answered with."""

    metric: ClassVar[str]
    maximize: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def learned(cls, said: Said, data: LabeledConfig | ImagesConfig) -> Self:
        """From what the training files say. Raises UserError if there is nothing to learn in it."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """Read what `save` wrote. Raises UserError naming the file."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write it to a run folder."""

    @abstractmethod
    def rows(self, said: Said) -> tuple[list[int], NDArray[Any]]:
        """Which inputs have a target that can be used, and these targets.

        Raises UserError naming the first other with its line, unless on_bad is skip, or if there is none.
        """

    @abstractmethod
    def writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """What makes answers of vectors."""

    @abstractmethod
    def scores(self, answers: Tensor, right: Tensor) -> dict[str, float]:
        """How good they are."""

    @abstractmethod
    def ranked(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """Of each row the best answers, best first. Raises UserError for more than there can be."""

    @abstractmethod
    def values(self, answers: Tensor) -> list[Any]:
        """Of each row the answer for programs."""

    @abstractmethod
    def right_texts(self, right: Tensor) -> list[str]:
        """What is right, as `ranked` would write it."""

    @property
    @abstractmethod
    def signature(self) -> str:
        """What can be said: "3 classes: bad, good, odd"."""

    def learnable(self, said: Said, tell: Callable[[str], None]) -> tuple[list[int], NDArray[Any]]:
        """As `rows`; what is left out is told."""
        keep, targets = self.rows(said)
        if left_out := len(said.texts) - len(keep):
            tell(f"{said.origin}: left out {left_out} {said.what[1]}s whose {said.what[0]} cannot be used")
        return keep, targets

    def samples(self, inputs: Sequence[str], answers: Tensor, right: Tensor) -> list[dict[str, str]]:
        """A few inputs with what was said of them."""
        outputs = (best.text for best, *_ in self.ranked(answers[:_SAMPLES], 1))
        rows = zip(inputs[:_SAMPLES], outputs, self.right_texts(right[:_SAMPLES]), strict=True)
        return [dict(zip(("source", "output", "reference"), row, strict=True)) for row in rows]

    def title(self, best: Answer) -> str:
        """An answer in a picture's title."""
        return f"{best.text} ({best.score:.2f})"


class _Named(Target):
    """Targets that are of a set of names."""

    least: ClassVar[int]
    noun: ClassVar[str]

    def __init__(self, labels: Labels, shown: Sequence[str] = (), separator: str = ","):
        self.labels = labels
        self.names = tuple(shown) if len(shown) == len(labels) else labels.names
        self.separator = separator

    @classmethod
    def _of(cls, labels: Labels, data: LabeledConfig | ImagesConfig) -> Self:
        return cls(labels, data.names if isinstance(data, ImagesConfig) else (), data.separator)

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """The names, from labels.json."""
        return cls._of(Labels.load(folder / "labels.json"), data)

    def save(self, folder: Path) -> None:
        """The names, to labels.json."""
        self.labels.save(folder / "labels.json")

    @property
    def signature(self) -> str:
        """How many there are, and the first of them."""
        return f"{len(self.names)} {self.noun}: {', '.join(self.names[:_SHOWN])}"


class ClassTarget(_Named):
    """One class of several."""

    metric = "accuracy"
    noun = "classes"

    @classmethod
    def learned(cls, said: Said, data: LabeledConfig | ImagesConfig) -> Self:
        """All classes that occur, two at least."""
        return cls._of(Labels.of(said.texts, origin=said.origin), data)

    def rows(self, said: Said) -> tuple[list[int], NDArray[Any]]:
        """Numbers of the classes (rows,)."""
        place = {"where": said.where, "origin": said.origin}
        keep, numbers = self.labels.numbers(said.texts, said.on_bad, **place, what=said.what)
        return keep, np.asarray(numbers, np.int64)

    def writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Probabilities that sum to one."""
        return ClassWriter(dim, len(self.names), dropout=config.dropout, label_smoothing=label_smoothing)

    def scores(self, answers: Tensor, right: Tensor) -> dict[str, float]:
        """Accuracy, macro F1, nll."""
        return class_scores(answers, right)

    def ranked(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """The likeliest classes."""
        return _likeliest(answers, self.names, n_best)

    def values(self, answers: Tensor) -> list[str]:
        """The likeliest class."""
        return [self.names[number] for number in answers.argmax(-1).tolist()]

    def right_texts(self, right: Tensor) -> list[str]:
        """The class."""
        return [self.names[number] for number in right.tolist()]


class LabelsTarget(_Named):
    """Any of several labels, each there or not."""

    metric = "micro_f1"
    noun = "labels"

    @classmethod
    def learned(cls, said: Said, data: LabeledConfig | ImagesConfig) -> Self:
        """All labels that occur, one at least."""
        spellings = Spellings()
        _, lists = _parsed(said, lambda text: labels_in(text, data.separator, spellings))
        spellings.warn_merged(said.origin)
        return cls._of(Labels.of([label for labels in lists for label in labels], least=1, origin=said.origin), data)

    def rows(self, said: Said) -> tuple[list[int], NDArray[Any]]:
        """One for each label that is there, else nought: (rows, labels)."""
        known, spellings = {label: number for number, label in enumerate(self.labels.names)}, Spellings()

        def parse(text: str) -> list[int]:
            labels = labels_in(text, self.separator, spellings)
            unknown = [label for label in labels if label not in known]
            if unknown:
                raise ValueError(f"{self.labels.unknown(unknown[0], said.what)}")
            return [known[label] for label in labels]

        keep, rows = _parsed(said, parse)
        _refuse_none(said, keep)
        found = np.zeros((len(keep), len(known)), np.float32)
        for row, places in enumerate(rows):
            found[row, places] = 1
        return keep, found

    def writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """A probability a label."""
        return LabelWriter(dim, len(self.names), dropout=config.dropout, label_smoothing=label_smoothing)

    def scores(self, answers: Tensor, right: Tensor) -> dict[str, float]:
        """Micro and macro F1, exact match, average precision, nll."""
        return label_scores(answers, right)

    def ranked(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """One answer: all labels that are said, with the probability of just these. Several: the likeliest labels."""
        if n_best > 1:
            return _likeliest(answers, self.names, n_best)
        said = answers >= SAID
        likelihood = answers.where(said, 1 - answers).double().prod(-1).tolist()
        return [[Answer(text, score)] for text, score in zip(self.right_texts(said), likelihood, strict=True)]

    def values(self, answers: Tensor) -> list[tuple[str, ...]]:
        """The labels that are said."""
        return [self._there(row) for row in answers >= SAID]

    def right_texts(self, right: Tensor) -> list[str]:
        """The labels, separated as in the files."""
        return [self.separator.join(self._there(row)) for row in right]

    def _there(self, row: Tensor) -> tuple[str, ...]:
        return tuple(self.names[number] for number in row.nonzero().squeeze(1).tolist())


class NumberTarget(Target):
    """One number, or several."""

    metric = "mae"
    maximize = False

    def __init__(self, means: Sequence[float], deviations: Sequence[float], separator: str = ","):
        self.means, self.deviations, self.separator = tuple(means), tuple(deviations), separator

    @classmethod
    def learned(cls, said: Said, data: LabeledConfig | ImagesConfig) -> Self:
        """Their mean and deviation, and how many there are: as many as the first has."""
        count: int | None = None

        def parse(text: str) -> list[float]:
            nonlocal count
            row = _numbers(text, data.separator, count)
            count = len(row)
            return row

        keep, rows = _parsed(said, parse)
        _refuse_none(said, keep)
        wide = np.asarray(rows, np.float64)
        for place, column in enumerate(wide.T, start=1):
            which = f"number {place} of each" if wide.shape[1] > 1 else "the number"
            if (column == column[0]).all():
                raise UserError(f"{said.origin}: {which} is {column[0]:g} everywhere: there is nothing to learn.")
            if column.std() < max(_LEAST, _FINENESS * abs(column.mean())):
                raise UserError(f"{said.origin}: {which} varies by {column.std():g} alone, too little for float32.")
        return cls(wide.mean(0).tolist(), wide.std(0).tolist(), data.separator)

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        """Means and deviations, from numbers.json."""
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
        """Means and deviations, to numbers.json."""
        content = {"format": "regard-numbers", "version": 1, "means": self.means, "deviations": self.deviations}
        (folder / "numbers.json").write_text(json.dumps(content) + "\n", encoding="utf-8")

    def rows(self, said: Said) -> tuple[list[int], NDArray[Any]]:
        """The numbers (rows, numbers)."""
        keep, rows = _parsed(said, lambda text: _numbers(text, self.separator, len(self.means)))
        _refuse_none(said, keep)
        return keep, np.asarray(rows, np.float32)

    def writer(self, dim: int, config: ClassifierConfig, label_smoothing: float) -> VectorWriter:
        """Numbers of these means and deviations."""
        scales = {"means": self.means, "deviations": self.deviations}
        return NumberWriter(dim, **scales, error=config.number_error, dropout=config.dropout)

    def scores(self, answers: Tensor, right: Tensor) -> dict[str, float]:
        """Mean absolute error, root mean squared error, R^2."""
        return number_scores(answers, right)

    def ranked(self, answers: Tensor, n_best: int) -> list[list[Answer]]:
        """The numbers; there is one answer."""
        if n_best > 1:
            raise UserError(f"a run that answers with numbers has one answer an input, but {n_best} are asked for")
        return [[Answer(text, 1.0)] for text in self.right_texts(answers)]

    def values(self, answers: Tensor) -> list[float | tuple[float, ...]]:
        """The number, or the numbers."""
        rows = answers.double().tolist()
        return [row[0] for row in rows] if len(self.means) == 1 else [tuple(row) for row in rows]

    def right_texts(self, right: Tensor) -> list[str]:
        """The numbers, to five digits, separated as in the files."""
        return [self.separator.join(f"{number:.5g}" for number in row) for row in right.tolist()]

    @property
    def signature(self) -> str:
        """How many numbers, and their mean and deviation in training."""
        scales = zip(self.means, self.deviations, strict=True)
        return ", ".join(f"a number, {mean:.4g} +- {deviation:.4g} in training" for mean, deviation in scales)

    def title(self, best: Answer) -> str:
        """The numbers."""
        return best.text


_KINDS: dict[str, type[Target]] = {"class": ClassTarget, "labels": LabelsTarget, "number": NumberTarget}


def kind_of_target(data: LabeledConfig | ImagesConfig) -> type[Target]:
    """The member of the family that the settings name."""
    return _KINDS[data.target]


def _likeliest(probabilities: Tensor, names: Sequence[str], n_best: int) -> list[list[Answer]]:
    values, numbers = probabilities.topk(min(n_best, len(names)), dim=-1)
    rows = zip(values.tolist(), numbers.tolist(), strict=True)
    return [[Answer(names[i], value) for value, i in zip(*row, strict=True)] for row in rows]


def _numbers(text: str, separator: str, count: int | None) -> list[float]:
    """The numbers of one input, `count` of them (None: one at least). Raises ValueError for anything else."""
    parts = several(text, separator)
    row = numbers(parts, most=_MOST)
    if not row or len(row) != (count or len(row)):
        wanted = "a number" if count in (None, 1) else f"{count} numbers, separated by {separator!r} or a JSON list"
        raise ValueError(f"expected {wanted} (at most {_MOST:g})")
    return row


def _parsed(said: Said, parse: Callable[[str], list[Any]]) -> tuple[list[int], list[list[Any]]]:
    """Which inputs have a target that can be read, and these. Raises UserError naming the first other, or skips."""
    keep, rows = [], []
    for i, text in enumerate(said.texts):
        try:
            rows.append(parse(text))
            keep.append(i)
        except ValueError as error:
            if said.on_bad == "error":
                raise _bad(said, i, f"{error}, got {text[:_EXCERPT]!r}") from None
    return keep, rows


def _bad(said: Said, index: int, problem: str) -> UserError:
    hint = f"With `on_bad` = skip, such {said.what[1]}s are left out and counted."
    return UserError(f"{said.where(index)}: {problem}. {hint}")


def _refuse_none(said: Said, keep: Sequence[int]) -> None:
    if not keep:
        raise UserError(f"{said.origin}: no {said.what[1]} has a {said.what[0]} that can be used.")
