"""Targets of recipes from inputs to one vector (reviews, images): a class, labels, or numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray
from torch import Tensor

from regard.data.bad_rows import BadRows
from regard.data.config import ImagesConfig, LabeledConfig, OnBad
from regard.errors import UserError
from regard.models.config import ClassifierConfig
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.recipe import Answer

TargetData = LabeledConfig | ImagesConfig
"""Settings of data with targets."""


class RawTargets(NamedTuple):
    """Targets of some inputs as texts, not parsed yet."""

    texts: Sequence[str]
    where: Callable[[int], str]
    """Returns the file and line of an input, for messages."""
    origin: str
    nouns: tuple[str, str]
    """Nouns for a target and an input in messages: ("label", "text")."""
    on_bad: OnBad


class ScoreWeights(NamedTuple):
    """Scores of an answer as combinations of those of the output layer: rows @ scores + shift."""

    names: list[str]
    rows: Tensor
    """(combination, size)"""
    shift: Tensor
    """(combination,)"""
    quantity: str
    """Kind of quantity, such as "log-odds"."""


class Target(ABC):
    """Kind of targets of a run: encoding, output layer, scores, format of answers."""

    metric: str
    higher_is_better: bool = True
    columns: Mapping[str, type]
    """Columns of an answer in a table, and their types."""
    signature: str
    """Description of the possible answers: "3 classes: bad, good, odd"."""

    @classmethod
    @abstractmethod
    def fit(cls, raw: RawTargets, data: TargetData) -> Self:
        """Create the target from the training data: names of classes or labels, or scales."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, data: TargetData) -> Self:
        """Read the artifacts."""

    @abstractmethod
    def artifacts(self) -> dict[str, Any]:
        """Return the artifacts by file name (`Recipe.fit`)."""

    @abstractmethod
    def encode(self, raw: RawTargets) -> tuple[list[int], NDArray[Any]]:
        """Return the indices of the inputs with a valid target, and these targets.

        Raises UserError naming the first invalid one, unless on_bad is skip.
        """

    @abstractmethod
    def build_writer(self, dim: int, config: ClassifierConfig, **options: Any) -> VectorWriter:
        """Return the output layer that maps the vectors of a pool to outputs.

        options: pool and label_smoothing.
        """

    @abstractmethod
    def metrics(
        self, outputs: Tensor, targets: Tensor, threshold: float | None = None
    ) -> dict[str, Any]:
        """Return the metrics of all inputs, and of each class, label or number."""

    @abstractmethod
    def answer(self, output: Tensor, n_best: int = 1, threshold: float | None = None) -> Answer:
        """Return the answer for one output (size,), with the `n_best` best ones as `ranked`.

        threshold: lowest probability of a class that is answered, or of a predicted label.
        """

    @abstractmethod
    def reference(self, target: Any) -> object:
        """Return the target of one input in the form of `Answer.json`."""

    @abstractmethod
    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        """Return at most `most` scores of an output (size,) to explain, the best first."""

    @abstractmethod
    def log_prob(self, output: Tensor, threshold: float | None = None) -> Tensor:
        """Return log p of the answer for an output (size,), also of a class that is rejected."""


def parse_rows(raw: RawTargets, parse: Callable[[str], Any]) -> tuple[list[int], list[Any]]:
    """Return the indices of the targets that `parse` accepts, and the parsed targets.

    Raises UserError naming the first for which `parse` raises one, unless on_bad is skip.
    """
    keep, rows = [], []
    bad_rows = BadRows(raw.on_bad, f"{raw.nouns[1]}s")
    for i, text in enumerate(raw.texts):
        with bad_rows.catch(raw.where(i)):
            rows.append(parse(text))
            keep.append(i)
    if not keep:
        raise UserError(f"{raw.origin}: no {raw.nouns[1]} has a {raw.nouns[0]} that can be used")
    return keep, rows
