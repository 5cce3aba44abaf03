"""Pipes given in place of files, `<(zcat FILE.gz)` or named pipes: read to the end, up to a limit.
(no torch)

The content of an unnamed pipe can be read only once, so it is cached for programs that read their
data again. A named pipe is opened again and waits for another writer, except inside
`cache_named_pipes`.
"""

import functools
import io
import os
import select
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from regard.errors import UserError

_PATIENCE = 3.0
_BLOCK = 1 << 20
_Contents = dict[tuple[int, int], bytes]
_unnamed: _Contents = {}
_named: ContextVar[_Contents | None] = ContextVar("regard-named-pipes", default=None)


@contextmanager
def cache_named_pipes() -> Generator[None, None, None]:
    """Cache the content of named pipes that are read in this block, so that each is written only
    once."""
    token = _named.set({})
    try:
        yield
    finally:
        _named.reset(token)


def open_pipe(path: Path) -> BinaryIO:
    """Open a pipe once there is something to read; warns if that takes more than 3 seconds."""
    handle = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK
    )  # otherwise opening a pipe without a writer blocks silently
    file = os.fdopen(handle, "rb")
    if not select.select([handle], [], [], _PATIENCE)[0]:
        warnings.warn(f"{path}: waiting for a program that writes to this pipe.", stacklevel=2)
        select.select([handle], [], [])
    os.set_blocking(handle, True)
    return file


def read_pipe(path: Path, status: os.stat_result, *, limit: int) -> bytes:
    """Return the content of a pipe, from the cache if it was read before (unnamed pipes, or in
    `cache_named_pipes`).

    Raises:  UserError naming the path if there are more than `limit` bytes.
    """
    key = (status.st_dev, status.st_ino)
    cache = _unnamed if status.st_dev == _device_of_unnamed() else _named.get()
    if cache is not None and key in cache:
        return cache[key]
    content = io.BytesIO()
    with open_pipe(path) as file:
        while block := file.read(min(_BLOCK, limit + 1 - content.tell())):
            content.write(block)
    if content.tell() > limit:
        raise UserError(f"{path}: the pipe holds more than the {limit:,} bytes that are read.")
    if cache is not None:
        cache[key] = content.getvalue()
    return content.getvalue()


@functools.cache
def _device_of_unnamed() -> int:
    """Return the device number of the file system that holds unnamed pipes."""
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)
