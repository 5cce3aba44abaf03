"""What a word of a command line stands for, where inputs are asked for: a file itself, its lines, or a text."""

from collections.abc import Sequence
from pathlib import Path

from regard.errors import UserError
from regard.recipes.config import Tracks
from regard.recipes.folder import Run
from regard.recipes.registry import entry

__all__ = ["decoded", "is_file", "is_input_itself", "lines_of"]


def is_input_itself(given: str, record: Run | None) -> bool:
    """Whether a file is to be answered itself, and not its lines: an image, a sound, a recording."""
    if record is None or not is_file(given):
        return False
    kind = entry(record.recipe)
    return kind.reads_files and (isinstance(record.config, Tracks) or not given.endswith((".txt", ".lst")))


def is_file(given: str) -> bool:
    """Whether there is a file of this name."""
    try:
        return Path(given).is_file()
    except (OSError, ValueError):  # no possible name: too long, or with a null character
        return False


def lines_of(given: str) -> list[str]:
    """The lines of a file."""
    return decoded(Path(given).read_bytes(), given, 1)


def decoded(content: bytes, origin: str, first: int) -> list[str]:
    """The lines of some bytes. Raises UserError, naming the line, for what is not UTF-8."""
    lines: Sequence[bytes] = content.split(b"\n")
    if not lines[-1]:
        lines = lines[:-1]
    texts = []
    for number, line in enumerate(lines, start=first):
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise UserError(f"{origin}, line {number}: not UTF-8 ({error.reason})") from error
    return texts
