"""Targets that are labels: one of several classes, or any number of labels."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.artifact import Artifact
from regard.data.config import ImagesConfig
from regard.data.text.labels import REJECT, Labels, parse_labels
from regard.models.config import ClassifierConfig
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.answers import ClassAnswer, LabelsAnswer
from regard.recipes.base.recipe import Answer, EmptyAnswerError, Ranked, one_line
from regard.recipes.metrics.vectors import LABEL_THRESHOLD, class_scores, label_scores
from regard.recipes.targets.base import RawTargets, ScoreWeights, Target, TargetData, parse_rows

_LABELS, _WEIGHTS = "labels.json", "class_weights.json"
MAX_SHOWN = 10


class ClassWeights(Artifact):
    """Weight of each class in the loss: n / (k n_c), for n_c of n inputs and k classes."""

    weights: tuple[float, ...]


class NamedTarget(Target):
    """Targets from a fixed set of names."""

    noun: str
    columns: Mapping[str, type] = {"label": str, "probability": float}

    def __init__(self, labels: Labels, data: TargetData):
        names = data.names if isinstance(data, ImagesConfig) else ()
        self.labels = labels
        self.names = names if len(names) == len(labels) else labels.names
        self.separator = data.separator
        more = ", ..." if len(self.names) > MAX_SHOWN else ""
        first = ", ".join(self.names[:MAX_SHOWN])
        self.signature = f"{len(self.names)} {self.noun}: {first}{more}"

    @classmethod
    def load(cls, folder: Path, data: TargetData) -> Self:
        return cls(Labels.load(folder / _LABELS), data)

    def artifacts(self) -> dict[str, Any]:
        return {_LABELS: self.labels}

    def rank(self, output: Tensor) -> list[Ranked]:
        """Return all names and their probabilities, largest first."""
        values, numbers = output.sort(descending=True, stable=True)  # as argmax, if two are equal
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        return [Ranked(self.names[i], value) for i, value in pairs]


class ClassTarget(NamedTarget):
    """One of several classes."""

    noun = "classes"

    def __init__(self, labels: Labels, data: TargetData, class_weights: tuple[float, ...] = ()):
        super().__init__(labels, data)
        self.class_weights = class_weights
        # Macro F1 is a mean over the classes.
        self.metric = "macro_f1" if data.class_weights == "balanced" else "accuracy"

    @classmethod
    def fit(cls, raw: RawTargets, data: TargetData) -> Self:
        labels = Labels.from_names(raw.texts, origin=raw.origin)
        if data.class_weights == "none":
            return cls(labels, data)
        counts, inputs = Counter(raw.texts), len(raw.texts)
        weights = tuple(inputs / (len(labels) * counts[name]) for name in labels.names)
        return cls(labels, data, weights)

    @classmethod
    def load(cls, folder: Path, data: TargetData) -> Self:
        target = super().load(folder, data)
        if data.class_weights == "balanced":
            target.class_weights = ClassWeights.load(folder / _WEIGHTS).weights
        return target

    def artifacts(self) -> dict[str, Any]:
        artifacts = super().artifacts()
        if self.class_weights:
            artifacts[_WEIGHTS] = ClassWeights(self.class_weights)
        return artifacts

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return class indices (rows,)."""
        keep, numbers = parse_rows(raw, lambda text: self.labels.index(text, raw.nouns))
        return keep, np.asarray(numbers, np.int64)

    def build_writer(self, dim: int, config: ClassifierConfig, **options: Any) -> VectorWriter:
        options |= config.writer_options() | {"class_weights": self.class_weights}
        return ClassWriter(dim, len(self.names), **options)

    def metrics(
        self, outputs: Tensor, targets: Tensor, threshold: float | None = None
    ) -> dict[str, Any]:
        return class_scores(outputs, targets, self.names, threshold=threshold)

    def answer(self, output: Tensor, n_best: int = 1, threshold: float | None = None) -> Answer:
        ranked = self.rank(output)
        label, probability = ranked[0]
        shown = ranked[: n_best if n_best > 1 else None]
        if threshold is not None and probability < threshold:
            label, ranked = REJECT, [Ranked(REJECT, probability)]
        json: ClassAnswer = {"label": label, "probability": probability, "labels": dict(shown)}
        return Answer(label, json, [one_line(label)], ranked[:n_best])

    def reference(self, target: Any) -> str:
        return self.names[int(target)]

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        """Return each class's score minus the mean of the others (two classes: the log-odds)."""
        count = len(self.names)
        chosen = output.topk(min(most, count)).indices
        rows = torch.full((len(chosen), count), -1.0 / max(count - 1, 1))
        rows[torch.arange(len(chosen)), chosen] = 1.0
        quantity = "log-odds" if count == 2 else "score minus the mean of the other classes"
        names = [self.names[i] for i in chosen.tolist()]
        return ScoreWeights(names, rows, torch.zeros(len(chosen)), quantity)

    def log_prob(self, output: Tensor, threshold: float | None = None) -> Tensor:
        return output.max().log()


