"""Files compressed by gzip, bzip2 or xz: recognized by their first bytes, decompressed up to a limit. (no torch)"""

import importlib
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError

_PART_BYTES = 1 << 18
_MOST_DICTIONARY = 1 << 30
"""Maximum size in bytes of the dictionary of an xz file; the largest preset of xz takes 64 MiB."""


class _Form(NamedTuple):
    name: str
    ending: str
    starts: tuple[bytes, ...]
    decompressor: Callable[[], Any]


def _module(name: str) -> Any:
    """Import a module of the standard library that some builds of Python lack."""
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
"""Suffixes of compressed files."""


def plain_name(path: str | Path) -> str:
    """Return the name of a file in lower case, without the suffix of its compression: A.TSV.gz is a.tsv."""
    name = Path(path).name.lower()
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def is_packed(content: bytes) -> bool:
    """Return True if the content starts like a compressed file that `unpack` reads."""
    return any(content.startswith(form.starts) for form in _FORMS)


def unpack(path: Path, content: bytes, *, limit: int, variable: str) -> bytes:
    """Decompress the content of a file if its first bytes are those of a compressed file.

    The result is counted during decompression: at most `limit` bytes.

    variable:  the environment variable that sets the limit, for messages.
    Raises:    UserError naming the file if it is damaged, too large, compressed in an unsupported format, or not
               compressed in spite of its name.
    """
    for form in _FORMS:
        if content.startswith(form.starts):
            return _decompress(path, content, form, limit, variable)
    other = next((name for start, name in _OTHERS.items() if content.startswith(start)), None)
    if other:
        raise UserError(f"{path}: is compressed by {other}: decompress it first (gzip, bzip2 and xz are supported).")
    for form in _FORMS:
        if content and path.name.lower().endswith(form.ending):
            starts = f"it starts with {content[:2]!r}"
            raise UserError(f"{path}: not a {form.name} file, although its name ends in {form.ending} ({starts}).")
    return content


def _decompress(path: Path, content: bytes, form: _Form, limit: int, variable: str) -> bytes:
    output, position, view = io.BytesIO(), 0, memoryview(content)
    while position < len(content):
        stream = form.decompressor()  # a file may hold several streams, one after the other
        while position < len(content) and not stream.eof:
            block = view[position : position + _PART_BYTES]
            try:
                output.write(stream.decompress(block, limit - output.tell() + 1))
            except MemoryError:
                raise
            except Exception as error:  # each format has its own errors
                raise _format_error(path, form, f"damaged ({error})", output) from error
            position += len(block) - len(stream.unused_data)
            if output.tell() > limit:
                raise UserError(
                    f"{path}: its {len(content):,} bytes of {form.name} unpack to more than the {limit:,} that are "
                    f"read ({variable} raises this): unpack it first, then memory alone is the limit."
                )
        if not stream.eof:
            raise _format_error(path, form, f"cut off after {len(content)} bytes", output)
        while position < len(content) and not content[position]:  # zeros pad the last block of a tape
            position += 1
    return output.getvalue()


def _format_error(path: Path, form: _Form, problem: str, output: io.BytesIO) -> UserError:
    size, line = output.tell(), output.getvalue().count(b"\n") + 1
    return UserError(
        f"{path}: the {form.name} file is {problem}; it can be read up to byte {size:,}, about line {line}."
    )
