"""Links figures: queries and keys as words, and lines between them, as thick as the weights.

    width of the line between query i and key j = 7 points times weight a_ij

Source: lectures, B.4 (lines between the source and the target, as thick as alpha).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.figures.alignment import plot_style, render_figure
from regard.look.figures.labels import (
    escape_missing,
    families_for,
    isolate_sides,
    readable,
    width_em,
)
from regard.look.figures.matrix import INK, PALE
from regard.look.figures.output import check_path
from regard.system.writing import write_atomically

MOST_WORDS = 100
"""Largest number of words on a side; lines between more cannot be told apart."""
LINE_WIDTH = 7.0
"""Width in points of the line of weight 1."""

_FAINT = 0.004
"""Weights below it are not drawn."""
_LINE, _BETWEEN, _FONT = 0.24, 2.4, 9.0
_COLOR = "#2971c6"


def plot_links(
    queries: Sequence[str],
    keys: Sequence[str],
    weights: NDArray[np.floating],
    path: Path,
    *,
    title: str = "",
    about: str = "",
    overwrite: bool = False,
) -> Path:
    """Plot lines from each query (left) to each key (right) of weights (query, key) from 0 to 1.

    about: second line of the title: the head.
    Raises: UserError for more than 100 words on a side, another suffix, an existing file (unless
            overwrite), or if the folder does not exist.
    """
    check_path(path, overwrite)
    for name, words in (("queries", queries), ("keys", keys)):
        if len(words) > MOST_WORDS:
            raise UserError(
                f"{path}: a figure of links must have at most {MOST_WORDS} {name}, got "
                f"{len(words):,}: use a shorter "
                "input, or FILE.html, whose view links has up to 400"
            )
    left, right = ([readable(word) for word in words] for words in (queries, keys))
    heading = [readable(text, max_length=100, spaces=" ") for text in (title, about) if text]
    families = families_for([*left, *right, *heading])
    if path.suffix.lower() != ".svg":
        left, right, heading = (
            [escape_missing(text, families) for text in texts] for texts in (left, right, heading)
        )
    heading = list(map(isolate_sides, heading))
    margins = [max(width_em(word) for word in words) * _FONT / 72 + 0.15 for words in (left, right)]
    rows = max(len(left), len(right))
    width, height = sum(margins) + _BETWEEN, (rows + 1) * _LINE + 0.25 * len(heading)
    places = [_places(len(words), rows) for words in (left, right)]
    with plot_style(families):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(
            xlim=(-margins[0], _BETWEEN + margins[1]), ylim=(rows, -1 - 0.25 * len(heading) / _LINE)
        )
        axes.set_axis_off()
        pairs = [(i, j) for i, j in np.ndindex(*weights.shape) if weights[i, j] >= _FAINT]
        pairs.sort(key=lambda pair: weights[pair])
        axes.add_collection(
            LineCollection(
                [((0.05, places[0][i]), (_BETWEEN - 0.05, places[1][j])) for i, j in pairs],
                linewidths=[LINE_WIDTH * float(weights[pair]) for pair in pairs],
                colors=_COLOR,
                alpha=0.75,
                capstyle="round",
            )
        )
        for words, at, x, side in (
            (left, places[0], 0.0, "right"),
            (right, places[1], _BETWEEN, "left"),
        ):
            for word, y in zip(words, at, strict=True):
                axes.text(x, y, word, ha=side, va="center", fontsize=_FONT, color=INK)
        axes.text(0.0, -0.8, "queries", ha="right", va="center", fontsize=7.5, color=PALE)
        axes.text(_BETWEEN, -0.8, "keys", ha="left", va="center", fontsize=7.5, color=PALE)
        for number, line in enumerate(heading):
            y = -1 - 0.25 * (len(heading) - number) / _LINE + 0.4
            axes.text(
                -margins[0],
                y,
                line,
                fontsize=9.0 if number == 0 else 7.5,
                color=INK if number == 0 else PALE,
            )
        picture = render_figure(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def _places(count: int, rows: int) -> list[float]:
    """Return the height of each of `count` words, centered on a side of `rows` lines."""
    return [(rows - count) / 2 + number for number in range(count)]
