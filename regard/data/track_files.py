"""Files of tracks: who is where in each frame.

    780   1   8.46   3.59      FILE: frame, id, x, y; separated by white space, commas or semicolons, in any order
    780   2   9.57   3.79      frames and ids may be written 780.0; ids may be texts
                               lines that begin with # are left out

    frame id x z y vx vz vy    a first line of names chooses columns among others, in any order

Source: the form of the files of gupta2018.
"""

from collections.abc import Sequence
from pathlib import Path

from regard.data.config import OnBad
from regard.data.lines import not_utf8, read_lines
from regard.data.numbers import number, plain
from regard.errors import UserError

Frames = dict[float, dict[str, tuple[float, float]]]
"""frame -> id -> (x, y)"""

_COLUMNS = ("frame", "id", "x", "y")
_ALIASES = {"frameid": "frame", "framenumber": "frame", "posx": "x", "posy": "y"} | dict.fromkeys(
    ("trackid", "agentid", "personid", "pedid", "pedestrianid"), "id"
)
_MOST_METERS = 1e9
"""So far single precision squares them."""
_MOST_FRAME = 2.0**53 - 1
"""Up to here double precision tells whole numbers apart; milliseconds since 1970 are far below."""
_NO_ID = ("", "?", "nan", "none", "null")


def read_frames(path: str | Path, on_bad: OnBad = "error") -> tuple[Frames, tuple[str, ...]]:
    """Who is where in each frame, and what was skipped.

    on_bad:  error raises at the first line that is no position; skip leaves such lines out.
    Raises:  UserError naming the file, the line, what was expected and what was got.
    """
    frames: Frames = {}
    skipped: list[str] = []
    places: Sequence[int] | None = None
    for count, line in enumerate(read_lines(Path(path)), start=1):
        try:
            cells = _cells(line)
            if not cells or cells[0].startswith("#"):
                continue
            if places is None:
                places = _header(cells)
                if places:
                    continue
            _add(frames, cells, places)
        except _HeaderError as error:
            raise UserError(f"{path}, line {count}: {error}.") from None
        except ValueError as error:
            if on_bad == "error":
                hint = "With `on_bad` = skip, such lines are left out and counted."
                raise UserError(f"{path}, line {count}: {error}. {hint}") from None
            skipped.append(f"{path}, line {count}: {error}")
    return frames, tuple(skipped)


def in_order(names: set[str]) -> list[str]:
    """Ids in order: numbers by size, then texts."""

    def key(name: str) -> tuple[bool, float, str]:
        found = number(name, most=_MOST_FRAME)
        return found is None, found or 0.0, name

    return sorted(names, key=key)


class _HeaderError(ValueError):
    """The names of columns lack one that is needed."""


def _cells(line: bytes) -> list[str]:
    """The parts of a line, without empty ones at its end."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from None
    separator = next((sign for sign in ";," if sign in text), None)
    cells = [cell.strip() for cell in text.split(separator)]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _header(cells: Sequence[str]) -> list[int]:
    """Where frame, id, x and y stand, if this is a line of names; else nothing."""
    if any(number(cell, most=float("inf")) is not None for cell in cells):
        return []
    plain_names = [cell.lower().replace("_", "").replace(" ", "") for cell in cells]
    names = [_ALIASES.get(name, name) for name in plain_names]
    if any(names.count(name) != 1 for name in _COLUMNS):
        raise _HeaderError(f"expected frame, id, x, y, four columns, or their names, got {' '.join(cells)[:60]!r}")
    return [names.index(name) for name in _COLUMNS]


def _add(frames: Frames, cells: Sequence[str], places: Sequence[int] | None) -> None:
    """Add a line's position. Raises ValueError if it is none."""
    shown = repr(" ".join(cells)[:60])
    if places:
        if len(cells) <= max(places):
            raise ValueError(f"expected {max(places) + 1} columns, as the first line names, got {shown}")
        cells = [cells[place] for place in places]
    if len(cells) != len(_COLUMNS):
        hint = "" if len(cells) < len(_COLUMNS) else "; a first line of names chooses columns: frame id x z y vx vz vy"
        raise ValueError(f"expected frame, id, x, y, four columns, got {shown}{hint}")
    frame, x, y = number(cells[0], most=_MOST_FRAME), *(number(cell, most=_MOST_METERS) for cell in cells[2:])
    if frame is None or x is None or y is None or cells[1].lower() in _NO_ID:
        limits = f"at most 2^53 and {_MOST_METERS:g}"
        raise ValueError(f"expected frame, id, x, y, of which frame, x and y are numbers ({limits}), got {shown}")
    named = number(cells[1], most=_MOST_FRAME)
    who = cells[1] if named is None else plain(named)
    there = frames.setdefault(frame, {})
    if who in there:
        raise ValueError(f"id {who} is in frame {plain(frame)} twice")
    there[who] = (x, y)