class LabelsTarget(NamedTarget):
    """Any subset of several labels (multi-label classification)."""

    metric = "micro_f1"
    noun = "labels"

    @classmethod
    def fit(cls, raw: RawTargets, data: TargetData) -> Self:
        _, rows = parse_rows(raw, lambda text: parse_labels(text, data.separator))
        names = [label for row in rows for label in row]
        return cls(Labels.from_names(names, least=1, origin=raw.origin), data)

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return multi-hot rows (rows, labels)."""

        def parse(text: str) -> NDArray[np.float32]:
            row = np.zeros(len(self.labels), np.float32)
            for label in parse_labels(text, self.separator):
                row[self.labels.index(label, raw.nouns)] = 1
            return row

        keep, rows = parse_rows(raw, parse)
        return keep, np.stack(rows)

    def build_writer(self, dim: int, config: ClassifierConfig, **options: Any) -> VectorWriter:
        return LabelWriter(dim, len(self.names), **config.writer_options(), **options)

    def metrics(
        self, outputs: Tensor, targets: Tensor, threshold: float | None = None
    ) -> dict[str, Any]:
        return label_scores(outputs, targets, self.names, threshold=_or_default(threshold))

    def answer(self, output: Tensor, n_best: int = 1, threshold: float | None = None) -> Answer:
        """Return the predicted set of labels and its probability; n_best > 1: the most likely."""
        predicted = output >= _or_default(threshold)
        labels, ranked = self._to_names(predicted), self.rank(output)
        shown = ranked[: n_best if n_best > 1 else None]
        json: LabelsAnswer = {"predicted": list(labels), "labels": dict(shown)}
        if n_best == 1:
            likelihood = output.where(predicted, 1 - output).double().prod(-1).item()
            shown = [Ranked(self.separator.join(labels), likelihood)]
        return Answer(labels, json, [one_line(shown[0].text)], shown)

    def reference(self, target: Any) -> list[str]:
        return list(self._to_names(torch.as_tensor(target)))

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        """Return the logit of each label: its log-odds."""
        chosen = output.topk(min(most, len(self.names))).indices
        names = [self.names[i] for i in chosen.tolist()]
        rows = torch.eye(len(self.names))[chosen]
        return ScoreWeights(names, rows, torch.zeros(len(chosen)), "log-odds")

    def log_prob(self, output: Tensor, threshold: float | None = None) -> Tensor:
        predicted = output >= _or_default(threshold)
        if not predicted.any():
            raise EmptyAnswerError("no label is predicted, so there is nothing to differentiate")
        return output[predicted].log().sum()

    def _to_names(self, row: Tensor) -> tuple[str, ...]:
        return tuple(self.names[number] for number in row.nonzero().squeeze(1).tolist())


def _or_default(threshold: float | None) -> float:
    return LABEL_THRESHOLD if threshold is None else threshold
