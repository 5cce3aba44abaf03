"""Read the raw lines of a file, plain or gzip, with messages that say what is wrong with it and where."""

from pathlib import Path

from regard.errors import UserError
from regard.files import read_unpacked

__all__ = ["MOST_LINES", "not_utf8", "read_lines"]

MOST_LINES = 50_000_000
_UTF8_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path) -> list[bytes]:
    r"""The lines of a file as bytes, split at "\n" only, without their ends.

    Gzip is recognised by the first bytes. A final "\n" ends the last line and starts no other. A UTF-8 byte
    order mark at the start is dropped.

    Raises:  UserError if the file is missing (with near names), a folder, unreadable, damaged gzip, empty, or of more
             than MOST_LINES lines.
    """
    content = read_unpacked(path)
    if not content:
        raise UserError(f"{path}: the file is empty.")
    count = content.count(b"\n")
    if count > MOST_LINES:
        raise UserError(f"{path}: has {count:,} lines, more than the {MOST_LINES:,} that are read of a file.")
    lines = content.removeprefix(_UTF8_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: the file is empty, but for a byte order mark.")
    return lines


def not_utf8(error: UnicodeDecodeError, where: str = "") -> str:
    """What is wrong with a line that cannot be decoded, and at which byte of it."""
    byte = f"byte 0x{error.object[error.start]:02x} at place {error.start + 1} of the line{where}"
    return f"not UTF-8: {byte} ({error.reason})"
