"""Canvas of all figures: style, fonts, colors, color scale and file."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from regard.look.figures.labels import families_for, isolate_sides, readable
from regard.look.output import check_path
from regard.system.writing import write_atomically

INK, PALE, GRID = "#1f2933", "#66727f", "#e6ebf0"
_ABOVE = "#ffffff #cfe3fd #9ec7fc #6aaafb #468de4 #2971c6 #0c56a5 #073e7a #032751"
"""White to dark blue: CIELAB lightness 100, 89.5, ... 16 in equal steps, OKLCH hue 255."""
_BELOW = "#fcdbc1 #f1b88a #e39652 #c57a35 #a56019 #814a11 #5e340a #3e2104"
"""White to dark orange, as in the viewer."""
_STYLE = {
    "font.sans-serif": ["DejaVu Sans"],  # short lists of fonts in SVG
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "regard",
    "text.parse_math": False,  # $ in a label is a literal dollar sign
}
# Without a date, so that files are reproducible.
_METADATA = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def open_figure(path: Path, *, overwrite: bool) -> Iterator[Figure]:
    """Yield a figure, and write it to `path` when the context ends.

    The style is ours, whatever the user's. SVG and PDF keep labels as text.
    Raises: UserError as `check_path`.
    """
    check_path(path, overwrite)
    suffix = path.suffix.lower()
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        # A character without a font is a box; the viewer of an SVG has fonts of its own.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        warnings.filterwarnings("ignore", "Matplotlib currently does not support", UserWarning)
        figure = Figure()
        yield figure
        # Fonts that have the characters of the texts, and titles with isolated sides.
        texts = figure.findobj(Text)
        words = [text.get_text() for text in texts]
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                if isinstance(formatter := axis.get_major_formatter(), FixedFormatter):
                    words += formatter.seq
        families = [*families_for(words), "sans-serif"]
        for text in texts:
            text.set_text(isolate_sides(text.get_text()))
            text.set_fontfamily(families)
        for axes in figure.axes:
            axes.tick_params(labelfontfamily=families)
        picture = io.BytesIO()
        figure.savefig(
            picture,
            format=suffix[1:],
            dpi=max(figure.dpi, 200),
            bbox_inches="tight",
            pad_inches=0.12,
            metadata=_METADATA[suffix],
        )
    write_atomically(path, picture.getvalue(), overwrite=overwrite)


def add_axes(figure: Figure, size: tuple[float, float], title: str, note: str = "") -> Axes:
    """Return the only axes of a figure of this size in inches, with a title of up to two lines."""
    figure.set_size_inches(size)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    lines = filter(None, (readable(title, max_length=200, spaces=" "), note))
    axes.set_title("\n".join(lines), fontsize=9, loc="left")
    return axes


def weight_colors() -> LinearSegmentedColormap:
    """Return the color map: white for 0 to dark blue for 1, in equal steps of lightness."""
    return LinearSegmentedColormap.from_list("weight", _ABOVE.split())


def signed_colors() -> LinearSegmentedColormap:
    """Return the color map of signed numbers: dark orange for -1, white for 0, dark blue for 1."""
    return LinearSegmentedColormap.from_list("signed", [*_BELOW.split()[::-1], *_ABOVE.split()])


def draw_weight_scale(figure: Figure, box: tuple[float, float, float, float]) -> None:
    """Draw the color scale of weights in a box, in fractions of the figure."""
    shades = ScalarMappable(Normalize(0, 1), weight_colors())
    bar = figure.colorbar(shades, cax=figure.add_axes(box), ticks=[0, 0.5, 1])
    bar.outline.set(color=PALE, linewidth=0.6)
    bar.ax.tick_params(labelsize=7.5, length=2, width=0.6, color=PALE, labelcolor=INK)
    bar.set_label("weight", fontsize=8, color=PALE)
