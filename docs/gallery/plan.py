"""What the gallery shows of each recipe: test inputs by number, where its page is opened, and a line about it.

The numbers of queries fit the runs that docs/gallery/README.md names; of another run a page ignores what is not there.
"""

from dataclasses import dataclass
from urllib.parse import quote

from regard.look.map import Map, Seen
from regard.look.names import KINDS, Kind

__all__ = ["LOOKS", "SHOWN", "Look", "Shown", "View"]


@dataclass(frozen=True, kw_only=True)
class View:
    """What a page shows when it is opened."""

    name: str
    """Of the view, as its tab says it."""
    kind: Kind
    """Of the reads shown."""
    layer: int | None = None
    """From 1; the last if not given."""
    head: int = -1
    """From 0; -1: their mean."""
    scene: int = 0
    query: int | None = None
    key: int | None = None
    scale: str | None = None
    """"one" or "largest": the number of the darkest color; the page's choice if not given."""
    is_dark: bool = False

    def fragment(self, scenes: tuple[Seen, ...], prefix: str = "") -> str:
        """The address's part of one side (viewer/src/state.ts). Raises ValueError if nothing of the kind was read."""
        found: tuple[Map, ...] = scenes[self.scene].find(self.kind, layer=self.layer)
        if not found:
            raise ValueError(f"nothing of kind {self.kind!r} was read, in layer {self.layer or 'any'}")
        fields = {
            "scene": self.scene,
            "read": found[-1].name,
            "head": self.head,
            "view": self.name,
            "scale": self.scale,
            "query": self.query,
            "key": self.key,
        }
        return "&".join(f"{prefix}{name}={quote(str(value))}" for name, value in fields.items() if value is not None)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is shown of a recipe's run."""

    inputs: tuple[int, ...]
    """Numbers of test inputs."""
    view: View
    about: str
    beam: int | None = None
    """Hypotheses of the search; the run's own if not given."""
    kinds: tuple[Kind, ...] = KINDS
    """Reads that the page holds; all of a large picture's would be megabytes."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A picture for docs/look.md."""

    page: str
    view: View
    beside: str | None = None
    """Another page, whose first capture stands on the other side."""
    other: View | None = None
    """What that side shows."""


_DATES = (10, 13, 7, 14, 5, 112)

SHOWN = {
    "dates": Shown(
        inputs=_DATES,
        beam=4,
        view=View(name="alignment", kind="cross"),
        about="Which pieces of the date were read for each character of its ISO form; four hypotheses, step by step.",
    ),
    "dates-recurrent": Shown(
        inputs=_DATES,
        beam=4,
        view=View(name="alignment", kind="recurrent"),
        about="The same dates, read by a recurrent network with additive attention.",
    ),
    "reviews": Shown(
        inputs=(6, 7, 9, 11, 21, 3),
        view=View(name="links", kind="pooling", head=2, query=0, scale="largest"),
        about="Which words of a review its class was read from.",
    ),
    "tags": Shown(
        inputs=(23, 8, 14, 1, 7),
        view=View(name="links", kind="encoder self", layer=2, head=2, query=5),
        about="Which words tell that a number is a day and no page: each word reads the others.",
    ),
    "language": Shown(
        inputs=(37, 30, 10, 36, 13),
        view=View(name="alignment", kind="decoder self", layer=4, head=3),
        about="What each character read of those before it: one head looks back at the digit that comes next.",
    ),
    "language-self-attentive": Shown(
        inputs=(0, 5, 7, 2),
        view=View(name="chain", kind="chain"),
        about="A recurrent network whose state reads its own past states: the chain, step by step.",
    ),
    "images": Shown(
        inputs=(7, 4, 2, 11, 1, 6),
        view=View(name="image", kind="encoder self", layer=1, query=5),
        about="What the places of a handwritten digit read of one another, and the answer of all of them.",
    ),
    "boxes": Shown(
        inputs=(2, 5),
        kinds=("cross",),
        view=View(name="image", kind="cross", layer=1, head=2, query=0),
        about="Where each query looked that found a shape.",
    ),
    "events": Shown(
        inputs=(0, 1, 21),
        kinds=("decoder self", "cross"),
        view=View(name="sound", kind="cross", head=3, query=1),
        about="When each query listened that heard a sound, over the spectrogram.",
    ),
    "tracks": Shown(
        inputs=(0, 6, 12, 17),
        view=View(name="plane", kind="encoder self", query=0),
        about="Whom each walker regards: ways seen, ways foretold, and lines to those who were read.",
    ),
    "draw": Shown(
        inputs=(2, 4, 6),
        view=View(name="image", kind="cross", key=1),
        about="Where a drawing read each word of its text.",
    ),
}
"""By the name of the page: the recipe, with the core's name unless that is the recipe's own."""

LOOKS = {
    "alignment": Look(page="dates", view=View(name="alignment", kind="cross")),
    "heads": Look(page="dates", view=View(name="heads", kind="cross")),
    "links": Look(page="dates", view=View(name="links", kind="cross")),
    "chain": Look(page="language-self-attentive", view=View(name="chain", kind="chain")),
    "image": Look(page="draw", view=View(name="image", kind="cross", key=1)),
    "boxes": Look(page="boxes", view=View(name="image", kind="cross", layer=1, head=2, query=0)),
    "plane": Look(page="tracks", view=View(name="plane", kind="encoder self", query=0)),
    "sound": Look(page="events", view=View(name="sound", kind="cross", head=3, query=1)),
    "steps": Look(page="dates", view=View(name="steps", kind="cross", scene=5, query=8)),
    "summary": Look(page="dates", view=View(name="summary", kind="cross")),
    "compare": Look(
        page="dates",
        view=View(name="alignment", kind="cross"),
        beside="dates-recurrent",
        other=View(name="alignment", kind="recurrent"),
    ),
    "dark": Look(page="boxes", view=View(name="image", kind="cross", layer=2, head=1, query=1, is_dark=True)),
}
"""Pictures docs/images/look-NAME.png, by name."""
