"""Files compressed by gzip, bzip2 or xz: recognized by their first bytes, decompressed up to a
limit. (no torch)"""

import importlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError

_PART_BYTES = 1 << 15
"""Bytes decompressed at a time: few, since a block may unpack to thousands of times its size."""
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
        raise UserError(
            f"this Python was built without {name}: unpack the file first ({error})"
        ) from error


_FORMS = (
    _Form("gzip", ".gz", (b"\x1f\x8b",), lambda: zlib.decompressobj(wbits=31)),
    _Form(
        "bzip2",
        ".bz2",
        tuple(
            b"BZh%d" % level + block
            for level in range(1, 10)
            for block in (b"1AY&SY", b"\x17rE8P\x90")
        ),
        lambda: _module("bz2").BZ2Decompressor(),
    ),
    _Form(
        "xz",
        ".xz",
        (b"\xfd7zXZ\0",),
        lambda: _module("lzma").LZMADecompressor(memlimit=_MOST_DICTIONARY),
    ),
)
_OTHERS = (
    ("zstd", ".zst", b"\x28\xb5\x2f\xfd"),
    ("zip", ".zip", b"PK\x03\x04"),
    ("7z", ".7z", b"7z\xbc\xaf\x27\x1c"),
)
UNSUPPORTED = {ending: name for name, ending, _ in _OTHERS}
"""Names of other compressions, by the suffix of the file."""
ENDINGS = tuple(form.ending for form in _FORMS)
"""Suffixes of compressed files."""


def plain_name(path: str | Path) -> str:
    """Return the name of a file in lower case, without the suffix of its compression: A.TSV.gz is
    a.tsv."""
    name = Path(path).name.lower()
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def is_packed(content: bytes) -> bool:
    """Return True if the content starts like a compressed file that `unpack` reads."""
    return any(content.startswith(form.starts) for form in _FORMS)


def unpack(path: Path, content: bytes, *, limit: int, variable: str) -> bytes:
    """Decompress the content of a file if its first bytes are those of a compressed file; see
    `unpack_blocks`."""
    if not is_packed(content):
        check_unpacked(path, content)
        return content
    output = io.BytesIO()
    for block in unpack_blocks(path, [content], limit=limit, variable=variable):
        output.write(block)
    return output.getvalue()


def unpack_blocks(
    path: Path, blocks: Iterable[bytes], *, limit: int, variable: str
) -> Iterator[bytes]:
    """Decompress the blocks of a file if its first bytes are those of a compressed file.

    The result is counted during decompression: at most `limit` bytes.

    variable:  the environment variable that sets the limit, for messages.
    Raises:    UserError naming the file if it is damaged, too large, compressed in an unsupported
               format, or not compressed in spite of its name.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    form = next((form for form in _FORMS if first.startswith(form.starts)), None)
    if form is None:
        check_unpacked(path, first)
        yield first
        yield from blocks
    else:
        yield from _decompress(path, chain([first], blocks), form, limit, variable)


def check_unpacked(path: Path, start: bytes) -> None:
    """Raise UserError if a file that is not decompressed is compressed, or has such a name."""
    other = next((name for name, _, first in _OTHERS if start.startswith(first)), None)
    if other:
        raise UserError(
            f"{path}: is compressed by {other}: decompress it first (gzip, bzip2 and xz are "
            f"supported)."
        )
    for form in _FORMS:
        if start and path.name.lower().endswith(form.ending):
            starts = f"it starts with {start[:2]!r}"
            raise UserError(
                f"{path}: not a {form.name} file, although its name ends in {form.ending} "
                f"({starts})."
            )


def _decompress(
    path: Path, blocks: Iterable[bytes], form: _Form, limit: int, variable: str
) -> Iterator[bytes]:
    stream, stored, written, line = form.decompressor(), 0, 0, 1
    for block in blocks:
        for start in range(0, len(block), _PART_BYTES):
            part = block[start : start + _PART_BYTES]
            stored += len(part)
            while part:
                if stream.eof:  # a file may hold several streams, one after the other
                    part = part.lstrip(b"\0")  # zeros pad the last block of a tape
                    if not part:
                        break
                    stream = form.decompressor()
                try:
                    output = stream.decompress(part, limit - written + 1)
                except MemoryError:
                    raise
                except Exception as error:  # each format has its own errors
                    raise _format_error(path, form, f"damaged ({error})", written, line) from error
                part, written = stream.unused_data, written + len(output)
                if written > limit:
                    raise UserError(
                        f"{path}: its first {stored:,} bytes of {form.name} unpack to more than "
                        f"the {limit:,} that are "
                        f"read ({variable} raises this): unpack it first, then memory alone is the "
                        f"limit."
                    )
                line += output.count(b"\n")
                if output:
                    yield output
    if not stream.eof:
        raise _format_error(path, form, f"cut off after {stored} bytes", written, line)


def _format_error(path: Path, form: _Form, problem: str, size: int, line: int) -> UserError:
    return UserError(
        f"{path}: the {form.name} file is {problem}; it can be read up to byte {size:,}, about "
        f"line {line}."
    )
