"""Pipes in the place of files, `<(zcat FILE.gz)` or with a name: read to their end, up to a limit. (no torch)

The content of a pipe without a name can be read once by the system, so it is kept: a program that reads its data again
finds it. A pipe with a name is opened again, and waits for another program that writes to it, except in a block of
`pipes_kept`.
"""

import functools
import io
import os
import select
import stat
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
def pipes_kept() -> Generator[None, None, None]:
    """Keep the content of named pipes that are read in this block, so that each needs to be written once."""
    token = _named.set({})
    try:
        yield
    finally:
        _named.reset(token)


def is_pipe(found: os.stat_result) -> bool:
    """Whether what the system says of a path is a pipe."""
    return stat.S_ISFIFO(found.st_mode)


def open_pipe(path: Path) -> BinaryIO:
    """The pipe as a stream of bytes, once there is something to read; warns when that takes more than 3 seconds."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe that nobody writes to waits without a word
    file = os.fdopen(handle, "rb")
    if not select.select([handle], [], [], _PATIENCE)[0]:
        warnings.warn(f"{path}: waiting for a program that writes to this pipe.", stacklevel=2)
        select.select([handle], [], [])
    os.set_blocking(handle, True)
    return file


def read_pipe(path: Path, found: os.stat_result, *, limit: int) -> bytes:
    """All that is written to a pipe, also when it was read before: one without a name, or in a block of `pipes_kept`.

    Raises:  UserError naming the path if there is more than `limit` bytes.
    """
    key = (found.st_dev, found.st_ino)
    kept = _unnamed if found.st_dev == _device_of_unnamed() else _named.get()
    if kept is not None and key in kept:
        return kept[key]
    content = io.BytesIO()
    with open_pipe(path) as file:
        while block := file.read(min(_BLOCK, limit + 1 - content.tell())):
            content.write(block)
    if content.tell() > limit:
        raise UserError(f"{path}: the pipe holds more than the {limit:,} bytes that are read.")
    if kept is not None:
        kept[key] = content.getvalue()
    return content.getvalue()


@functools.cache
def _device_of_unnamed() -> int:
    """The number of the file system that holds pipes without names."""
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)
