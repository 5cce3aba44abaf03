"""Contents of the gallery for each recipe: indices of test inputs, initial state of the page, and a
description.

The indices of queries belong to the runs of docs/gallery/README.md; for other runs a page ignores
invalid ones.
"""

from dataclasses import dataclass
from urllib.parse import quote

from regard.layers.read import KINDS, Kind
from regard.look.maps import AttentionMap, SampleMaps

__all__ = ["LOOKS", "PAGES", "GalleryPage", "Look", "View"]


@dataclass(frozen=True, kw_only=True)
class View:
    """Initial state of a page."""

    name: str
    """Name of the view, as on its tab."""
    kind: Kind
    """Kind of the reads."""
    layer: int | None = None
    """From 1; the last if not given."""
    head: int = -1
    """From 0; -1: mean over heads."""
    sample: int = 0
    query: int | None = None
    key: int | None = None
    scale: str | None = None
    """"one" or "largest": value of the darkest color; the default of the page if not given."""
    is_dark: bool = False

    def fragment(self, samples: tuple[SampleMaps, ...], prefix: str = "") -> str:
        """Return the fragment of one side (viewer/src/state.ts). Raises ValueError if there is no
        such read."""
        maps: tuple[AttentionMap, ...] = samples[self.sample].find(self.kind, layer=self.layer)
        if not maps:
            raise ValueError(
                f"there is no read of kind {self.kind!r} in layer {self.layer or 'any'}"
            )
        fields = {
            "sample": self.sample,
            "read": maps[-1].name,
            "head": self.head,
            "view": self.name,
            "scale": self.scale,
            "query": self.query,
            "key": self.key,
        }
        return "&".join(
            f"{prefix}{name}={quote(str(value))}"
            for name, value in fields.items()
            if value is not None
        )


@dataclass(frozen=True, kw_only=True)
class GalleryPage:
    """Page of the gallery."""

    inputs: tuple[int, ...]
    """Indices of test inputs."""
    view: View
    about: str
    beam: int | None = None
    """Beam size; that of the run if not given."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of reads on the page; all reads of a large image would take megabytes."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Screenshot for docs/look.md."""

    page: str
    view: View
    compare: str | None = None
    """Another page, whose capture is on the other side."""
    other: View | None = None
    """State of the other side."""


_DATES = (10, 13, 7, 14, 5, 112)

PAGES = {
    "dates": GalleryPage(
        inputs=_DATES,
        beam=4,
        view=View(name="alignment", kind="cross"),
        about="Cross-attention from each character of the ISO date to the source; beam search with "
        "four hypotheses.",
    ),
    "dates-recurrent": GalleryPage(
        inputs=_DATES,
        beam=4,
        view=View(name="alignment", kind="recurrent"),
        about="The same dates in a recurrent encoder-decoder with additive (Bahdanau) attention.",
    ),
    "reviews": GalleryPage(
        inputs=(6, 7, 9, 11, 21, 3),
        view=View(name="links", kind="pooling", head=2, query=0, scale="largest"),
        about=(
            "Attention pooling: the weights of the words of a review in its classification. The "
            "model was trained on "
            '4,000 generated reviews of some 60 words, such as "the plot was never dull"; it knows '
            "no other words."
        ),
    ),
    "tags": GalleryPage(
        inputs=(23, 8, 14, 1, 7),
        view=View(name="links", kind="encoder self", layer=2, head=2, query=5),
        about="Encoder self-attention of a token tagger: the context that makes a number a day "
        "instead of a page.",
    ),
    "language": GalleryPage(
        inputs=(37, 30, 10, 36, 13),
        view=View(name="alignment", kind="decoder self", layer=4, head=3),
        about="Causal self-attention of a language model: one head attends to the digit that comes "
        "next.",
    ),
    "language-self-attentive": GalleryPage(
        inputs=(0, 5, 7, 2),
        view=View(name="chain", kind="chain"),
        about="A recurrent network that attends to its own past states, step by step.",
    ),
    "images": GalleryPage(
        inputs=(7, 4, 2, 11, 1, 6),
        view=View(name="image", kind="encoder self", layer=1, query=5),
        about="Encoder self-attention between patches of a handwritten digit, and the pooling of "
        "its classification.",
    ),
    "boxes": GalleryPage(
        inputs=(2, 5),
        kinds=("cross",),
        view=View(name="image", kind="cross", layer=1, head=1, query=0),
        about="Cross-attention of the object queries of a detector to the image.",
    ),
    "points": GalleryPage(
        inputs=(0, 3),
        kinds=("cross",),
        view=View(name="image", kind="cross", layer=2, query=3),
        about="Cross-attention of the object queries of a point cloud detector to groups of "
        "points, seen from above.",
    ),
    "caption": GalleryPage(
        inputs=(18, 2, 33, 25),
        kinds=("cross",),
        view=View(name="image", kind="cross", layer=2, query=6),
        about="Cross-attention from each word of a caption to the image.",
    ),
    "events": GalleryPage(
        inputs=(0, 1, 21),
        kinds=("decoder self", "cross"),
        view=View(name="sound", kind="cross", head=3, query=1),
        about="Cross-attention of the event queries of a detector to the spectrogram.",
    ),
    "tracks": GalleryPage(
        inputs=(0, 6, 12, 17),
        view=View(name="plane", kind="encoder self", query=0),
        about="Attention between pedestrians: observed tracks, predicted tracks, and weights as "
        "lines.",
    ),
    "draw": GalleryPage(
        inputs=(2, 4, 6),
        view=View(name="image", kind="cross", key=1),
        about="Cross-attention from each place of a generated image to the words of its text.",
    ),
}
"""By the name of the page: the recipe, with the name of the core unless it is the recipe's
default."""

LOOKS = {
    "alignment": Look(page="dates", view=View(name="alignment", kind="cross")),
    "heads": Look(page="dates", view=View(name="heads", kind="cross")),
    "links": Look(page="dates", view=View(name="links", kind="cross")),
    "chain": Look(page="language-self-attentive", view=View(name="chain", kind="chain")),
    "image": Look(page="draw", view=View(name="image", kind="cross", key=1)),
    "boxes": Look(page="boxes", view=View(name="image", kind="cross", layer=1, head=1, query=0)),
    "plane": Look(page="tracks", view=View(name="plane", kind="encoder self", query=0)),
    "sound": Look(page="events", view=View(name="sound", kind="cross", head=3, query=1)),
    "steps": Look(page="dates", view=View(name="steps", kind="cross", sample=5, query=8)),
    "summary": Look(page="dates", view=View(name="summary", kind="cross")),
    "compare": Look(
        page="dates",
        view=View(name="alignment", kind="cross"),
        compare="dates-recurrent",
        other=View(name="alignment", kind="recurrent"),
    ),
    "dark": Look(
        page="boxes", view=View(name="image", kind="cross", layer=1, head=3, query=1, is_dark=True)
    ),
}
"""Screenshots docs/images/look-NAME.png, by name."""
