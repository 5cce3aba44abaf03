"""Vectors of numbers as data: files of rows, and points on a curve of the plane.

    ellipse   y = (2 cos z, 1.5 sin z) + e          z uniform in [0, 2 pi], e normal
    spiral    y = z / pi (cos z, sin z) + e
    horn      y = exp(2 x) ((2 - x / 2) cos z, (1.5 + x / 2) sin z) + e      x uniform in [0, 1]

A row has the condition x first, if there is one, and then y.

Source: lectures, E.10 (trained manifold, data of two numbers on a curve).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import load_arrays
from regard.data.bad_rows import BadRows
from regard.data.batches import generator
from regard.data.config import VectorsConfig
from regard.data.tables import as_number, excerpt, locate, read_csv, read_texts
from regard.errors import UserError
from regard.system.files import one_path, read_bytes, suffix_of

_SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".txt")
_WORDS = re.compile(r"[^ \t\r\n]+")
_MAX_VALUE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class VectorDataset:
    """Vectors of one size, (rows, size) of float32, and notes on rows that were left out.

    values: with a condition x, the first of the numbers is x.
    names:  of the columns, in the order of the values; none for a file without a header.
    """

    values: NDArray[np.float32]
    origin: str
    names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Sequence[int]) -> Self:
        return replace(self, values=self.values[list(index)])


def read_vectors(
    path: str | Path | Sequence[str],
    config: VectorsConfig,
    *,
    size: int | None = None,
    names: tuple[str, ...] = (),
) -> VectorDataset:
    """Read vectors: FILE.npy (rows, size), FILE.npz with such an array `y`, or rows of numbers
    (.csv with a header, .tsv, .txt), of `size` (with the condition) or all of one size.

    names: of the columns, if they are known; a header must have the same, in any order.
    """
    path, bad_rows = one_path(path), BadRows(config.on_bad)
    suffix = suffix_of(path)
    if suffix not in _SUFFIXES:
        raise UserError(f"{path}: expected a file of vectors, {', '.join(_SUFFIXES)}.")
    condition = config.condition
    is_named = suffix == ".csv" or condition is not None
    has_header = config.header == "yes" or (config.header == "auto" and is_named)
    if condition is not None and suffix != ".npz" and (suffix == ".npy" or not has_header):
        raise UserError(f"{path}: has no names, expected a header or .npz with {condition!r}.")
    if suffix in (".npy", ".npz"):
        keys = ("y",) if condition is None else ("y", condition)
        arrays, found = load_arrays(read_bytes(path), str(path), keys), ()
        rows = _check_array(_join_arrays(path, *arrays.values()), path, size, bad_rows)
    else:
        lines, table = _read_cells(path, suffix, config.encoding, bad_rows), []
        order, found = _read_header(path, lines, condition, names, size) if has_header else ([], ())
        size = len(found) or size
        for number, cells in lines:
            with bad_rows.catch(locate(path, number)):
                row = parse_vector(cells, size)
                table.append([row[index] for index in order] if order else row)
                size = len(row)
        rows = np.asarray(table, np.float32)
    if not len(rows):
        raise UserError(f"{path}: has no usable rows, expected at least one vector of numbers.")
    return VectorDataset(rows, str(path), found, bad_rows.notices(path))


def parse_vector(given: str | Iterable[Any], size: int | None) -> list[float]:
    """Return the numbers of a sequence, or of a text, separated by commas or else white space.
    Raises UserError unless they are `size` (None: some) finite numbers of float32."""
    if isinstance(given, str):
        given = _split(given)
    cells = list(given)
    if not cells or len(cells) != (size or len(cells)):
        shown = excerpt(", ".join(map(str, cells)))
        raise UserError(f"expected {size or 'some'} numbers, got {len(cells)} ({shown})")
    numbers = [as_number(cell) for cell in cells]
    if max(map(abs, numbers)) > _MAX_VALUE:
        raise UserError(f"expected numbers up to {_MAX_VALUE:.4g}, got {max(numbers, key=abs):g}")
    return numbers


def make_curve(config: VectorsConfig, split: str) -> VectorDataset:
    """Return points on a config's curve: `samples` for train, its val_share for val and test."""
    number = ("train", "val", "test").index(split)
    count = config.samples if split == "train" else max(1, round(config.samples * config.val_share))
    draw = generator(number)
    z = draw.uniform(0, 2 * np.pi, count)
    x = draw.uniform(0, 1, (count, config.conditions))
    points = np.stack((np.cos(z), np.sin(z)), 1)
    if config.curve == "spiral":
        points *= z[:, None] / np.pi
    elif config.curve == "ellipse":
        points *= (2.0, 1.5)
    else:
        points *= np.exp(2 * x) * np.concatenate((2 - x / 2, 1.5 + x / 2), 1)
    points += config.deviation * draw.normal(size=points.shape)
    values = np.concatenate((x, points), 1).astype(np.float32)
    return VectorDataset(values, f"a synthetic {config.curve}")


