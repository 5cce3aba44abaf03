"""Targets that are labels: one of several classes, or any number of labels."""

import json
import math
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import ImagesConfig, LabeledConfig
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.labels import Labels, parse_labels
from regard.data.text.numbers import parse_numbers
from regard.errors import UserError
from regard.models.config import ClassifierConfig
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.answers import ClassAnswer, LabelsAnswer
from regard.recipes.base.recipe import Ranked
from regard.recipes.metrics.vectors import (
    LABEL_THRESHOLD,
    class_scores,
    class_table,
    label_scores,
    label_table,
)
from regard.recipes.targets.base import (
    MAX_SHOWN,
    RawTargets,
    ScoreWeights,
    Target,
    check_not_empty,
    parse_rows,
)
from regard.system.files import read_json

_WEIGHTS = "class_weights.json"
_FEW = 20
"""Number of classes that a data set of any size may have without a warning."""
_FEW_NUMBERS = 5
"""Number of classes with decimal numbers as names that has no warning."""


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
        return cls._from_labels(Labels.load(folder / "labels.json"), data)

    def save(self, folder: Path) -> None:
        self.labels.save(folder / "labels.json")

    @property
    def signature(self) -> str:
        more = ", ..." if len(self.names) > MAX_SHOWN else ""
        return f"{len(self.names)} {self.noun}: {', '.join(self.names[:MAX_SHOWN])}{more}"


class ClassTarget(_NamedTarget):
    """One of several classes."""

    metric = "accuracy"
    noun = "classes"
    class_weights: tuple[float, ...] = ()
    """Weight of each class in the loss, if classes are balanced: n / (k n_c), for n_c of n inputs
    and k classes."""

    @classmethod
    def select_metric(cls, data: LabeledConfig | ImagesConfig) -> str:
        return "macro_f1" if data.class_weights == "balanced" else cls.metric

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        if data.separator != type(data)().separator:
            warnings.warn(
                "data.separator separates several labels or numbers in one cell, and has no effect "
                "with data.target "
                "class; the separator of the columns of a CSV is recognized by itself",
                stacklevel=2,
            )
        labels, inputs = Labels.from_names(raw.texts, origin=raw.origin), len(raw.texts)
        if len(labels) > max(_FEW, inputs / 2) and not Path(str(data.train)).is_dir():
            warnings.warn(
                f"{raw.origin}: {len(labels):,} different labels for {inputs:,} {raw.nouns[1]}s "
                f"look like texts; "
                "--data.label-column chooses another column of labels",
                stacklevel=2,
            )
        if len(labels) > _FEW_NUMBERS and all(map(_is_decimal, labels.names)):
            warnings.warn(
                f"{raw.origin}: all {len(labels):,} labels are decimal numbers, and each is a "
                f"class of its own; "
                "--data.target number predicts a number",
                stacklevel=2,
            )
        target = cls._from_labels(labels, data)
        if data.class_weights == "balanced":
            counts = Counter(raw.texts)
            target.class_weights = tuple(
                inputs / (len(labels) * counts[name]) for name in labels.names
            )
        return target

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        target = super().load(folder, data)
        if data.class_weights == "balanced":
            path, names = folder / _WEIGHTS, target.labels.names
            if not path.exists():
                raise UserError(f"{path} is missing: the run is not complete")
            content = read_json(path)
            found = [content.get(name) for name in names] if isinstance(content, dict) else []
            weights = parse_numbers(found, most=math.inf)
            if not weights or min(weights) <= 0:
                raise UserError(f"{path}: damaged: it must hold a positive weight for each class")
            target.class_weights = tuple(weights)
        return target

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.class_weights:
            weights = dict(zip(self.labels.names, self.class_weights, strict=True))
            (folder / _WEIGHTS).write_text(
                json.dumps(weights, ensure_ascii=False) + "\n", encoding="utf-8"
            )

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        location = {"where": raw.where, "origin": raw.origin}
        keep, numbers = self.labels.encode(raw.texts, raw.on_bad, **location, nouns=raw.nouns)
        return keep, np.asarray(numbers, np.int64)

    def build_writer(
        self, dim: int, config: ClassifierConfig, label_smoothing: float, pool: nn.Module
    ) -> VectorWriter:
        training = {
            "dropout": config.dropout,
            "label_smoothing": label_smoothing,
            "class_weights": self.class_weights,
        }
        return ClassWriter(dim, len(self.names), pool=pool, **training)

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        return class_scores(answers, targets)

    def tables(self, answers: Tensor, targets: Tensor) -> dict[str, Any]:
        return class_table(answers.argmax(-1), targets, self.names)

    def rank(self, answers: Tensor, n_best: int) -> list[list[Ranked]]:
        return _rank_names(answers, self.names, n_best)

    def to_values(self, answers: Tensor) -> list[str]:
        return [self.names[number] for number in answers.argmax(-1).tolist()]

    def to_texts(self, targets: Tensor) -> list[str]:
        return [self.names[number] for number in targets.tolist()]

    def to_json(self, output: Tensor, ranked: Sequence[Ranked]) -> ClassAnswer:
        best = ranked[0]
        return {
            "label": best.text,
            "probability": best.score,
            "labels": _to_dict(output, self.names, ranked),
        }

    def to_reference(self, target: Tensor) -> str:
        return self.names[int(target)]

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        count = len(self.names)
        chosen = output[0].topk(min(most, count)).indices
        rows = torch.full((len(chosen), count), -1.0 / max(count - 1, 1))
        rows[torch.arange(len(chosen)), chosen] = 1.0
        quantity = "log-odds" if count == 2 else "score minus the mean of the other classes"
        return ScoreWeights(
            [self.names[i] for i in chosen.tolist()], rows, torch.zeros(len(chosen)), quantity
        )


