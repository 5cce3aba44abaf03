"""Answers as JSON: the form of the answer to one input, for each kind of recipe.

`Recipe.json` returns one of these; `regard predict --json` prints it after the number of the input
and its file or source. docs/answers.md lists them, with the recipes.
"""

from typing import Any, NamedTuple, NotRequired, Self, TypedDict

from regard.decode.hypothesis import Hypothesis


class OutputEntry(TypedDict):
    """One generated text."""

    text: str
    score: float
    """log_prob / length^length_penalty, by which outputs are ranked."""
    log_prob: float
    """Log-probability of all tokens, in nats."""
    finished: bool
    """False if the text was cut at the maximum length."""


class OutputsAnswer(TypedDict):
    """Generated texts, best first: dates, translate, caption."""

    outputs: list[OutputEntry]


class ClassAnswer(TypedDict):
    """One class: reviews and images with --data.target class."""

    label: str
    probability: float
    labels: dict[str, float]
    """Probability of each class, most probable first; of the best ones only with --n-best."""


class LabelsAnswer(TypedDict):
    """Any number of labels: reviews and images with --data.target labels."""

    predicted: list[str]
    """Labels whose probability is at least 0.5."""
    labels: dict[str, float]
    """Probability of each label, most probable first; of the best ones only with --n-best."""


class ValuesAnswer(TypedDict):
    """Numbers by name: reviews and images with --data.target number."""

    values: dict[str, float]


class Entity(TypedDict):
    """Span of tokens with one label."""

    label: str
    start: int
    """Index of the first token."""
    end: int
    """Index after the last token."""
    text: str
    start_char: NotRequired[int]
    """Offset of its first character in a text; not if the input has tokens."""
    end_char: NotRequired[int]
    """Offset after its last character."""


class TagsAnswer(TypedDict):
    """Tags of the tokens: tags."""

    tokens: list[str]
    tags: list[str]
    entities: list[Entity]
    """Spans of tags such as B-DAY (regard.recipes.metrics.tags: schemes); empty for other tags."""


class BoxesAnswer(TypedDict):
    """Detected boxes, highest score first: boxes (x, y, width, height in pixels), points (center
    and sizes, meters)."""

    boxes: list[dict[str, Any]]


class EventEntry(TypedDict):
    """Detected event; times in seconds."""

    label: str
    score: float
    onset: float
    duration: float


class EventsAnswer(TypedDict):
    """Detected events: events."""

    events: list[EventEntry]


class TrackEntry(TypedDict):
    """Predicted positions of one agent, one for each frame."""

    id: str
    positions: list[list[float]]


class TracksAnswer(TypedDict):
    """Predicted trajectories: tracks."""

    frames: list[float]
    tracks: list[TrackEntry]


class ContinuationAnswer(TypedDict):
    """Continuation of a text: language."""

    text: str
    score: float
    """Mean log-probability of its tokens, in nats."""


class CodeAnswer(TypedDict):
    """Code of an autoencoder: rebuild."""

    code: list[Any]
    error: float
    """Mean squared error of the reconstruction."""
    energy: NotRequired[float]
    """With --energy."""


class ImagesAnswer(TypedDict):
    """Files of generated images with their scores: draw."""

    images: list[dict[str, Any]]


class Output(NamedTuple):
    """Generated text with its scores."""

    text: str
    score: float
    log_prob: float
    finished: bool

    @classmethod
    def of(cls, hypothesis: Hypothesis, text: str) -> Self:
        """Return the output of a search."""
        return cls(text, hypothesis.score, hypothesis.log_prob, hypothesis.finished)

    def to_json(self) -> OutputEntry:
        """Return the output as JSON."""
        return {
            "text": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "finished": self.finished,
        }
