"""Links figures: queries and keys as words, and lines between them, as thick as the weights.

Source: lectures, B.4 (lines between the source and the target, as thick as alpha).
"""

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.look.figures.canvas import INK, PALE
from regard.look.figures.labels import readable, width_em
from regard.look.figures.request import FigureRequest

MAX_WORDS = 100
"""Largest number of words on a side; lines between more cannot be told apart."""
_NAMED = ("source", "output", "decoder input")
"""Axes of a sample whose names are drawn above the words; others are queries and keys."""
_LINE, _BETWEEN, _FONT = 0.24, 2.4, 9.0


def plot_links(figure: Figure, request: FigureRequest) -> None:
    """Plot lines from each query (left) to each key (right), of one head or of the mean."""
    own = request.read()
    which, weights = request.heads(own)[0]
    sides = [request.maps.queries(own).labels, request.maps.keys(own).labels]
    if max(map(len, sides)) > MAX_WORDS:
        raise UserError(
            f"a figure of links must have at most {MAX_WORDS} queries and keys, got "
            f"{len(sides[0]):,} and {len(sides[1]):,}: use FILE.html, which has up to 400"
        )
    left, right = ([readable(word) for word in words] for words in sides)
    about = ", ".join(filter(None, (own.kind, f"layer {own.layer}", which)))
    heading = [
        readable(text, max_length=100, spaces=" ") for text in (request.title, about) if text
    ]
    margins = [max(width_em(word) for word in words) * _FONT / 72 + 0.15 for words in (left, right)]
    rows, top = max(len(left), len(right)), 1 + 0.25 * len(heading) / _LINE
    figure.set_size_inches(sum(margins) + _BETWEEN, (rows + top) * _LINE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-margins[0], _BETWEEN + margins[1]), ylim=(rows, -top))
    axes.set_axis_off()
    heights = []
    # Each side is centered.
    for words, x, align in ((left, 0.0, "right"), (right, _BETWEEN, "left")):
        heights.append([(rows - len(words)) / 2 + number for number in range(len(words))])
        for word, y in zip(words, heights[-1], strict=True):
            axes.text(x, y, word, ha=align, va="center", fontsize=_FONT, color=INK)
        name, role = (own.queries, "queries") if words is left else (own.keys, "keys")
        name = role if own.queries == own.keys or name not in _NAMED else name
        axes.text(x, -0.8, name, ha=align, va="center", fontsize=7.5, color=PALE)
    pairs = (weights >= 0.004).nonzero().tolist()
    pairs.sort(key=lambda pair: float(weights[*pair]))
    lines = [((0.05, heights[0][i]), (_BETWEEN - 0.05, heights[1][j])) for i, j in pairs]
    style = {"colors": "#2971c6", "alpha": 0.75, "capstyle": "round"}
    widths = [7 * float(weights[*pair]) for pair in pairs]  # in points
    axes.add_collection(LineCollection(lines, linewidths=widths, **style))
    for number, line in enumerate(heading):
        y = 0.4 - top + 0.25 * number / _LINE
        font, color = (9.0, INK) if number == 0 else (7.5, PALE)
        axes.text(-margins[0], y, line, fontsize=font, color=color)