def _join_arrays(path: Path, y: NDArray[Any], x: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return y (rows, numbers), with x (rows,) as the first column if given."""
    if x is None:
        return y
    if y.ndim != 2 or x.shape != y.shape[:1] or x.dtype.kind not in "iuf":
        expected, got = f"({len(y) if y.ndim else 'rows'},)", f"{x.dtype} of shape {x.shape}"
        raise UserError(f"{path}: expected numbers x of shape {expected}, got {got}.")
    return np.column_stack((x, y))


def _check_array(
    array: NDArray[Any], path: Path, size: int | None, bad_rows: BadRows
) -> NDArray[np.float32]:
    is_matrix = array.dtype.kind in "iuf" and array.ndim == 2
    if not is_matrix or array.shape[1] != (size or array.shape[1] or 1):
        expected, got = f"(rows, {size or 'numbers'})", f"{array.dtype} of shape {array.shape}"
        raise UserError(f"{path}: expected numbers of shape {expected}, got {got}.")
    with np.errstate(over="ignore"):  # too large for float32: not finite
        values = array.astype(np.float32)
    usable = np.isfinite(values).all(1)
    for row in np.flatnonzero(~usable):
        shown = excerpt(str(array[row].tolist()))
        bad_rows.add(f"{path}, row {row + 1}: expected finite numbers, got {shown}")
    return values[usable]


def _read_cells(
    path: Path, suffix: str, encoding: str, bad_rows: BadRows
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not blank."""
    if suffix == ".csv":
        yield from (line for line in read_csv(path, bad_rows, encoding=encoding) if line[1])
        return
    for number, text in read_texts(path, bad_rows, encoding=encoding):
        yield number, text.split("\t") if suffix == ".tsv" else _split(text)


def _split(text: str) -> list[str]:
    """Return the cells of a line, separated by commas or else white space."""
    return text.split(",") if "," in text else _WORDS.findall(text)


def _read_header(
    path: Path,
    lines: Iterator[tuple[int, list[str]]],
    condition: str | None,
    known: tuple[str, ...],
    size: int | None,
) -> tuple[list[int], tuple[str, ...]]:
    """Return the columns in the order of the known names, or the condition first, and the names."""
    number, cells = next(lines, (1, []))
    names, where = [cell.strip() for cell in cells], locate(path, number)
    shown = ", ".join(names)
    if len(set(names)) < len(names):
        raise UserError(f"{where}: expected columns of different names, got {shown}.")
    if condition is not None and (condition not in names or len(names) < 2):
        raise UserError(f"{where}: expected the column {condition!r} and others, got {shown}.")
    if known and set(names) != set(known):
        raise UserError(f"{where}: expected the columns {', '.join(known)}, got {shown}.")
    if size and len(names) != size:
        raise UserError(f"{where}: expected {size} columns of numbers, got {shown}.")
    found = known or tuple(sorted(names, key=lambda name: name != condition))
    return [names.index(name) for name in found], found
