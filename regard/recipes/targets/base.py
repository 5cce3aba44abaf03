"""Targets of recipes that map an input to one vector (reviews, images): a class, several labels, or
numbers.

target = get_target_type(data).fit(raw, data)    names of classes or labels, scales of numbers
target.encode(raw)              targets as rows of an array; errors name the file and the line
target.build_writer(...)        the output layer
target.score(answers, targets)  metrics; `select_metric` names the one that selects the best
checkpoint target.rank(answers, n)         answers as text, best first
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import ImagesConfig, LabeledConfig, OnBad
from regard.errors import UserError
from regard.look.sample import format_score
from regard.models.config import ClassifierConfig
from regard.models.writers.vector import VectorWriter
from regard.recipes.base.recipe import Ranked

MAX_SHOWN, _EXCERPT = 10, 60


class RawTargets(NamedTuple):
    """Targets of some inputs as the files have them, not parsed yet."""

    texts: Sequence[str]
    """A label, labels or numbers, as text."""
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
    """Kind of targets of a run: encodes them, builds the output layer, scores and formats
    answers."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @classmethod
    def select_metric(cls, data: LabeledConfig | ImagesConfig) -> str:
        """Return the metric that selects the best checkpoint."""
        return cls.metric

    @classmethod
    @abstractmethod
    def fit(cls, raw: RawTargets, data: LabeledConfig | ImagesConfig) -> Self:
        """Create the target from the training data. Raises UserError if there is nothing to
        learn."""

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

        Raises UserError naming the first invalid one with its line, unless on_bad is skip, or if
        none is valid.
        """

    @abstractmethod
    def build_writer(
        self, dim: int, config: ClassifierConfig, label_smoothing: float, pool: nn.Module
    ) -> VectorWriter:
        """Return the output layer that maps the vectors of `pool` to answers."""

    @abstractmethod
    def score(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of the answers."""

    @abstractmethod
    def tables(self, answers: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return the metrics of each class, label or number, for reports."""

    @abstractmethod
    def rank(self, answers: Tensor, n_best: int) -> list[list[Ranked]]:
        """Return the best answers of each row, best first. Raises UserError if n_best is too
        large."""

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

    @abstractmethod
    def to_json(self, output: Tensor, ranked: Sequence[Ranked]) -> Mapping[str, object]:
        """Return an output (1, ...) and its best answers as JSON."""

    @abstractmethod
    def to_reference(self, target: Tensor) -> object:
        """Return the target of one input as JSON, in the form that `to_json` gives its
        prediction."""

    @abstractmethod
    def score_weights(self, output: Tensor, most: int) -> ScoreWeights:
        """Return at most `most` scores of an output (1, ...) to explain, the best first."""

    def format_title(self, best: Ranked) -> str:
        """Return an answer for the title of a figure."""
        return f"{best.text} ({format_score(best.score)})"


def parse_rows(
    raw: RawTargets, parse: Callable[[str], list[Any]]
) -> tuple[list[int], list[list[Any]]]:
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


def check_not_empty(raw: RawTargets, keep: Sequence[int]) -> None:
    """Raise UserError if no row is left."""
    if not keep:
        raise UserError(f"{raw.origin}: no {raw.nouns[1]} has a {raw.nouns[0]} that can be used.")


def _target_error(raw: RawTargets, index: int, problem: str) -> UserError:
    hint = f"With --data.on-bad skip, such {raw.nouns[1]}s are left out and counted."
    return UserError(f"{raw.where(index)}: {problem}. {hint}")
