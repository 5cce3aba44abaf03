"""Lock of a folder between processes, by `flock`: it ends with the process. (no torch)"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

_held: set[str] = set()
"""Folders that this process has locked."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes, once per process. Raises UserError if
    another process has locked it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = os.path.realpath(folder)
    if fcntl is None or name in _held:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a network file system without locks
            try:
                # pyrefly: ignore[missing-attribute]
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{folder}: another process works in this folder") from None
        _held.add(name)
        yield
    finally:
        _held.discard(name)
        os.close(handle)
