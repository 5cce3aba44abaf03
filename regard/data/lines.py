"""Read the raw lines of a file, plain or gzip, with messages that say what is wrong with it and where."""

import difflib
import gzip
import io
import zlib
from collections.abc import Iterable
from pathlib import Path

from regard.errors import UserError

__all__ = ["did_you_mean", "read_lines"]

_GZIP_MAGIC = b"\x1f\x8b"
_PART_BYTES = 1 << 16
_UTF8_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path) -> list[bytes]:
    r"""The lines of a file as bytes, split at "\n" only, without their ends.

    Gzip is recognised by the first bytes. A final "\n" ends the last line and starts no other. A UTF-8 byte
    order mark at the start is dropped.

    Raises:  UserError if the file is missing (with near names), a folder, unreadable, damaged gzip, or empty.
    """
    content = _read(path)
    if content.startswith(_GZIP_MAGIC):
        content = _unzip(path, content)
    elif content and path.suffix == ".gz":
        raise UserError(f"{path}: not a gzip file, although its name ends in .gz (it starts with {content[:2]!r}).")
    if not content:
        raise UserError(f"{path}: the file is empty.")
    lines = content.removeprefix(_UTF8_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names nearest to `name`, or nothing when none is near."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file.{_near_files(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a file.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from error


def _near_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist."
    try:
        return did_you_mean(path.name, (one.name for one in path.parent.iterdir()))
    except OSError:  # a folder that may be entered but not listed: the near names are only a help
        return ""


def _unzip(path: Path, content: bytes) -> bytes:
    parts: list[bytes] = []
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while part := file.read1(_PART_BYTES):
                parts.append(part)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"cut off after {len(content)} bytes" if isinstance(error, EOFError) else f"damaged ({error})"
        line = sum(part.count(b"\n") for part in parts) + 1
        raise UserError(f"{path}: the gzip file is {problem}; it can be read up to about line {line}.") from error
    return b"".join(parts)
