"""What a capture shows of one input and its answer: labeled axes, pictures that they lie on, steps of a search.

    scene.axes["source"]      what the keys of cross-attention are: tokens, patches of an image, times of a sound ...
    scene.pictures["image"]   what the places of such an axis lie on
    scene.steps[3]            the token said in step 3, its alternatives, the beams

Names of axes, by which reads find theirs (regard.look.names):

    source    what the core takes in             said      what is said, token by token
    queries   the queries of a set, or of one    fed       what the decoder is fed: a begin symbol, then what was said
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Place = tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What the queries or the keys of a read are.

    Raises: ValueError if there are places, but not one for each label.
    """

    labels: tuple[str, ...]
    what: str = "item"
    """One entry, in the singular: token, patch, time, person, box, event ..."""
    on: str = ""
    """The picture that places lie on; empty if there is none."""
    places: tuple[Place, ...] = ()
    """Where each entry lies; None for one that lies nowhere. On an image: left, top, width, height as shares of its
    sides. On a sound: start and stop in seconds. On a plane: the number of the track."""

    def __post_init__(self) -> None:
        if self.places and len(self.places) != len(self.labels):
            raise ValueError(f"places must be one for each of {len(self.labels)} labels, but are {len(self.places)}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: Sequence[int]) -> "Axis":
        """Some entries."""
        places = tuple(self.places[i] for i in numbers) if self.places else ()
        return Axis(labels=tuple(self.labels[i] for i in numbers), what=self.what, on=self.on, places=places)

    def reversed(self) -> "Axis":
        """The same from the end."""
        return self.take(range(len(self) - 1, -1, -1))

    def after(self, label: str) -> "Axis":
        """The same behind an entry that lies nowhere."""
        places = (None, *self.places) if self.places else ()
        return Axis(labels=(label, *self.labels), what=self.what, on=self.on, places=places)

    @classmethod
    def numbered(cls, count: int, what: str = "item") -> "Axis":
        """Entries of which nothing is known but their number."""
        return cls(labels=tuple(str(number) for number in range(count)), what=what)

    @classmethod
    def grid(cls, rows: int, columns: int, *, on: str, what: str = "patch", count: int | None = None) -> "Axis":
        """Equal parts of an image, row by row; of `count` entries those behind them lie nowhere."""
        places: list[Place] = [
            (j / columns, i / rows, 1 / columns, 1 / rows) for i in range(rows) for j in range(columns)
        ]
        labels = [f"row {i + 1}, column {j + 1}" for i in range(rows) for j in range(columns)]
        return cls(labels=tuple(labels[:count]), what=what, on=on, places=tuple(places[:count]))


@dataclass(frozen=True, kw_only=True)
class Box:
    """Something found in an image."""

    label: str
    score: float
    place: tuple[float, float, float, float]
    """Left, top, width, height as shares of the image's sides."""
    query: int
    """The entry of the axis "queries" that found it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something heard in a sound; seconds."""

    label: str
    score: float
    onset: float
    duration: float
    query: int


@dataclass(frozen=True, kw_only=True)
class Track:
    """Where someone was, and will be."""

    label: str
    seen: tuple[tuple[float, float], ...]
    ahead: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Image:
    """Pixels (height, width, 3) or (height, width) of bytes, and what was found in them."""

    pixels: NDArray[np.uint8]
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Sound:
    """A spectrogram (bands, frames), lowest band first, of so many seconds, and what was heard in it."""

    bands: NDArray[np.floating[Any]]
    seconds: float
    events: tuple[Event, ...] = ()
    begin: float = 0.0
    """Of a piece of a longer sound, whose pieces are scenes that follow one another: where it begins, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Ways over a plane."""

    tracks: tuple[Track, ...]
    unit: str = "m"


Picture = Image | Sound | Plane


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A token that might have been said."""

    token: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Beam:
    """A hypothesis that was alive after a step."""

    text: str
    score: float
    """Log-probability so far."""
    chosen: bool
    """Whether the answer is one of its continuations."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a search."""

    token: str
    probability: float
    """Of the token said, given those before it."""
    alternatives: tuple[Alternative, ...] = ()
    """The likeliest, largest first."""
    beams: tuple[Beam, ...] = ()
    """Best first; none in greedy search."""


@dataclass(kw_only=True)
class Scene:
    """One input and its answer. Whoever runs the model makes it, and completes it once there is an answer."""

    title: str = ""
    axes: dict[str, Axis] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    tokens: Callable[[Sequence[int]], Sequence[str]] | None = None
    """Labels of what is said, from its ids; None if nothing is said token by token."""
    text: Callable[[Sequence[int]], str] | None = None
    """The same as one text, for titles and beams."""
    begin: str = ""
    """Label of what the decoder is fed first."""
    fed: Sequence[str] = ()
    """Labels of the first tokens that are fed, where they say more than ids: unknown words as they stand in a text."""
    ids: Sequence[int] = ()
    """What was said, its end included, as numbers."""
    said: Axis | None = None
    """What the tokens said are, where they are more than their labels: places of a picture that is drawn."""
