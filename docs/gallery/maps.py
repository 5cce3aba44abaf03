"""Draw docs/images/maps.svg: maps between vectors, sequences, images and sets, and their recipes.

python -m docs.gallery.maps [FILE.svg]

Source: lectures, E.1 to E.7.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from regard.look.figures.canvas import INK, PALE, open_figure

__all__ = ["MAPS", "draw_maps", "main"]

_INPUT, _STATE, _OUTPUT, _READ = "#fcdbc1", "#e6ebf0", "#9ec7fc", "#ffffff"
_WIDTH, _HEIGHT, _SIDE = 5.3, 7.0, 0.6
"""Width and height of a panel, and side of a vector, in units of a state's distance."""
_INCH = 0.34
"""Inches per unit."""
_Places = Sequence[tuple[float, float]]


def main(argv: list[str] | None = None) -> None:
    """Write the picture, and print its path; an existing file is replaced."""
    default = Path(__file__).parents[1] / "images" / "maps.svg"
    parser = argparse.ArgumentParser(description="Draw maps and their recipes, for the docs.")
    parser.add_argument("path", nargs="?", type=Path, default=default, metavar="FILE.svg")
    path = parser.parse_args(argv).path
    draw_maps(path)
    print(path)


def draw_maps(path: Path) -> None:
    """Draw all maps, five in a row, with their commands."""
    rows = -(-len(MAPS) // 5)
    with open_figure(path, overwrite=True) as figure:
        figure.set_size_inches(5 * _WIDTH * _INCH, (rows * _HEIGHT + 0.6) * _INCH)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 5 * _WIDTH), ylim=(-rows * _HEIGHT - 0.6, 0))
        axes.set_axis_off()
        for number, (title, about, commands, draw) in enumerate(MAPS):
            left, top = number % 5 * _WIDTH, -(number // 5) * _HEIGHT
            for text, y, size, color in (
                (title, 0.2, 7.5, INK),
                (about, 0.65, 6.2, PALE),
                ("\n".join(commands), 5.55, 6.5, INK),
            ):
                axes.text(left + 0.1, top - y, text, fontsize=size, color=color, va="top")
            draw(_Panel(axes, left + 0.3, top - 4.8))
        note = "orange: input;  gray: states;  blue: output;  dashed: a set, without order"
        axes.text(0.1, -rows * _HEIGHT - 0.1, note, fontsize=7, color=PALE, va="top")


class _Panel:
    """Axes of one map, with its origin at the lowest row of boxes."""

    def __init__(self, axes: Axes, left: float, bottom: float):
        self._axes, self._left, self._bottom = axes, left, bottom

    def boxes(self, places: _Places, color: str, labels: Sequence[str] = ()) -> None:
        """Draw a vector at each place, with its label."""
        for number, (x, y) in enumerate(places):
            self.box((x, y), (_SIDE, _SIDE), color)
            if labels:
                self.text(x, y, labels[number])

    def box(
        self, place: tuple[float, float], size: tuple[float, float], color: str, style: str = "-"
    ) -> None:
        """Draw a box of this width and height around a place."""
        (x, y), (width, height) = place, size
        corner = self._left + x - width / 2 + 0.08, self._bottom + y - height / 2 + 0.08
        shape = "round,pad=0.08,rounding_size=0.1"
        patch = FancyBboxPatch(corner, width - 0.16, height - 0.16, boxstyle=shape, linestyle=style)
        patch.set(facecolor=color, edgecolor=PALE, linewidth=0.7)
        self._axes.add_patch(patch)

    def text(self, x: float, y: float, text: str) -> None:
        place = self._left + x, self._bottom + y
        self._axes.text(*place, text, fontsize=6, color=INK, ha="center", va="center")

    def arrows(self, starts: _Places, ends: _Places) -> None:
        """Draw an arrow from the edge of each box to that of the next, up or to the right."""
        for (x, y), (to_x, to_y) in zip(starts, ends, strict=True):
            half = _SIDE / 2 + 0.04
            start = (x + half, y) if to_x > x else (x, y + half)
            end = (to_x - half, to_y) if to_x > x else (to_x, to_y - half)
            self._arrow(start, end)

    def chain(self, places: _Places) -> None:
        """Draw an arrow from each box to the next."""
        self.arrows(places[:-1], places[1:])

    def attention(self, y: float, below: _Places, above: _Places) -> None:
        """Draw a read: what is above reads what is below."""
        xs = [x for x, _ in [*below, *above]]
        middle, width = (min(xs) + max(xs)) / 2, max(1.4, max(xs) - min(xs) + 0.8)
        self.box((middle, y), (width, 0.42), _READ)
        self.text(middle, y, "attention")
        for x, from_y in below:
            self._arrow((x, from_y + _SIDE / 2 + 0.04), (x, y - 0.24))
        for x, to_y in above:
            self._arrow((x, y + 0.24), (x, to_y - _SIDE / 2 - 0.04))

    def _arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x, y), (to_x, to_y) = start, end
        tip, tail = (self._left + to_x, self._bottom + to_y), (self._left + x, self._bottom + y)
        style = {"arrowstyle": "->", "color": PALE, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
        self._axes.annotate("", tip, tail, arrowprops=style)

    def image(self) -> _Places:
        """Draw an image of 3 x 3 patches; return the places that arrows leave."""
        for index in range(9):
            i, j = divmod(index, 3)
            self.box((1.25 + 0.45 * j, -0.1 + 0.45 * i), (0.42, 0.42), _INPUT)
        return [(1.25 + 0.45 * j, 0.75) for j in range(3)]

    def set_of(self, places: _Places, color: str, labels: Sequence[str]) -> None:
        """Draw a set: vectors in a dashed frame."""
        xs, ys = zip(*places, strict=True)
        middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
        self.box(middle, (max(xs) - min(xs) + 1.0, max(ys) - min(ys) + 0.95), "#ffffff", "--")
        self.boxes(places, color, labels)

    def output_set(self, below: _Places, label: str) -> None:
        """Draw a set of outputs, each of which reads what is below."""
        self.attention(1.6, below, [(0.7, 2.6), (1.7, 2.6), (2.7, 2.6)])
        self.set_of([(0.7, 2.8), (1.7, 3.1), (2.7, 2.85)], _OUTPUT, [label] * 3)


def _row(count: int, y: float, first: float = 0.2) -> list[tuple[float, float]]:
    return [(first + number, y) for number in range(count)]


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(1, count + 1)]


