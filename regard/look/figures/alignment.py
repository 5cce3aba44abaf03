"""Alignment figure: weights with keys across and queries down, the mean of heads and each head."""

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from regard.look.figures.labels import readable, width_em
from regard.look.figures.matrix import SCALE_WIDTH, Matrix, plot_matrices
from regard.look.figures.request import is_masked

_WIDTH = 18 / 2.54
"""Default width of a figure: that of a page."""
_CELL, _SMALL_CELL = 0.24, 0.125
"""Largest side of a cell, and the smallest whose label can be read."""
_MAX_WIDTH, _MAX_HEIGHT = 16.0, 40.0


def plot_alignment(
    figure: Figure,
    panels: Sequence[tuple[str, Float[Tensor, "query key"]]],
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    title: str = "",
    about: str = "",
    width: float | None = None,
) -> None:
    """Plot named weights from white (0) to dark blue (1); masked pairs are gray."""
    inches = _WIDTH if width is None else width / 2.54
    rows = [readable(label) for label in queries]
    labels = max(width_em(label) for label in rows) * 0.1 + 0.2
    cell = min(_CELL, (inches - labels - SCALE_WIDTH) / len(keys))
    if width is None:
        cell = max(cell, min(_SMALL_CELL, _MAX_WIDTH / len(keys)))
    height = min(max(cell, _SMALL_CELL), _MAX_HEIGHT / len(queries))
    matrices = []
    style = {"rows": rows, "columns": [readable(label) for label in keys], "is_weights": True}
    for name, weights in panels:
        numbers = weights.masked_fill(is_masked(weights), float("nan")).numpy()
        matrices.append(Matrix(name, numbers, cell=(cell, height), **style))
    plot_matrices(
        figure,
        [("", matrices)],
        title=readable(title, max_length=400, spaces=" ") if title else "",
        about=about,
        width=inches,
        has_scale=True,
    )
