"""Read the raw lines of a file, plain or gzip, with messages that say what is wrong with it and where."""

from pathlib import Path

from regard.errors import UserError
from regard.files import read_unpacked

MOST_LINES = 50_000_000
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE = 1000


def read_lines(path: Path) -> list[bytes]:
    r"""The lines of a file as bytes, split at "\n" only, without their ends.

    Gzip is recognized by the first bytes. A final "\n" ends the last line and starts no other. A UTF-8 byte
    order mark at the start is dropped.

    Raises:  UserError if the file is missing (with near names), a folder, unreadable, damaged gzip, empty, UTF-16, or
             of more than MOST_LINES lines.
    """
    content = read_unpacked(path)
    if not content:
        raise UserError(f"{path}: the file is empty.")
    if _is_utf16(content[:_SAMPLE]):
        raise UserError(f"{path}: looks like UTF-16, expected UTF-8: save it as UTF-8 (iconv -f UTF-16 -t UTF-8 FILE).")
    count = content.count(b"\n")
    if count > MOST_LINES:
        raise UserError(f"{path}: has {count:,} lines, more than the {MOST_LINES:,} that are read of a file.")
    lines = content.removeprefix(_UTF8_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: the file is empty, but for a byte order mark.")
    return lines


def filled_lines(path: Path) -> list[tuple[int, bytes]]:
    """The lines that hold more than white space, with their numbers from 1. Raises UserError as `read_lines`."""
    return [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]


def not_utf8(error: UnicodeDecodeError, where: str = "") -> str:
    """What is wrong with a line that cannot be decoded, and at which byte of it."""
    if error.object.startswith(b"\x1f\x8b"):
        return "is packed by gzip: unpack it first"
    if error.object.startswith(_UTF16_MARKS) and b"\0" in error.object:
        return "looks like UTF-16, expected UTF-8: save the file as UTF-8"
    wrong = error.object[error.start : error.start + 1]
    try:
        hint = f"; in Windows-1252 it is {wrong.decode('cp1252')!r}: save the file as UTF-8"
    except UnicodeDecodeError:
        hint = ""
    return f"not UTF-8: byte 0x{wrong.hex()} at place {error.start + 1} of the line{where} ({error.reason}){hint}"


def _is_utf16(start: bytes) -> bool:
    """Whether a file begins with UTF-16's mark, or as Latin letters in UTF-16 do: every second byte is zero."""
    halves = [start[place::2].count(0) / max(1, len(start[place::2])) for place in (0, 1)]
    return start.startswith(_UTF16_MARKS) or (len(start) > 8 and min(halves) == 0 and max(halves) > 0.7)