def _vector_to_sequence(panel: _Panel) -> None:
    states, outputs = _row(4, 1.3), _row(4, 2.6)
    panel.boxes([(0.2, 0)], _INPUT, ["x"])
    panel.boxes(states, _STATE)
    panel.boxes(outputs, _OUTPUT, _names("y", 4))
    panel.arrows([(0.2, 0)], states[:1])
    panel.chain(states)
    panel.arrows(states, outputs)


def _sequence_to_vector(panel: _Panel) -> None:
    inputs, states = _row(4, 0), _row(4, 1.3)
    panel.boxes(inputs, _INPUT, _names("x", 4))
    panel.boxes(states, _STATE)
    panel.boxes([(3.2, 2.6)], _OUTPUT, ["y"])
    panel.arrows(inputs, states)
    panel.chain(states)
    panel.arrows(states[-1:], [(3.2, 2.6)])


def _sequence_to_vector_to_sequence(panel: _Panel) -> None:
    inputs, states = _row(2, 0, 0), [*_row(2, 1.3, 0), (2.15, 1.3), *_row(2, 1.3, 3.3)]
    outputs = _row(2, 2.6, 3.3)
    panel.boxes(inputs, _INPUT, _names("x", 2))
    panel.boxes([*states[:2], *states[3:]], _STATE)
    panel.box(states[2], (0.75, 0.9), _STATE)
    panel.text(*states[2], "h")
    panel.boxes(outputs, _OUTPUT, _names("y", 2))
    panel.arrows(inputs, states[:2])
    panel.chain(states)
    panel.arrows(states[3:], outputs)


