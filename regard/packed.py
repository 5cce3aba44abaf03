"""Files packed by gzip, bzip2 or xz: recognized by their first bytes, unpacked up to a limit. (no torch)"""

import importlib
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError

_PART_BYTES = 1 << 18
_MOST_DICTIONARY = 1 << 30
"""Bytes that an xz file may claim for its dictionary: the largest setting of the program takes 64 MiB."""


class _Form(NamedTuple):
    name: str
    ending: str
    starts: tuple[bytes, ...]
    decompressor: Callable[[], Any]


def _module(name: str) -> Any:
    """A module of the standard library that some builds of Python lack; loaded only where it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"this Python was built without {name}: unpack the file first ({error})") from error


_FORMS = (
    _Form("gzip", ".gz", (b"\x1f\x8b",), lambda: zlib.decompressobj(wbits=31)),
    _Form(
        "bzip2",
        ".bz2",
        tuple(b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")),
        lambda: _module("bz2").BZ2Decompressor(),
    ),
    _Form("xz", ".xz", (b"\xfd7zXZ\0",), lambda: _module("lzma").LZMADecompressor(memlimit=_MOST_DICTIONARY)),
)
_OTHERS = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"7z\xbc\xaf\x27\x1c": "7z"}
ENDINGS = tuple(form.ending for form in _FORMS)
"""What names of packed files end in."""


def plain_name(path: str | Path) -> str:
    """The name of a file without the ending that tells how it is packed, in lower case: A.TSV.gz is a.tsv."""
    name = Path(path).name.lower()
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def is_packed(content: bytes) -> bool:
    """Whether content begins as a packed file that `unpack` reads."""
    return any(content.startswith(form.starts) for form in _FORMS)


def unpack(path: Path, content: bytes, *, limit: int, variable: str) -> bytes:
    """The content of a file, unpacked if its first bytes say that it is packed.

    The result is counted while it is unpacked: at most `limit` bytes.

    variable:  the environment variable that sets the limit, for messages.
    Raises:    UserError naming the file if it is damaged, too large, packed in another form, or not packed in spite of
               its name.
    """
    for form in _FORMS:
        if content.startswith(form.starts):
            return _unpacked(path, content, form, limit, variable)
    other = next((name for start, name in _OTHERS.items() if content.startswith(start)), None)
    if other:
        raise UserError(f"{path}: is packed by {other}, which is not read: unpack it first (gzip, bzip2, xz are read).")
    for form in _FORMS:
        if content and path.name.lower().endswith(form.ending):
            starts = f"it starts with {content[:2]!r}"
            raise UserError(f"{path}: not a {form.name} file, although its name ends in {form.ending} ({starts}).")
    return content


def _unpacked(path: Path, content: bytes, form: _Form, limit: int, variable: str) -> bytes:
    found, place, whole = io.BytesIO(), 0, memoryview(content)
    while place < len(content):
        stream = form.decompressor()  # a file may hold several parts, one behind the other
        while place < len(content) and not stream.eof:
            block = whole[place : place + _PART_BYTES]
            try:
                found.write(stream.decompress(block, limit - found.tell() + 1))
            except MemoryError:
                raise
            except Exception as error:  # each form has errors of its own
                raise _unusable(path, form, f"damaged ({error})", found) from error
            place += len(block) - len(stream.unused_data)
            if found.tell() > limit:
                raise UserError(
                    f"{path}: its {len(content):,} bytes of {form.name} unpack to more than the {limit:,} that are "
                    f"read ({variable} raises this): unpack it first, then memory alone is the limit."
                )
        if not stream.eof:
            raise _unusable(path, form, f"cut off after {len(content)} bytes", found)
        while place < len(content) and not content[place]:  # zeros fill up the last block of a tape
            place += 1
    return found.getvalue()


def _unusable(path: Path, form: _Form, problem: str, found: io.BytesIO) -> UserError:
    size, line = found.tell(), found.getvalue().count(b"\n") + 1
    return UserError(
        f"{path}: the {form.name} file is {problem}; it can be read up to byte {size:,}, about line {line}."
    )
