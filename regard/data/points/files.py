"""Files of point clouds: the coordinates x, y, z of each point, and features such as an intensity.

    cloud.npz    array points (points, 3), and an array (points) for each feature; no objects
    cloud.csv    a header with x, y, z and the features among others; commas, semicolons, tabs or
    spaces separate cells
    cloud.ply    element vertex with these properties, text or binary; read by trimesh
    cloud.pcd    fields of these names, text, binary or compressed; read by pypcd4

The format is found by the first bytes of the content. Every count that a file states is compared
with its size before memory is allocated for it.
"""

import importlib
import io
import re
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import parse_arrays
from regard.data.text.lines import describe_decode_error, split_lines
from regard.data.text.numbers import parse_numbers
from regard.errors import UserError
from regard.system.files import file_limit

AXES = ("x", "y", "z")
_MOST = 1e9
"""Meters; the middle of such coordinates is exact to a millionth."""
_MOST_HEADER = 1 << 16
_PADDING = b"\0\r\n "
"""Bytes that may follow the points of a binary file."""
_MOST_RATIO = 264
"""Bytes that one byte of LZF can stand for."""
_SHOWN = 80


def parse_cloud(content: bytes, name: str, features: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return the points (points, 3 + features) in the content of a file of this name.

    Raises: UserError naming the file, and the line or the point: points that are not finite numbers
            or of unequal dimension, none at all, a file that is cut or states other counts than it
            holds, a missing feature, a library that is not installed.
    """
    parse = next((parse for start, parse in _FORMATS.items() if content.startswith(start)), None)
    if parse is None:
        parse = _parse_pcd if re.match(rb"VERSION\s+\.?\d", content) else _parse_table
    return check_points(parse(content, name, (*AXES, *features)), name)


def check_points(points: NDArray[Any], where: str) -> NDArray[np.float64]:
    """Return points (points, numbers) as float64.

    Raises: UserError if there is none, or one has a number that is not finite or too large.
    """
    if not len(points):
        raise UserError(f"{where}: contains no point.")
    points = np.asarray(points, np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.abs(points) <= _MOST).all(1))
    if len(bad):
        shown = ", ".join(f"{number:g}" for number in points[bad[0]])
        raise UserError(
            f"{where}: point {bad[0] + 1} must have numbers of at most {_MOST:g}, got {shown}."
        )
    return points


def _parse_npz(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    names = ("points", *columns[len(AXES) :])
    arrays = parse_arrays(content, name, names)
    points = arrays["points"]
    for key, array in arrays.items():
        if array.dtype.kind not in "iuf":
            raise UserError(f"{name}, array {key}: expected numbers, got {array.dtype}.")
        expected = (len(points) if points.ndim else 0, *((3,) if key == "points" else ()))
        if array.shape != expected:
            rule = "(points, 3)" if key == "points" else f"({expected[0]}), a number for each point"
            raise UserError(f"{name}, array {key}: expected the shape {rule}, got {array.shape}.")
    return np.column_stack([arrays[key].astype(np.float64) for key in names])


def _parse_table(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    header: list[str] = []
    indices: list[int] = []
    separator: str | None = None
    rows: list[list[float]] = []
    expected = f"expected a cloud of points (.npz, .ply, .pcd), or a table with a header of {','.join(columns)}"
    for number, line in enumerate(split_lines(content, name), start=1):
        where = f"{name}, line {number}"
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            problem = describe_decode_error(error) if header else expected
            raise UserError(f"{where}: {problem}.") from None
        if not text:
            continue
        if not header:
            separator = next((sign for sign in ";,\t" if sign in text), None)
            header = [cell.strip().strip('"').lower() for cell in text.split(separator)]
            if any(header.count(column.lower()) != 1 for column in columns):
                raise UserError(f"{where}: {expected}, got {text[:_SHOWN]!r}.")
            indices = [header.index(column.lower()) for column in columns]
            continue
        cells = text.split(separator)
        if len(cells) != len(header):
            raise UserError(
                f"{where}: expected {len(header)} cells, as in the header, got {len(cells)}."
            )
        selected = [
            cells[index].replace(",", ".") if separator == ";" else cells[index]
            for index in indices
        ]
        numbers = parse_numbers(selected, most=_MOST)
        if not numbers:
            raise UserError(
                f"{where}: expected numbers of at most {_MOST:g}, got "
                f"{', '.join(selected)[:_SHOWN]!r}."
            )
        rows.append(numbers)
    if not header:
        raise UserError(f"{name}: {expected}, but the file is empty.")
    return np.array(rows, np.float64).reshape(len(rows), len(columns))


def _parse_ply(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    trimesh = _import("trimesh.exchange.ply", "trimesh", name)
    header, end, _ = content[:_MOST_HEADER].partition(b"end_header")
    found = re.search(rb"^element vertex (\d+)\s*$", header, re.MULTILINE)
    if not end or found is None:
        raise UserError(f"{name}: expected a PLY header with `element vertex` and `end_header`.")
    properties = re.split(rb"^element ", header[found.end() :], flags=re.MULTILINE)[0].decode(
        "latin-1"
    )
    names = re.findall(r"^property (?!list )\S+ (\S+)", properties, re.MULTILINE)
    _check_columns(names, columns, name)
    is_first = b"element" not in header[: found.start()] and "property list " not in properties
    if b"format ascii" in header and is_first:
        _check_lines(
            content, header.count(b"\n") + 1, count=int(found[1]), width=len(names), name=name
        )
    try:
        with warnings.catch_warnings(action="error"):  # numpy warns of a line that it reads in part
            loaded = trimesh.load_ply(io.BytesIO(content), fix_texture=False, skip_materials=True)
        element = loaded["metadata"]["_ply_raw"]["vertex"]
        stated, data = int(element["length"]), element.get("data")
    except (
        Exception
    ) as error:  # trimesh raises what its parser meets: ValueError, IndexError, KeyError ...
        problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(
            f"{name}: cut, damaged, or not as its header states ({problem})."
        ) from error
    return _stack(data, columns, stated, name) if stated else np.zeros((0, len(columns)))


def _check_lines(content: bytes, first: int, *, count: int, width: int, name: str) -> None:
    """Check the lines of the points in a PLY file of text, after `first` lines. Raises UserError
    naming the line."""
    lines = content.removesuffix(b"\n").split(b"\n")
    if len(lines) - first < count:
        raise UserError(
            f"{name}: its header states {count:,} points, but {len(lines) - first:,} lines follow."
        )
    for number, line in enumerate(lines[first : first + count], start=first + 1):
        cells = line.decode("latin-1").split()
        if len(cells) != width or not parse_numbers(cells, most=np.inf):
            shown = " ".join(cells)[:_SHOWN]
            raise UserError(
                f"{name}, line {number}: expected {width} numbers, as in the header, got {shown!r}."
            )


def _parse_pcd(content: bytes, name: str, columns: Sequence[str]) -> NDArray[np.float64]:
    pypcd4 = _import("pypcd4", "pypcd4", name)
    found = re.search(rb"^DATA[ \t]+(\w+)[^\n]*\n", content[:_MOST_HEADER], re.MULTILINE)
    if not found:
        raise UserError(f"{name}: expected a PCD header that ends with DATA.")
    try:
        lines = content[: found.end()].decode("ascii").splitlines()
        metadata = pypcd4.MetaData.parse_header([line.strip() for line in lines])
        needed, available = (
            metadata.points * metadata.build_dtype().itemsize,
            len(content) - found.end(),
        )
        kind, stated = found[1].decode("ascii"), metadata.points
    except Exception as error:  # pydantic and numpy raise errors of their own
        raise UserError(
            f"{name}: its header is damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    if metadata.width * metadata.height != stated:
        raise UserError(
            f"{name}: its header states {stated:,} points, but WIDTH {metadata.width:,} and HEIGHT "
            f"{metadata.height:,}."
        )
    if kind == "binary":
        is_possible = needed <= available and not content[found.end() + needed :].strip(_PADDING)
    elif kind == "ascii":
        is_possible = 2 * stated <= available + 1
    else:
        unpacked = struct.unpack_from("<II", content, found.end())[1] if available >= 8 else -1
        is_possible = unpacked == needed <= min(available * _MOST_RATIO, file_limit())
    if not is_possible:
        raise UserError(
            f"{name}: its header states {stated:,} points, {needed:,} bytes, but the file holds "
            f"{available:,} bytes "
            f"of data ({kind})."
        )
    try:
        data = pypcd4.PointCloud.from_fileobj(io.BytesIO(content)).pc_data
    except Exception as error:  # numpy, struct and lzf
        raise UserError(
            f"{name}: cut or damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    _check_columns(data.dtype.names, columns, name)
    return (
        _stack(np.atleast_1d(data), columns, stated, name)
        if stated
        else np.zeros((0, len(columns)))
    )


def _check_columns(names: Sequence[str], columns: Sequence[str], name: str) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        raise UserError(
            f"{name}: expected points with {', '.join(columns)}, got {', '.join(names)[:_SHOWN]}."
        )


def _stack(data: Any, columns: Sequence[str], stated: int, name: str) -> NDArray[np.float64]:
    """Return the named columns of a table of points. Raises UserError for another number of points
    than stated."""
    values = [np.asarray(data[column]) for column in columns]
    if any(value.shape not in ((stated,), (stated, 1)) for value in values):
        raise UserError(
            f"{name}: its header states {stated:,} points, but the file holds {len(values[0]):,}."
        )
    return np.column_stack([value.reshape(stated).astype(np.float64) for value in values])


def _import(module: str, package: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f'{name}: reading it needs the package {package}: pip install "regard[points]" '
            f"({error})"
        ) from error


_FORMATS: dict[bytes, Callable[[bytes, str, Sequence[str]], NDArray[np.float64]]] = {
    b"PK": _parse_npz,
    b"ply": _parse_ply,
    b"# .PCD": _parse_pcd,
}
"""Parser of each format by the first bytes of its files."""
