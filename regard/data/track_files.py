"""Files of trajectories: the positions of all agents in each frame (docs/recipes/tracks.md).

Source: the format of the files of gupta2018.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.data.bad_rows import BadRows
from regard.data.config import OnBad
from regard.data.tables import as_number, decode_line, excerpt, read_lines
from regard.errors import UserError

Frames = dict[float, dict[str, tuple[float, float]]]
"""frame -> id -> (x, y)"""

_COLUMNS = ("frame", "id", "x", "y")


def read_frames(path: str | Path, on_bad: OnBad = "error") -> tuple[Frames, list[str]]:
    """Read the positions of all agents in each frame, and the reasons for skipped lines."""
    return parse_frames(read_lines(Path(path)), str(path), on_bad)


def parse_frames(
    lines: Iterable[bytes], path: str, on_bad: OnBad = "error"
) -> tuple[Frames, list[str]]:
    """Return the positions in the lines of a file of this name, as `read_frames`."""
    frames: Frames = {}
    bad_rows = BadRows(on_bad, "lines")
    columns: Sequence[int] = ()
    width = 4
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        with bad_rows.catch(where):
            text = decode_line(line, where).strip()
            if not text or text.startswith("#"):
                continue
            cells = [cell.strip() for cell in text.split("," if "," in text else None)]
            if not columns:
                is_header = set(_COLUMNS) <= set(cells)
                columns = [cells.index(name) for name in _COLUMNS] if is_header else range(4)
                if is_header:
                    width = len(cells)
                    continue
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
    return frames, bad_rows.skipped


def format_number(value: float) -> str:
    """Format a number for users: 3 instead of 3.0, and all digits of a large integer."""
    return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else f"{value:.12g}"
