"""Targets that are numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.artifact import Artifact
from regard.data.tables import as_number, excerpt
from regard.data.text.labels import split_list
from regard.errors import UserError
from regard.models.config import ClassifierConfig
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.answers import NumbersAnswer
from regard.recipes.base.recipe import Answer, Ranked
from regard.recipes.metrics.vectors import number_scores
from regard.recipes.targets.base import RawTargets, ScoreWeights, Target, TargetData, parse_rows

MAX_VALUE, MIN_DEVIATION, MIN_RELATIVE = 1e15, 1e-15, 1e-6
"""Limits of targets: largest magnitude; smallest deviation, absolute and relative (float32)."""
_FILE = "numbers.json"


class Scales(Artifact):
    """Mean and standard deviation of each number in training, and the names of chosen columns."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    names: tuple[str, ...] = ()


class NumberTarget(Target):
    """One or several numbers (regression)."""

    metric = "mae"
    higher_is_better = False

    def __init__(self, scales: Scales, data: TargetData):
        self.scales, self.separator = scales, data.separator
        self.names, parts = [*scales.names], []
        for i, (mean, deviation) in enumerate(zip(scales.means, scales.deviations, strict=True)):
            if not scales.names:
                self.names.append("value" if len(scales.means) == 1 else f"value {i + 1}")
            name = scales.names[i] if scales.names else "a number"
            parts.append(f"{name}, {mean:.4g} +- {deviation:.4g} in training")
        self.signature = ", ".join(parts)

    @classmethod
    def fit(cls, raw: RawTargets, data: TargetData) -> Self:
        """Compute mean and standard deviation, of as many numbers as the first target has."""
        rows: list[list[float]] = []

        def parse(text: str) -> list[float]:
            rows.append(_parse_numbers(text, data.separator, len(rows[0]) if rows else None))
            return rows[-1]

        parse_rows(raw, parse)
        values = np.asarray(rows, np.float64)
        means, deviations = values.mean(0), values.std(0)
        if (deviations < np.maximum(MIN_DEVIATION, MIN_RELATIVE * np.abs(means))).any():
            raise UserError(f"{raw.origin}: a number is the same everywhere: nothing to learn")
        named = [one for one in data.label_column if isinstance(one, str) and not one.isdecimal()]
        if not len(named) == len(data.label_column) == values.shape[1]:
            named = []
        return cls(Scales(tuple(means.tolist()), tuple(deviations.tolist()), tuple(named)), data)

    @classmethod
    def load(cls, folder: Path, data: TargetData) -> Self:
        return cls(Scales.load(folder / _FILE), data)

    def artifacts(self) -> dict[str, Any]:
        return {_FILE: self.scales}

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return the numbers (rows, numbers)."""
        count = len(self.names)
        keep, rows = parse_rows(raw, lambda text: _parse_numbers(text, self.separator, count))
        return keep, np.asarray(rows, np.float32)

    def build_writer(self, dim: int, config: ClassifierConfig, **options: Any) -> VectorWriter:
        return NumberWriter(
            dim,
            means=self.scales.means,
            deviations=self.scales.deviations,
            error=config.regression_loss,
            pool=options["pool"],
            **config.writer_options(),
        )

    def metrics(
        self, outputs: Tensor, targets: Tensor, threshold: float | None = None
    ) -> dict[str, Any]:
        _refuse_threshold(threshold)
        scores: dict[str, Any] = number_scores(outputs, targets)
        if len(self.names) > 1:
            columns = zip(self.names, outputs.split(1, 1), targets.split(1, 1), strict=True)
            scores["numbers"] = {name: number_scores(*pair) for name, *pair in columns}
        return scores

    def answer(self, output: Tensor, n_best: int = 1, threshold: float | None = None) -> Answer:
        _refuse_threshold(threshold)
        if n_best > 1:
            raise UserError(f"--n-best must be 1 for a run that predicts numbers, got {n_best}")
        numbers = output.double().tolist()
        text = self.separator.join(f"{number:.5g}" for number in output.tolist())
        value = numbers[0] if len(numbers) == 1 else tuple(numbers)
        json: NumbersAnswer = {"values": dict(zip(self.names, numbers, strict=True))}
        return Answer(value, json, [text], [Ranked(text, 1.0)])

    @property
    def columns(self) -> Mapping[str, type]:
        return dict.fromkeys(self.scales.names or ["label"], float)

    def to_row(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return an answer as columns of a table: one, if those of training have no names."""
        if self.scales.names or len(values) == 1:
            return dict(zip(self.columns, values.values(), strict=True))
        return {"label": self.separator.join(f"{value:.7g}" for value in values.values())}

    def reference(self, target: Any) -> dict[str, float]:
        """Return the numbers by name, with the digits of the data as far as float32 has them."""
        return {name: float(str(value)) for name, value in zip(self.names, target, strict=True)}

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        rows = torch.diag(torch.tensor(self.scales.deviations))
        shift = torch.tensor(self.scales.means)
        return ScoreWeights(self.names[:most], rows[:most], shift[:most], "number")

    def log_prob(self, output: Tensor, threshold: float | None = None) -> Tensor:
        raise UserError("this run predicts numbers, which have no probability to differentiate")


def _refuse_threshold(threshold: float | None) -> None:
    if threshold is not None:
        raise UserError("--threshold is for classes and labels, and this run predicts numbers")


def _parse_numbers(text: str, separator: str, count: int | None) -> list[float]:
    """Return the `count` numbers of one input (None: at least one)."""
    row = [as_number(part) for part in split_list(text, separator)]
    if not row or len(row) != (count or len(row)) or max(map(abs, row)) > MAX_VALUE:
        several = f"{count} numbers, separated by {separator!r}"
        expected = "a number" if count in (None, 1) else several
        raise UserError(f"expected {expected}, got {excerpt(text)}")
    return row
