"""Pictures of masks, biases and matrices: one row per query, one column per key.

    mask            dark: may attend        light: masked
    bias, matrix    blue: above zero        orange: below zero        gray: -inf, masked
    magnitudes      white: zero             dark: the largest

The numbers on the axes are positions: the last query is at the last key. A mask or bias that
differs between rows or heads has a panel for each of the first 16, counted from 1. The figure is
drawn by matplotlib (regard.look.figures.positions), which is loaded then.
"""

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float, Shaped
from torch import Tensor

from regard.attention.positions import Positions

_MAX_PANELS = 16
SHOWN = 8
"""Number of queries and keys that a notebook shows of a mask or bias without sizes."""


class Panel(NamedTuple):
    """One row or head of a mask or a bias, or a matrix."""

    title: str
    numbers: Float[Tensor, "row column"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """Picture of a mask, a bias or a matrix. Notebooks display it, `save` writes a file."""

    heading: str
    panels: Sequence[Panel]
    is_mask: bool = False
    """True: numbers are 1 where a query may attend, else 0."""
    is_signed: bool = True
    """False: numbers are magnitudes, with a color scale from 0."""
    has_numbers: bool = False
    """True: cells show their numbers, up to 16 columns and 24 rows."""
    first: int = 0
    """Number of the first row on its axis."""
    names: tuple[str, str] = ("query", "key")
    left_out: int = 0
    """Number of panels beyond the first 16, which are not drawn."""

    @property
    def svg(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return self.save(Path(folder) / "picture.svg").read_text(encoding="utf-8")

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the picture to a .svg, .png or .pdf file and return its path.

        A notebook replaces a file that it wrote since it was started.
        Raises: UserError for another suffix, an existing file (unless overwrite), or if the folder
                does not exist.
        """
        # Layers above this one, with matplotlib.
        output = importlib.import_module("regard.look.output")
        figures = output.load_figures("positions")
        path = Path(path)
        figures.plot_picture(self, path, overwrite=overwrite or output.is_own(path))
        output.mark_own(path)
        return path

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        panels = "1 panel" if len(self.panels) == 1 else f"{len(self.panels)} panels"
        return f"<picture of {self.heading}, {panels}; .save(path) writes it>"


class Pictured:
    """Base class of masks and biases, which notebooks show as pictures."""

    picture: Callable[..., Picture]

    def _repr_svg_(self) -> str | None:
        """Return the picture; None if it needs queries. Absent sizes are 8."""
        try:
            return self.picture(*self._shown_sizes()).svg
        except (IndexError, RuntimeError, ValueError):
            return None

    def _shown_sizes(self) -> tuple[int, int]:
        return SHOWN, SHOWN


def draw_tensor(
    tensor: Shaped[Tensor, "..."], positions: Positions, *, title: str, is_mask: bool
) -> Picture:
    """Draw the tensor of a mask or a bias at positions, whose sizes it broadcasts to."""
    leading = tuple(tensor.shape[:-2])
    sizes = positions.num_queries, positions.num_keys
    matrices = tensor.detach().expand(*leading, *sizes).reshape(-1, *sizes)
    axes = ["row", "head", *(f"axis {axis}" for axis in range(2, len(leading)))]
    panels = []
    for index, matrix in zip(product(*map(range, leading)), matrices[:_MAX_PANELS], strict=False):
        # Such as "row 1, head 3", without axes of size 1.
        parts = zip(axes, index, leading, strict=False)
        name = ", ".join(f"{axis} {i + 1}" for axis, i, size in parts if size > 1)
        panels.append(Panel(name, matrix))
    return Picture(
        heading=title,
        panels=panels,
        is_mask=is_mask,
        first=sizes[1] - sizes[0],  # the last query is at the last key
        left_out=len(matrices) - len(panels),
    )


def draw_matrix(
    matrix: Float[Tensor, "row column"],
    *,
    title: str,
    names: tuple[str, str] = ("row", "column"),
    first: int = 0,
    is_signed: bool = True,
) -> Picture:
    """Draw a matrix of numbers, which its cells show up to 16 columns and 24 rows.

    names:     of its axes; first: number of the first row.
    is_signed: False: the numbers are magnitudes, such as norms, with a color scale from 0.
    """
    return Picture(
        heading=title,
        panels=[Panel("", matrix)],
        names=names,
        first=first,
        is_signed=is_signed,
        has_numbers=True,
    )


def side_by_side(pictures: Sequence[Picture], *, heading: str = "") -> Picture:
    """Combine the panels of several pictures of one kind (masks, biases, matrices) into one."""
    panels = []
    for picture in pictures:
        for panel in picture.panels:
            title = " ".join(filter(None, (picture.heading, panel.title)))
            panels.append(Panel(title, panel.numbers))
    return replace(pictures[0], heading=heading, panels=panels)


def shown_sizes(tensor: Tensor) -> tuple[int, int]:
    """Return the sizes (query, key) of a tensor for a picture; 8 for broadcast axes of size 1."""
    queries, keys = (SHOWN if size == 1 else size for size in tensor.shape[-2:])
    return queries, keys


def shown_sizes_of_both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the sizes of a combination of two masks or biases, of which one may have its own."""
    queries, keys = (
        second if first == SHOWN else first for first, second in zip(one, other, strict=True)
    )
    return queries, keys
