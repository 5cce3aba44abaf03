"""Types of answers as JSON: of `regard predict --json` and of the service. (no torch)

A recipe names the type of its answers in its `Entry`. docs/answers.md is the same as a table.
"""

import math
from typing import Any, NamedTuple, NotRequired, TypedDict

from regard.settings.ranges import Fraction


class GeneratedText(TypedDict):
    """One of the texts that a search found."""

    text: str
    score: float
    """log_prob / length^length_penalty, in nats; with `method` mbr, the mean chrF."""
    log_prob: float
    """Sum of the log-probabilities of its tokens, in nats."""
    finished: bool
    """False if it is cut at the maximum length."""


class GeneratedTexts(TypedDict):
    """Texts that a search found for an input."""

    outputs: list[GeneratedText]
    """n_best texts, best first."""


class TextScore(TypedDict):
    """Log-probability of a given text, in nats, summed over its tokens."""

    log_prob: float
    tokens: int
    perplexity: float | None
    """exp(-log_prob / tokens); None without tokens."""
    unknown: int
    """Unknown tokens of the text, and of the source of a pair, each scored or read as <unk>."""


def text_score(log_prob: float, tokens: int, unknown: int) -> TextScore:
    """Return a log-probability with its perplexity, at most e^100 as in `evaluate`."""
    perplexity = math.exp(min(-log_prob / tokens, 100.0)) if tokens else None
    return {"log_prob": log_prob, "tokens": tokens, "perplexity": perplexity, "unknown": unknown}


class ContinuedText(TypedDict):
    """Continuation of a text."""

    text: str
    """What follows the input."""
    score: float
    """Mean log-probability of its tokens, in nats."""


class ClassAnswer(TypedDict):
    """The most probable of several classes."""

    label: str
    """Its name; <reject> if its probability is below the threshold."""
    probability: Fraction
    labels: dict[str, Fraction]
    """Probability by class, largest first; n_best of them if it is above 1."""


class LabelsAnswer(TypedDict):
    """Labels that hold for an input."""

    predicted: list[str]
    """Labels with a probability of at least the threshold, by default 0.5."""
    labels: dict[str, Fraction]
    """Probability by label, largest first; n_best of them if it is above 1."""


class NumbersAnswer(TypedDict):
    """Numbers that are predicted for an input."""

    values: dict[str, float]
    """Number by name of its column; `value`, or `value 1`, `value 2` ... without names."""


class NamedEntity(TypedDict):
    """Tokens in a row that are one entity."""

    label: str
    start: int
    """Its first character, from 0, in the text, or in the tokens joined by spaces."""
    end: int
    """The character after its last one."""
    text: str
    """Its characters."""
    start_token: int
    """Its first token, from 0."""
    end_token: int
    """The token after its last one."""


class TagsAnswer(TypedDict):
    """Tags of the tokens of a text."""

    tokens: list[str]
    offsets: list[list[int]]
    """First character of each token, and the one after it, in the text, or in the tokens joined by
    spaces."""
    tags: list[str]
    """A tag for each token."""
    entities: list[NamedEntity]
    """Entities in the order of the text; empty if the tags are of no scheme of entities."""


class BoxInImage(NamedTuple):
    """Object in an image, with its box in pixels from the top left corner."""

    label: str
    score: Fraction
    x: float
    """Left side, in pixels."""
    y: float
    """Top side, in pixels."""
    width: float
    """Pixels."""
    height: float
    """Pixels."""


class BoxesInImage(TypedDict):
    """Objects in an image."""

    boxes: list[BoxInImage]
    """Objects with a score of at least the threshold, best first."""


class BoxInSpace(NamedTuple):
    """Object in a point cloud, with its box in meters."""

    label: str
    score: Fraction
    x: float
    """Center, in meters."""
    y: float
    """Center, in meters."""
    z: float
    """Center, in meters."""
    dx: float
    """Size along x, in meters."""
    dy: float
    """Size along y, in meters."""
    dz: float
    """Size along z, in meters."""


class BoxesInSpace(TypedDict):
    """Objects in a point cloud."""

    boxes: list[BoxInSpace]
    """Objects with a score of at least the threshold, best first."""


class EventInSound(TypedDict):
    """Event in a sound."""

    label: str
    onset: float
    """Its begin, in seconds from that of the sound."""
    duration: float
    """Seconds."""
    score: Fraction


class EventsInSound(TypedDict):
    """Events in a sound."""

    events: list[EventInSound]
    """Events with a score of at least the threshold, by onset."""


Positions = list[tuple[float, float]]
"""x and y in each predicted frame, in meters."""


class Forecast(TypedDict):
    """Future of one person."""

    id: str
    """Number of the person in the recording."""
    positions: Positions
    """x and y in each predicted frame, in meters."""


class Forecasts(TypedDict):
    """Futures of the people in a recording."""

    frames: list[float]
    """Numbers of the predicted frames."""
    tracks: list[Forecast]


class PossiblePath(TypedDict):
    """One of the possible futures of a person."""

    probability: Fraction
    positions: Positions
    """x and y in each predicted frame, in meters."""


class ForecastOfPaths(Forecast):
    """Possible futures of one person, of which `positions` is the most probable one."""

    paths: list[PossiblePath]
    """All paths, the most probable first."""


class ForecastsOfPaths(TypedDict):
    """Possible futures of the people in a recording."""

    frames: list[float]
    """Numbers of the predicted frames."""
    tracks: list[ForecastOfPaths]


class CodeAnswer(TypedDict):
    """Code of an input, and the error of its reconstruction."""

    code: list[float]
    error: float
    """Mean squared error."""
    energy: NotRequired[float]
    """F(y) = C + R, if it is asked for (energy)."""


class QuantizedCodeAnswer(TypedDict):
    """Code of an image as a grid of entries of a codebook, and the error of its reconstruction."""

    code: list[list[int]]
    """Number of the entry, by row and column."""
    error: float
    """Mean squared error."""
    energy: NotRequired[float]
    """F(y) = C + R, if it is asked for (energy)."""


class DrawnImage(TypedDict):
    """Image that was drawn: its pixels, or the file that the command line wrote."""

    pixels: NotRequired[list[list[list[int]]]]
    """Values from 0 to 255 by channel, row and column."""
    file: NotRequired[str]
    """Name of the file, of the command line."""
    score: float
    """Mean log-probability of its codes, in nats."""


class DrawnImages(TypedDict):
    """Images that were drawn for a text."""

    images: list[DrawnImage]
    """n_best images, each drawn with a seed of its own."""


def target_answer(config: Any) -> type[Any]:
    """Return the type of the answers of a run that predicts a class, labels or numbers."""
    types = {"class": ClassAnswer, "labels": LabelsAnswer, "number": NumbersAnswer}
    return types[config.data.target]
