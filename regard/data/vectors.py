"""Vectors of numbers as data: files of rows, and points on a curve of the plane.

    ellipse   y = (2 cos z, 1.5 sin z) + e          z uniform in [0, 2 pi], e normal
    spiral    y = z / pi (cos z, sin z) + e

Source: lectures, E.10 (trained manifold, data of two numbers on a curve).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import read_array, read_arrays
from regard.data.bad_rows import BadRow, BadRows
from regard.data.batches import generator
from regard.data.config import Header, OnBad, VectorsConfig
from regard.data.text.numbers import parse_numbers
from regard.data.text.rows import excerpt
from regard.data.text.tables import read_rows
from regard.errors import UserError
from regard.system.compression import plain_name

MOST = 1e15
"""Largest magnitude of a number."""
_NAME = "y"
_COUNTED = [str(number) for number in range(100_000)]
"""Header that pandas writes for columns without names."""
_SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class VectorDataset:
    """Vectors of one size, (rows, size) of float32, and notes on rows that were left out."""

    values: NDArray[np.float32]
    origin: str
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


def read_vectors(
    path: str | Path, *, size: int | None = None, header: Header = "auto", on_bad: OnBad = "error"
) -> VectorDataset:
    """Read vectors: FILE.npy (rows, size), FILE.npz with such an array `y`, or columns of numbers
    (.csv, .tsv, .txt).

    A first row without any number is a header. If its first cell is empty, the first column is an
    index, as pandas writes it, and is left out. A comma is the decimal point if semicolons separate
    the cells.

    size:   required size; that of the first row if None.
    header: whether the first row of columns is a header; auto refuses the row 0, 1, 2 ..., which
    may be either.
    Raises: UserError naming the file and the row, what was expected and what was found.
    """
    path = Path(path)
    suffix = Path(plain_name(str(path))).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UserError(
            f"{path}: expected a file of vectors, {', '.join(_SUFFIXES)}, got "
            f"{suffix or 'no suffix'!r}."
        )
    bad = BadRows(on_bad, "rows")
    if suffix in (".npy", ".npz"):
        array = read_array(path) if suffix == ".npy" else read_arrays(path, [_NAME])[_NAME]
        rows = _rows_of_array(array, path, size, bad)
    else:
        rows = _rows_of_text(path, size, header, bad)
    if not len(rows):
        raise UserError(f"{path}: has no usable rows, expected at least one vector of numbers.")
    return VectorDataset(rows, str(path), tuple(bad.skipped))


def parse_vector(given: Any, size: int | None) -> list[float]:
    """Return the numbers of a text, separated by commas, semicolons or white space, or of a
    sequence.

    Raises: ValueError with what was expected and found.
    """
    parts = (
        given.replace(",", " ").replace(";", " ").split() if isinstance(given, str) else list(given)
    )
    numbers = parse_numbers(
        (part.item() if isinstance(part, np.generic) else part for part in parts), most=MOST
    )
    if not numbers or len(numbers) != (size or len(numbers)):
        what = "numbers" if size is None else f"{size} number{'' if size == 1 else 's'}"
        raise ValueError(f"expected {what} (at most {MOST:g}), got {excerpt(str(given))!r}")
    return numbers


def make_curve(config: VectorsConfig, split: str) -> VectorDataset:
    """Return points on the curve of a config: as many as `samples` for train, and its val_share for
    val and test."""
    number = ("train", "val", "test").index(split)
    count = config.samples if split == "train" else max(1, round(config.samples * config.val_share))
    draw = generator(number)
    z = draw.uniform(0, 2 * np.pi, count)
    points = np.stack((np.cos(z), np.sin(z)), 1)
    points *= (2.0, 1.5) if config.curve == "ellipse" else z[:, None] / np.pi
    points += config.deviation * draw.normal(size=points.shape)
    return VectorDataset(points.astype(np.float32), f"a synthetic {config.curve}")


def _rows_of_array(
    array: NDArray[Any], path: Path, size: int | None, bad: BadRows
) -> NDArray[np.float32]:
    if (
        array.dtype.kind not in "iuf"
        or array.ndim != 2
        or array.shape[1] != (size or array.shape[1] or 1)
    ):
        expected = f"(rows, {'numbers' if size is None else size})"
        raise UserError(
            f"{path}: expected numbers of shape {expected}, got {array.dtype} of shape "
            f"{array.shape}."
        )
    values = array.astype(np.float64)
    usable = (np.abs(values) <= MOST).all(1)  # False for nan
    for row in np.flatnonzero(~usable):
        bad.add(
            f"{path}, row {row + 1}: expected finite numbers (at most {MOST:g}), got "
            f"{values[row].tolist()}"[:300]
        )
    return values[usable].astype(np.float32)


def _rows_of_text(
    path: Path, size: int | None, header: Header, bad: BadRows
) -> NDArray[np.float32]:
    separator, lines = read_rows(path)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path}: the file is empty, expected rows of numbers.")
    has_no_number = not any(
        parse_numbers([cell], most=MOST) for cell in _cells(first[1], separator)
    )
    is_header = has_no_number if header == "auto" else header == "yes"
    has_index = header != "no" and len(first[1]) > 1 and not first[1][0].strip()
    is_header = is_header or has_index
    if (
        header == "auto"
        and len(first[1]) > 1
        and [cell.strip() for cell in first[1]] == _COUNTED[: len(first[1])]
    ):
        raise UserError(
            f"{path}, line {first[0]}: 0, 1, ... may be numbers of columns, as pandas writes them, "
            f"which `header` must "
            "decide: --data.header yes if they are, --data.header no if this row is a vector."
        )
    rows: list[list[float]] = []
    for number, row in lines if is_header else chain([first], lines):
        with bad.catch(f"{path}, line {number}"):
            try:
                rows.append(parse_vector(_cells(row[1:] if has_index else row, separator), size))
            except ValueError as error:
                raise BadRow("not a vector", str(error)) from None
        size = size or (len(rows[0]) if rows else None)
    return np.asarray(rows, np.float32)


def _cells(row: Sequence[str], separator: str) -> list[str]:
    cells = " ".join(row).split()
    return [cell.replace(",", ".") for cell in cells] if separator == ";" else cells
