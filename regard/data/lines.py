"""Read the raw lines of a file, plain or gzip, with messages that say what is wrong with it and where."""

import gzip
import io
import zlib
from pathlib import Path

from regard.errors import UserError
from regard.files import read_bytes

__all__ = ["read_lines"]

_GZIP_MAGIC = b"\x1f\x8b"
_PART_BYTES = 1 << 16
_UTF8_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path) -> list[bytes]:
    r"""The lines of a file as bytes, split at "\n" only, without their ends.

    Gzip is recognised by the first bytes. A final "\n" ends the last line and starts no other. A UTF-8 byte
    order mark at the start is dropped.

    Raises:  UserError if the file is missing (with near names), a folder, unreadable, damaged gzip, or empty.
    """
    content = read_bytes(path)
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
