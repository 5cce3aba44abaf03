"""Vectors of numbers as data: files of rows, and points on a curve of the plane.

    ellipse   y = (2 cos z, 1.5 sin z) + e          z uniform in [0, 2 pi], e normal
    spiral    y = z / pi (cos z, sin z) + e

Source: lectures, E.10 (trained manifold, data of two numbers on a curve).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import load_arrays
from regard.data.bad_rows import BadRows
from regard.data.batches import generator
from regard.data.config import VectorsConfig
from regard.data.tables import as_number, excerpt, locate, read_texts
from regard.errors import UserError
from regard.system.files import read_bytes, suffix_of

_SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class VectorDataset:
    """Vectors of one size, (rows, size) of float32, and notes on rows that were left out."""

    values: NDArray[np.float32]
    origin: str
    skipped: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Sequence[int]) -> Self:
        return replace(self, values=self.values[list(index)])


def read_vectors(
    path: str | Path, config: VectorsConfig, *, size: int | None = None
) -> VectorDataset:
    """Read vectors: FILE.npy (rows, size), FILE.npz with such an array `y`, or rows of numbers
    (.csv with a header, .tsv, .txt), of `size` or all of one size."""
    path, bad_rows = Path(path), BadRows(config.on_bad)
    suffix = suffix_of(path)
    if suffix not in _SUFFIXES:
        raise UserError(f"{path}: expected a file of vectors, {', '.join(_SUFFIXES)}.")
    if suffix in (".npy", ".npz"):
        array = load_arrays(read_bytes(path), str(path), ("y",))["y"]
        rows = _check_array(array, path, size, bad_rows)
    else:
        has_header = config.header == "yes" or (config.header == "auto" and suffix == ".csv")
        rows = _read_text(path, size, bad_rows, has_header=has_header)
    if not len(rows):
        raise UserError(f"{path}: has no usable rows, expected at least one vector of numbers.")
    return VectorDataset(rows, str(path), tuple(bad_rows.skipped))


def parse_vector(given: str | Iterable[Any], size: int | None) -> list[float]:
    """Return the numbers of a sequence, or of a text (separated by , ; spaces, tabs or lines)."""
    if isinstance(given, str):
        given = re.findall(r"[^,; \t\r\n]+", given)
    numbers = [as_number(part) for part in given]
    if not numbers or len(numbers) != (size or len(numbers)):
        raise UserError(f"expected {size or 'some'} numbers, got {excerpt(str(given))}")
    return numbers


def make_curve(config: VectorsConfig, split: str) -> VectorDataset:
    """Return points on a config's curve: `samples` for train, its val_share for val and test."""
    number = ("train", "val", "test").index(split)
    count = config.samples if split == "train" else max(1, round(config.samples * config.val_share))
    draw = generator(number)
    z = draw.uniform(0, 2 * np.pi, count)
    points = np.stack((np.cos(z), np.sin(z)), 1)
    points *= (2.0, 1.5) if config.curve == "ellipse" else z[:, None] / np.pi
    points += config.deviation * draw.normal(size=points.shape)
    return VectorDataset(points.astype(np.float32), f"a synthetic {config.curve}")


def _check_array(
    array: NDArray[Any], path: Path, size: int | None, bad_rows: BadRows
) -> NDArray[np.float32]:
    is_matrix = array.dtype.kind in "iuf" and array.ndim == 2
    if not is_matrix or array.shape[1] != (size or array.shape[1] or 1):
        expected, got = f"(rows, {size or 'numbers'})", f"{array.dtype} of shape {array.shape}"
        raise UserError(f"{path}: expected numbers of shape {expected}, got {got}.")
    values = array.astype(np.float32)
    usable = np.isfinite(values).all(1)
    for row in np.flatnonzero(~usable):
        shown = excerpt(str(array[row].tolist()))
        bad_rows.add(f"{path}, row {row + 1}: expected finite numbers, got {shown}")
    return values[usable]


def _read_text(
    path: Path, size: int | None, bad_rows: BadRows, *, has_header: bool
) -> NDArray[np.float32]:
    rows: list[list[float]] = []
    for number, text in read_texts(path, bad_rows):
        with bad_rows.catch(locate(path, number)):
            is_header = has_header
            has_header = False
            if not is_header:
                rows.append(parse_vector(text, size))
                size = len(rows[0])
            elif text.startswith(","):
                raise UserError("the first column has no name: is it an index?")
    return np.asarray(rows, np.float32)
