"""Detection of truncated sound files: the number of samples stated in the header against the size
of the file.

libsndfile reads truncated files without an error. Streaming writers, which cannot update the
header, state 0 or (nearly) the largest possible number: such files are not considered truncated.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

_MOST_CHUNKS = 10_000
_UNKNOWN = ((0, 0), (0x7F00_0000, 0x7FFF_FFFF), (0xFFFF_0000, 0xFFFF_FFFF))
_LARGEST = 1 << 62
_PAGE_HEADER, _LONGEST_PAGE, _LAST_PAGE = 27, 27 + 255 + 255 * 255, 4


def describe_truncation(file: BinaryIO) -> str:
    """Describe what is missing at the end of a sound file, for a message. Empty if nothing is."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    magic = file.read(4)
    if magic == b"OggS":
        return _missing_pages(file, size)
    for start, stated in _samples(file, magic):
        if (
            stated > max(0, size - start)
            and stated < _LARGEST
            and not any(a <= stated <= b for a, b in _UNKNOWN)
        ):
            return f"its header states {stated:,} bytes of samples, but the file has {max(0, size - start):,}"
    return ""


def _samples(file: BinaryIO, magic: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offset of the samples, and their size in bytes as stated in the header."""
    chunks = {
        b"RIFF": ("<4sI", 12, 2),
        b"RF64": ("<4sI", 12, 2),
        b"RIFX": (">4sI", 12, 2),
        b"FORM": (">4sI", 12, 2),
        b"riff": ("<16sQ", 40, 8),
        b"caff": (">4sQ", 8, 1),
    }
    if magic in (b".snd", b"dns."):
        yield struct.unpack((">" if magic == b".snd" else "<") + "II", file.read(8).ljust(8, b"\0"))
    if magic not in chunks:
        return
    layout, offset, padding = chunks[magic]
    head, large = struct.calcsize(layout), 0
    for _ in range(_MOST_CHUNKS):
        file.seek(offset)
        content = file.read(head)
        if len(content) < head:
            return
        name, length = struct.unpack(layout, content)
        if magic == b"riff":
            length -= head  # W64 sizes include the chunk header
        if name == b"ds64":
            _, large = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))
        if name[:4] in (b"data", b"SSND"):
            yield offset + head, large if magic == b"RF64" and length == 0xFFFF_FFFF else length
            return
        if not 0 <= length < _LARGEST:
            return
        offset += head + -(-length // padding) * padding


def _missing_pages(file: BinaryIO, size: int) -> str:
    """Check that the last page of an Ogg stream is complete and has the end-of-stream flag."""
    file.seek(max(0, size - 2 * _LONGEST_PAGE))
    content = file.read()
    page = content[max(0, content.rfind(b"OggS")) :]
    if not page.startswith(b"OggS"):  # other data follows, so the sound is complete
        return ""
    if len(page) > _PAGE_HEADER:
        lengths = page[_PAGE_HEADER : _PAGE_HEADER + page[26]]
        if page[5] & _LAST_PAGE and len(page) >= _PAGE_HEADER + page[26] + sum(lengths):
            return ""
    return "its last page is missing"
