"""Samples of a capture: one input and its output, with labeled axes, pictures and decoding steps.

    sample.axes["source"]      keys of cross-attention: tokens, patches of an image, times ...
    sample.pictures["image"]   picture that the places of such an axis lie on
    sample.steps[3]            output token of step 3, its alternatives and the beams

Names of axes, which the roles of reads refer to (regard.layers.read.Role):

    source          input of the core
    queries         queries of a set, or the single query of a pooling read
    output          output tokens
    decoder input   BOS, then the output tokens shifted right
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Place = tuple[float, ...] | None


def format_score(score: float) -> str:
    """Return a score within [0, 1] with two decimals; only 0 and 1 themselves print as such."""
    if 0 < score < 0.005:
        return "<.01"
    return ">.99" if 0.995 <= score < 1 else f"{score:.2f}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Labels of the queries or the keys of a read."""

    labels: tuple[str, ...]
    kind: str = "item"
    """Kind of its entries, in the singular: token, patch, time, agent, box, event ..."""
    picture: str = ""
    """Name of the picture that places lie on; empty if there is none."""
    places: tuple[Place, ...] = ()
    """Place of each entry; None for an entry without one. On an image: left, top, width, height as
    fractions of its sides. On a sound: start and stop in seconds. On a plane: the index of the
    track."""

    def __len__(self) -> int:
        return len(self.labels)

    def reverse(self) -> "Axis":
        return replace(self, labels=self.labels[::-1], places=self.places[::-1])

    def prepend(self, label: str) -> "Axis":
        """Return the axis with an entry without a place in front."""
        places = (None, *self.places) if self.places else ()
        return replace(self, labels=(label, *self.labels), places=places)

    @classmethod
    def from_count(cls, count: int, kind: str = "item") -> "Axis":
        """Return an axis whose labels are the numbers from 0."""
        return cls(labels=tuple(map(str, range(count))), kind=kind)

    @classmethod
    def grid(cls, rows: int, columns: int, *, picture: str, kind: str = "patch") -> "Axis":
        """Return the axis of an image in equal patches, row by row."""
        labels: list[str] = []
        places: list[Place] = []
        for index in range(rows * columns):
            i, j = divmod(index, columns)
            labels.append(f"row {i + 1}, column {j + 1}")
            places.append((j / columns, i / rows, 1 / columns, 1 / rows))
        return cls(labels=tuple(labels), kind=kind, picture=picture, places=tuple(places))


@dataclass(frozen=True, kw_only=True)
class DetectedBox:
    """Object detected in an image."""

    label: str
    score: float
    place: tuple[float, float, float, float]
    """Left, top, width, height as fractions of the image's sides."""
    query: int
    """Index of its query on the axis "queries"."""


@dataclass(frozen=True, kw_only=True)
class DetectedEvent:
    """Event detected in a sound; onset and duration in seconds."""

    label: str
    score: float
    onset: float
    duration: float
    query: int


@dataclass(frozen=True, kw_only=True)
class Track:
    """Observed and predicted positions of an agent."""

    label: str
    history: tuple[tuple[float, float], ...]
    future: tuple[tuple[float, float], ...] = ()


class Image(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="kind", tag="image"):
    """Pixels (height, width, 3) or (height, width) in uint8, and the detected objects."""

    pixels: NDArray[np.uint8]
    boxes: tuple[DetectedBox, ...] = ()
    labels: tuple[str, ...] = ()
    """All labels of the model; a label has the same color in all pictures."""
    original: NDArray[np.uint8] | None = None
    """Pixels before they were scaled to fit into `pixels`, in its upper left corner. Figures of
    boxes show them if they are known; files of captures do not hold them."""


class Sound(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="kind", tag="sound"):
    """Spectrogram (bands, frames), lowest band first, duration in seconds, detected events."""

    bands: NDArray[np.floating[Any]]
    seconds: float
    events: tuple[DetectedEvent, ...] = ()
    labels: tuple[str, ...] = ()
    begin: float = 0.0
    """Start of this chunk in a longer sound, in seconds; chunks are consecutive samples."""
    hertz: float = 0.0
    """Highest frequency of the bands, evenly spaced in mel from 0 on; 0 if not known."""


class Plane(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="plane"):
    """Tracks on a plane."""

    tracks: tuple[Track, ...]
    unit: str = "m"


Picture = Image | Sound | Plane


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Candidate for the token of a step."""

    token: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Hypothesis that was kept after a step."""

    text: str
    score: float
    """Log-probability so far."""
    is_prefix: bool
    """True if the output continues this hypothesis."""


@dataclass(frozen=True, kw_only=True)
class DecodingStep:
    """One step of a search."""

    token: str
    probability: float
    """Probability of the token, given those before it."""
    alternatives: tuple[Alternative, ...] = ()
    """Most probable tokens, in descending order."""
    beams: tuple[Beam, ...] = ()
    """Best first; empty in greedy search."""


@dataclass(frozen=True, kw_only=True)
class MarkedText:
    """Text whose parts may have labels, such as named entities."""

    parts: tuple[tuple[str, str], ...]
    """Texts in order, each with its label, which may be empty."""
    labels: tuple[str, ...]
    """All labels of the model; a label has the same color in all texts."""

    @classmethod
    def from_spans(
        cls, text: str, spans: Sequence[tuple[int, int, str]], labels: Sequence[str]
    ) -> "MarkedText":
        """Return the text with spans (start, end, label) in characters, in their order."""
        parts, last = [], 0
        for start, end, label in spans:
            parts += [(text[last:start], ""), (text[start:end], label)]
            last = end
        parts.append((text[last:], ""))
        return cls(parts=tuple(part for part in parts if part[0]), labels=tuple(labels))


@dataclass(kw_only=True)
class Sample:
    """One input and its output, created and completed by the code that runs the model."""

    title: str = ""
    input: int = 0
    """Number of the input, from 1; 0 if it has none."""
    marked: MarkedText | None = None
    """Text with labels, the heading of the page in place of the title; None if there is none."""
    axes: dict[str, Axis] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    steps: tuple[DecodingStep, ...] = ()
    tokens: Callable[[Sequence[int]], Sequence[str]] | None = None
    """Returns the labels of output tokens by their ids; None if the output has no tokens."""
    text: Callable[[Sequence[int]], str] | None = None
    """Returns the text of output tokens, for titles and beams."""
    begin: str = ""
    """Label of the first token of the decoder input."""
    decoder_input: Sequence[str] = ()
    """Labels of the first tokens of the decoder input where ids are not enough (unknown words)."""
    output_ids: Sequence[int] = ()
    """Ids of the output, EOS included."""
    output: Axis | None = None
    """Axis of the output tokens, if they have more than labels: places of a generated image."""

    def metadata(self) -> dict[str, Any]:
        """Return what files and pages show beside pictures and maps, as JSON."""
        names = ("title", "marked", "axes", "steps")
        return {name: msgspec.to_builtins(getattr(self, name)) for name in names}