def _sequence_to_sequence_at_each_step(panel: _Panel) -> None:
    inputs, states, outputs = _row(4, 0), _row(4, 1.3), _row(4, 2.6)
    panel.boxes(inputs, _INPUT, _names("x", 4))
    panel.boxes(states, _STATE)
    panel.boxes(outputs, _OUTPUT, _names("y", 4))
    panel.arrows(inputs, states)
    panel.chain(states)
    panel.arrows(states, outputs)


def _sequence_to_sequence(panel: _Panel) -> None:
    inputs, states, outputs = _row(4, 0), _row(3, 2.05, 0.7), _row(3, 3.2, 0.7)
    panel.boxes(inputs, _INPUT, _names("x", 4))
    panel.attention(1.05, inputs, states)
    panel.boxes(states, _STATE)
    panel.boxes(outputs, _OUTPUT, _names("y", 3))
    panel.chain(states)
    panel.arrows(states, outputs)


def _image_to_vector(panel: _Panel) -> None:
    patches = panel.image()
    panel.attention(1.6, patches, [(1.7, 2.8)])
    panel.boxes([(1.7, 2.8)], _OUTPUT, ["y"])


def _image_to_set(panel: _Panel) -> None:
    panel.output_set(panel.image(), "box")


def _set_to_set(panel: _Panel) -> None:
    inputs = [(0.1, 0.1), (0.9, 0.35), (1.7, -0.05), (2.5, 0.3), (3.3, 0.05)]
    panel.output_set([(x, 0.5) for x, _ in inputs], "y")
    panel.set_of(inputs, _INPUT, ["x"] * 5)


def _sequence_to_set(panel: _Panel) -> None:
    inputs = _row(4, 0)
    panel.boxes(inputs, _INPUT, _names("x", 4))
    panel.output_set(inputs, "y")


MAPS: list[tuple[str, str, list[str], Callable[[_Panel], None]]] = [
    (
        "vector \u2192 sequence",
        "a text from an image",
        ["regard train caption", "    --model.core recurrent", "    --model.core.attention none"],
        _vector_to_sequence,
    ),
    (
        "sequence \u2192 vector",
        "from the last state",
        ["regard train reviews", "    --model.core recurrent", "    --model.pool last"],
        _sequence_to_vector,
    ),
    (
        "sequence \u2192 vector \u2192 sequence",
        "the vector is the last state",
        ["regard train translate", "    --model.core recurrent", "    --model.core.attention none"],
        _sequence_to_vector_to_sequence,
    ),
    (
        "sequence \u2192 sequence",
        "an output at each step",
        ["regard train tags", "    --model.core recurrent", "    --model.core.directions 1"],
        _sequence_to_sequence_at_each_step,
    ),
    (
        "sequence \u2192 sequence",
        "after the whole input",
        ["regard train translate", "regard train dates", "regard train draw"],
        _sequence_to_sequence,
    ),
    (
        "image \u2192 vector",
        "its class, by patches (ViT)",
        ["regard train images --patch 4"],
        _image_to_vector,
    ),
    ("image \u2192 set", "bounding boxes", ["regard train boxes"], _image_to_set),
    (
        "set \u2192 set",
        "boxes in a point cloud; paths of agents",
        ["regard train points", "regard train tracks", "    --model.joint true"],
        _set_to_set,
    ),
    (
        "sequence \u2192 set",
        "onset and duration of events",
        ["regard train events"],
        _sequence_to_set,
    ),
]
"""Title, subtitle, commands and drawing of each map."""


if __name__ == "__main__":
    main()