class LabelsTarget(_NamedTarget):
    """Any subset of several labels (multi-label classification)."""

    metric = "micro_f1"
    noun = "labels"

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        spellings = LabelNormalizer()
        _, lists = parse_rows(raw, lambda text: parse_labels(text, data.separator, spellings))
        spellings.warn(raw.origin)
        names = [label for labels in lists for label in labels]
        columns = data.label_column if len(data.label_column) > 1 else ()
        never = [column for column in columns if _is_never(column, names)]
        if never:
            warnings.warn(
                f"{raw.origin}: no {raw.nouns[1]} has the label {never[0]!r}, which is left out",
                stacklevel=2,
            )
        return cls._from_labels(Labels.from_names(names, least=1, origin=raw.origin), data)

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        known, spellings = (
            {label: number for number, label in enumerate(self.labels.names)},
            LabelNormalizer(),
        )

        def parse(text: str) -> list[int]:
            labels = parse_labels(text, self.separator, spellings)
            unknown = [label for label in labels if label not in known]
            if unknown:
                raise ValueError(self.labels.describe_unknown(unknown[0], raw.nouns))
            return [known[label] for label in labels]

        keep, rows = parse_rows(raw, parse)
        check_not_empty(raw, keep)
        targets = np.zeros((len(keep), len(known)), np.float32)
        for row, numbers in enumerate(rows):
            targets[row, numbers] = 1
        return keep, targets

    def build_writer(
        self, dim: int, config: ClassifierConfig, label_smoothing: float, pool: nn.Module
    ) -> VectorWriter:
        return LabelWriter(
            dim, len(self.names), pool=pool, dropout=config.dropout, label_smoothing=label_smoothing
        )

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        return label_scores(answers, targets)

    def tables(self, answers: Tensor, targets: Tensor) -> dict[str, Any]:
        return label_table(answers >= LABEL_THRESHOLD, targets.bool(), self.names)

    def rank(self, answers: Tensor, n_best: int) -> list[list[Ranked]]:
        if n_best > 1:
            return _rank_names(answers, self.names, n_best)
        predicted = answers >= LABEL_THRESHOLD
        likelihood = answers.where(predicted, 1 - answers).double().prod(-1).tolist()
        return [
            [Ranked(text, score)]
            for text, score in zip(self.to_texts(predicted), likelihood, strict=True)
        ]

    def to_values(self, answers: Tensor) -> list[tuple[str, ...]]:
        return [self._to_names(row) for row in answers >= LABEL_THRESHOLD]

    def to_texts(self, targets: Tensor) -> list[str]:
        return [self.separator.join(self._to_names(row)) for row in targets]

    def to_json(self, output: Tensor, ranked: Sequence[Ranked]) -> LabelsAnswer:
        predicted = self._to_names(output[0] >= LABEL_THRESHOLD)
        return {"predicted": list(predicted), "labels": _to_dict(output, self.names, ranked)}

    def to_reference(self, target: Tensor) -> list[str]:
        return list(self._to_names(target))

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        chosen = output[0].topk(min(most, len(self.names))).indices
        names = [self.names[i] for i in chosen.tolist()]
        return ScoreWeights(
            names, torch.eye(len(self.names))[chosen], torch.zeros(len(chosen)), "log-odds"
        )

    def _to_names(self, row: Tensor) -> tuple[str, ...]:
        return tuple(self.names[number] for number in row.nonzero().squeeze(1).tolist())


def _to_dict(output: Tensor, names: Sequence[str], ranked: Sequence[Ranked]) -> dict[str, float]:
    """Return probabilities by name, largest first: of the ranked names if there are several, else
    of all."""
    if len(ranked) > 1:
        return dict(ranked)
    pairs = zip(names, output[0].tolist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def _rank_names(probabilities: Tensor, names: Sequence[str], n_best: int) -> list[list[Ranked]]:
    values, numbers = probabilities.topk(min(n_best, len(names)), dim=-1)
    rows = zip(values.tolist(), numbers.tolist(), strict=True)
    return [[Ranked(names[i], value) for value, i in zip(*row, strict=True)] for row in rows]


def _is_never(column: int | str, names: Sequence[str]) -> bool:
    """Return True if a column chosen by its name is no label that occurs."""
    return (
        isinstance(column, str)
        and not column.isdecimal()
        and unicodedata.normalize("NFC", column) not in names
    )


def _is_decimal(name: str) -> bool:
    """Return True for a number with a decimal point."""
    whole, _, fraction = name.lstrip("+-").partition(".")
    return whole.isdecimal() and fraction.isdecimal()
