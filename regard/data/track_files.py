"""Files of trajectories: the positions of all agents in each frame (docs/recipes/tracks.md).

Source: the format of the files of gupta2018.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from regard.data.bad_rows import BadRows
from regard.data.config import OnBad
from regard.data.tables import as_number, excerpt, read_texts
from regard.errors import UserError

Frames = dict[float, dict[str, tuple[float, float]]]
"""frame -> id -> (x, y)"""

_COLUMNS = ("frame", "id", "x", "y")


def read_frames(
    path: str | Path, on_bad: OnBad = "error", content: bytes | None = None
) -> tuple[Frames, tuple[str, ...]]:
    """Return the positions of all agents in each frame of a file (or of its `content`), and the
    notice about lines that were skipped."""
    frames: Frames = {}
    bad_rows = BadRows(on_bad, "lines")
    columns: Sequence[int] = ()
    width = 4
    for number, line in read_texts(path, bad_rows, content):
        text = line.strip()
        if text.startswith("#"):
            continue
        cells = [cell.strip() for cell in re.split("," if "," in text else "[ \t]+", text)]
        if not columns:
            is_header = set(_COLUMNS) <= set(cells)
            columns = [cells.index(name) for name in _COLUMNS] if is_header else range(4)
            if is_header:
                width = len(cells)
                continue
        with bad_rows.catch(f"{path}, line {number}"):
            if len(cells) != width:
                shown = excerpt(" ".join(cells))
                raise UserError(f"expected {width} columns (frame, id, x, y), got {shown}")
            frame, agent, x, y = (cells[column] for column in columns)
            positions = frames.setdefault(as_number(frame), {})
            # Programs write integers as 780.0, too.
            agent = agent.removesuffix(".0")
            if agent in positions:
                raise UserError(f"id {agent} is in frame {frame} twice")
            positions[agent] = (as_number(x), as_number(y))
    return frames, bad_rows.notices(path)


def format_number(value: float) -> str:
    """Format a number for users: 3 instead of 3.0, and all digits of a large integer."""
    return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else f"{value:.12g}"
