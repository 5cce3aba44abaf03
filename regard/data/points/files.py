"""Files of point clouds: the coordinates x, y, z of each point, and features such as an intensity.

docs/recipes/points.md describes the formats, which are found by the first bytes of the content.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import load_arrays
from regard.data.bad_rows import BadRows
from regard.data.tables import as_number, read_table
from regard.errors import UserError
from regard.system.extras import import_extra

AXES = ("x", "y", "z")
_MAX_METERS = 1e9
"""The middle of such coordinates is exact to a millionth."""
_MAX_NUMBERS = 10_000
"""Numbers of a point in a PCD, which its header states."""


def parse_cloud(content: bytes, name: str, features: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return the points (points, 3 + features) in the content of a file of this name."""
    parse = next((parse for start, parse in _FORMATS.items() if content.startswith(start)), None)
    if parse is None:
        parse = _parse_pcd if re.match(rb"VERSION\s+\.?\d", content) else _parse_table
    return check_points(parse(content, name, (*AXES, *features)), name)


def check_points(points: NDArray[Any], where: str) -> NDArray[np.float64]:
    """Return points as float64. Raises UserError for none, or numbers not finite or too large."""
    if not len(points):
        raise UserError(f"{where}: contains no point.")
    points = np.asarray(points, np.float64)
    if not (points.min() >= -_MAX_METERS and points.max() <= _MAX_METERS):  # also nan
        bad = int(np.argmin((np.abs(points) <= _MAX_METERS).all(1)))
        shown, number = ", ".join(f"{number:g}" for number in points[bad]), bad + 1
        raise UserError(f"{where}: point {number} needs numbers up to {_MAX_METERS:g}, got {shown}")
    return points


def _parse_npz(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    features = columns[len(AXES) :]
    arrays = load_arrays(content, name, ("points", *features))
    shape = arrays["points"].shape
    shapes = [array.shape for array in arrays.values()]
    if len(shape) != 2 or shapes != [(shape[0], 3), *[shape[:1]] * len(features)]:
        found = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise UserError(f"{name}: expected points (points, 3) and features (points), got {found}.")
    if any(array.dtype.kind not in "iuf" for array in arrays.values()):
        raise UserError(f"{name}: expected arrays of numbers.")
    return np.column_stack(list(arrays.values()))


def _parse_table(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    bad_rows, rows = BadRows("error", "points"), []
    table = read_table(name, columns, format="csv", content=content, bad_rows=bad_rows)
    for number, cells in table:
        with bad_rows.catch(f"{name}, line {number}"):
            rows.append([as_number(cell) for cell in cells])
    return np.array(rows, np.float64).reshape(len(rows), len(columns))


def _parse_ply(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    trimesh = import_extra("trimesh.exchange.ply", name)
    try:
        with warnings.catch_warnings(action="error"):  # numpy warns of a line that it reads in part
            loaded = trimesh.load_ply(io.BytesIO(content), fix_texture=False, skip_materials=True)
        vertex = loaded["metadata"]["_ply_raw"]["vertex"]
        stated, data = int(vertex["length"]), vertex.get("data")
    except Exception as error:  # trimesh raises what its parser meets: ValueError, KeyError ...
        raise UserError(f"{name}: not a PLY of points, or damaged: {error!r}"[:300]) from error
    return _stack(data, columns, stated, name)


def _parse_pcd(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    pypcd4 = import_extra("pypcd4", name)
    stated = re.search(rb"^COUNT((?:[ \t]+\d{1,9})+)\s*$", content, re.MULTILINE)
    numbers = sum(map(int, stated[1].split())) if stated else 0
    if numbers > _MAX_NUMBERS:  # pypcd4 makes a column of each
        raise UserError(
            f"{name}: a point may have {_MAX_NUMBERS:,} numbers, its header states {numbers:,}."
        )
    try:
        cloud = pypcd4.PointCloud.from_fileobj(io.BytesIO(content))
        stated, data = cloud.metadata.points, cloud.pc_data
    except Exception as error:  # errors of pydantic, numpy, struct and lzf
        raise UserError(f"{name}: not a PCD of points, or damaged: {error!r}"[:300]) from error
    return _stack(np.atleast_1d(data), columns, stated, name)


def _stack(data: Any, columns: Sequence[str], stated: int, name: str) -> NDArray[np.float64]:
    """Return the named columns of points. Raises UserError if there are not as many as stated."""
    if not stated:
        return np.zeros((0, len(columns)))
    try:
        values = [np.asarray(data[column], np.float64).reshape(-1) for column in columns]
    except (KeyError, ValueError) as error:
        names = ", ".join(columns)
        raise UserError(f"{name}: expected points with numbers {names}: {error}") from None
    if any(len(value) != stated for value in values):
        raise UserError(f"{name}: its header states {stated} points, it holds {len(values[0])}.")
    return np.column_stack(values)


_FORMATS: dict[bytes, Callable[[bytes, str, Sequence[str]], NDArray[np.float64]]] = {
    b"PK": _parse_npz,
    b"ply": _parse_ply,
    b"# .PCD": _parse_pcd,
}
"""Parser of each format by the first bytes of its files."""
