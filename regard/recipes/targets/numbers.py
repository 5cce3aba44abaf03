"""Targets that are numbers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import ImagesConfig, LabeledConfig
from regard.data.text.labels import split_list
from regard.data.text.numbers import parse_numbers
from regard.errors import UserError
from regard.models.config import ClassifierConfig
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.answers import ValuesAnswer
from regard.recipes.base.recipe import Ranked
from regard.recipes.metrics.vectors import number_scores
from regard.recipes.targets.base import (
    RawTargets,
    ScoreWeights,
    Target,
    check_not_empty,
    parse_rows,
)
from regard.system.files import read_json

_MOST, _LEAST, _FINENESS = 1e15, 1e-15, 1e-6
"""Limits of numeric targets: largest magnitude; smallest deviation, absolute and relative to the
mean (float32)."""


class NumberTarget(Target):
    """One or several numbers (regression)."""

    metric = "mae"
    higher_is_better = False

    def __init__(
        self,
        means: Sequence[float],
        deviations: Sequence[float],
        separator: str = ",",
        names: Sequence[str] = (),
    ):
        self.means, self.deviations, self.separator = tuple(means), tuple(deviations), separator
        self.names = tuple(names)
        """Name of each number, if columns were chosen by name; else empty."""

    @classmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        count: int | None = None

        def parse(text: str) -> list[float]:
            nonlocal count
            row = _parse_numbers(text, data.separator, count)
            count = len(row)
            return row

        keep, rows = parse_rows(raw, parse)
        check_not_empty(raw, keep)
        values = np.asarray(rows, np.float64)
        for position, column in enumerate(values.T, start=1):
            name = f"number {position} of each" if values.shape[1] > 1 else "the number"
            if (column == column[0]).all():
                raise UserError(
                    f"{raw.origin}: {name} is {column[0]:g} everywhere: there is nothing to learn."
                )
            if column.std() < max(_LEAST, _FINENESS * abs(column.mean())):
                raise UserError(
                    f"{raw.origin}: {name} varies by only {column.std():g}, too little for float32."
                )
        names = [
            column
            for column in data.label_column
            if isinstance(column, str) and not column.isdecimal()
        ]
        is_named = len(names) == len(data.label_column) == values.shape[1]
        return cls(
            values.mean(0).tolist(),
            values.std(0).tolist(),
            data.separator,
            names if is_named else (),
        )

    @classmethod
    def load(cls, folder: Path, data: LabeledConfig | ImagesConfig) -> Self:
        path = folder / "numbers.json"
        if not path.exists():
            raise UserError(f"{path} is missing: the run is not complete")
        content = read_json(path)
        try:
            means, deviations = (
                [float(value) for value in content[name]] for name in ("means", "deviations")
            )
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(f"{path}: damaged: it must hold means and deviations") from error
        fits = 0 < len(means) == len(deviations) and min(deviations) > 0
        if (
            content.get("version") != 1
            or not fits
            or not all(map(math.isfinite, (*means, *deviations)))
        ):
            raise UserError(
                f"{path}: damaged, or of another version: it must hold means and positive "
                f"deviations"
            )
        names = content.get("names", [])
        if (
            not isinstance(names, list)
            or len(names) not in (0, len(means))
            or not all(type(n) is str for n in names)
        ):
            raise UserError(f"{path}: damaged: names must be one text for each number")
        return cls(means, deviations, data.separator, names)

    def save(self, folder: Path) -> None:
        scales = {"means": self.means, "deviations": self.deviations}
        content = {
            "format": "regard-numbers",
            "version": 1,
            **scales,
            **({"names": self.names} if self.names else {}),
        }
        (folder / "numbers.json").write_text(json.dumps(content) + "\n", encoding="utf-8")

    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        keep, rows = parse_rows(
            raw, lambda text: _parse_numbers(text, self.separator, len(self.means))
        )
        check_not_empty(raw, keep)
        return keep, np.asarray(rows, np.float32)

    def build_writer(
        self, dim: int, config: ClassifierConfig, label_smoothing: float, pool: nn.Module
    ) -> VectorWriter:
        scales = {"means": self.means, "deviations": self.deviations}
        return NumberWriter(
            dim, **scales, error=config.regression_loss, pool=pool, dropout=config.dropout
        )

    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        return number_scores(answers, targets)

    def tables(self, answers: Tensor, targets: Tensor) -> dict[str, Any]:
        columns = zip(self._all_names(), answers.split(1, 1), targets.split(1, 1), strict=True)
        return (
            {"numbers": {n: number_scores(*pair) for n, *pair in columns}}
            if len(self.means) > 1
            else {}
        )

    def rank(self, answers: Tensor, n_best: int) -> list[list[Ranked]]:
        if n_best > 1:
            raise UserError(f"--n-best must be 1 for a run that predicts numbers, got {n_best}")
        return [[Ranked(text, 1.0)] for text in self.to_texts(answers)]

    def to_values(self, answers: Tensor) -> list[float | tuple[float, ...]]:
        rows = answers.double().tolist()
        return [row[0] for row in rows] if len(self.means) == 1 else [tuple(row) for row in rows]

    def to_json(self, output: Tensor, ranked: Sequence[Ranked]) -> ValuesAnswer:
        return {"values": dict(zip(self._all_names(), output[0].double().tolist(), strict=True))}

    def to_reference(self, target: Tensor) -> dict[str, float]:
        return {
            name: float(str(number))
            for name, number in zip(self._all_names(), target.numpy(), strict=True)
        }

    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        rows, shift = torch.diag(torch.tensor(self.deviations)), torch.tensor(self.means)
        return ScoreWeights(list(self._all_names()[:most]), rows[:most], shift[:most], "number")

    def _all_names(self) -> Sequence[str]:
        """Return value, or value 1, value 2 ..., unless columns were chosen by name."""
        count = len(self.means)
        return self.names or (
            ("value",) if count == 1 else [f"value {i}" for i in range(1, count + 1)]
        )

    def to_texts(self, targets: Tensor) -> list[str]:
        return [self.separator.join(f"{number:.5g}" for number in row) for row in targets.tolist()]

    @property
    def signature(self) -> str:
        scales = zip(
            self.names or ["a number"] * len(self.means), self.means, self.deviations, strict=True
        )
        return ", ".join(
            f"{name}, {mean:.4g} +- {deviation:.4g} in training" for name, mean, deviation in scales
        )

    def format_title(self, best: Ranked) -> str:
        return best.text


def _parse_numbers(text: str, separator: str, count: int | None) -> list[float]:
    """Return the `count` numbers of one input (None: at least one). Raises ValueError for anything
    else."""
    parts = split_list(text, separator)
    row = parse_numbers(parts, most=_MOST)
    if not row or len(row) != (count or len(row)):
        expected = (
            "a number"
            if count in (None, 1)
            else f"{count} numbers, separated by {separator!r} or a JSON list"
        )
        raise ValueError(f"expected {expected} (at most {_MOST:g})")
    return row
