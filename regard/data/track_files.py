"""Files of trajectories: the positions of all agents in each frame.

    780   1   8.46   3.59      FILE: frame, id, x, y; separated by white space, commas or
    semicolons, in any order
                               a decimal comma is read between semicolons or tabs
    780   2   9.57   3.79      frames and ids may be written 780.0; ids may be texts
                               lines that begin with # are comments

    frame id x z y vx vz vy    a header selects these columns among others, in any order

Source: the format of the files of gupta2018.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.data.bad_rows import BadRow, BadRows, Skipped
from regard.data.config import OnBad
from regard.data.text.lines import describe_decode_error, read_lines
from regard.data.text.numbers import format_number, parse_number
from regard.errors import UserError

Frames = dict[float, dict[str, tuple[float, float]]]
"""frame -> id -> (x, y)"""

_COLUMNS = ("frame", "id", "x", "y")
_ALIASES = {"frameid": "frame", "framenumber": "frame", "posx": "x", "posy": "y"} | dict.fromkeys(
    ("trackid", "agentid", "personid", "pedid", "pedestrianid"), "id"
)
_MOST_METERS = 1e9
"""Limit of coordinates, whose squares are finite in single precision."""
_MOST_FRAME = 2.0**53 - 1
"""Limit of frame numbers, up to which integers are exact in double precision; includes milliseconds
since 1970."""
_DECIMAL_COMMA = re.compile(r"^([-+]?\d*),(\d+)$")
_NO_ID = ("", "?", "nan", "none", "null")


def read_frames(path: str | Path, on_bad: OnBad = "error") -> tuple[Frames, Skipped]:
    """Read the positions of all agents in each frame, and the reasons for skipped lines.

    on_bad:  error raises at the first line that is not a position; skip skips such lines.
    Raises:  UserError naming the file, the line, what was expected and what was found.
    """
    return parse_frames(read_lines(Path(path)), str(path), on_bad)


def parse_frames(
    lines: Iterable[bytes], path: str, on_bad: OnBad = "error"
) -> tuple[Frames, Skipped]:
    """Return the positions in the lines of a file of this name, as `read_frames`."""
    frames: Frames = {}
    bad_rows = BadRows(on_bad)
    columns: Sequence[int] | None = None  # empty without a header
    for number, line in enumerate(lines, start=1):
        where, cells = f"{path}, line {number}", []
        with bad_rows.catch(where):
            cells = _split(line)
        if not cells or cells[0].startswith("#"):
            continue
        if columns is None:
            columns = _parse_header(cells, where)
            if columns:
                continue
        with bad_rows.catch(where):
            _add(frames, cells, columns)
    return frames, bad_rows.skipped


def sort_ids(names: set[str]) -> list[str]:
    """Sort ids: numbers by value, then other strings."""

    def key(name: str) -> tuple[bool, float, str]:
        value = parse_number(name, most=_MOST_FRAME)
        return value is None, value or 0.0, name

    return sorted(names, key=key)


def _split(line: bytes) -> list[str]:
    """Split a line into cells, without empty ones at its end."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow("not UTF-8", describe_decode_error(error)) from None
    separator = next((sign for sign in ";\t," if sign in text.strip()), None)
    cells = [cell.strip() for cell in text.split(separator)]
    if separator is not None and separator in ";\t":
        cells = [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _parse_header(cells: Sequence[str], where: str) -> list[int]:
    """Return the indices of frame, id, x and y if this line, the first, has no number, else an
    empty list."""
    if any(parse_number(cell, most=float("inf")) is not None for cell in cells):
        return []
    plain_names = [cell.lower().replace("_", "").replace(" ", "") for cell in cells]
    names = [_ALIASES.get(name, name) for name in plain_names]
    if any(names.count(name) != 1 for name in _COLUMNS):
        shown = repr(" ".join(cells)[:60])
        raise UserError(
            f"{where}: expected four columns frame, id, x, y, or a header with them, got {shown}."
        )
    return [names.index(name) for name in _COLUMNS]


def _add(frames: Frames, cells: Sequence[str], columns: Sequence[int] | None) -> None:
    """Add the position of a line to its frame. Raises BadRow if the line is not a position."""
    shown = repr(" ".join(cells)[:60])
    if columns:
        if len(cells) <= max(columns):
            raise BadRow(
                "wrong number of columns",
                f"expected {max(columns) + 1} columns, as in the header, got {shown}",
            )
        cells = [cells[column] for column in columns]
    if len(cells) != len(_COLUMNS):
        hint = (
            ""
            if len(cells) < len(_COLUMNS)
            else "; a header selects columns, such as: frame id x z y vx vz vy"
        )
        raise BadRow(
            "wrong number of columns", f"expected four columns frame, id, x, y, got {shown}{hint}"
        )
    frame, x, y = (
        parse_number(cells[0], most=_MOST_FRAME),
        *(parse_number(cell, most=_MOST_METERS) for cell in cells[2:]),
    )
    if frame is None or x is None or y is None or cells[1].lower() in _NO_ID:
        limits = f"at most 2^53 and {_MOST_METERS:g}"
        raise BadRow(
            "no position",
            f"expected frame, id, x, y with numeric frame, x and y ({limits}), got {shown}",
        )
    numeric_id = parse_number(cells[1], most=_MOST_FRAME)
    agent = cells[1] if numeric_id is None else format_number(numeric_id)
    positions = frames.setdefault(frame, {})
    if agent in positions:
        raise BadRow("repeated", f"id {agent} is in frame {format_number(frame)} twice")
    positions[agent] = (x, y)
