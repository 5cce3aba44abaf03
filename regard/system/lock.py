"""Locks between processes, by `flock`: they end with the process. (no torch)"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

_PATIENCE = 0.5
"""Seconds to wait; who only reads the report of a finished run holds the lock for less."""
_held: set[str] = set()
"""Folders that this process has locked."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes, once per process.

    Raises: UserError if another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = os.path.realpath(folder)
    if fcntl is None or name in _held:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _acquire(handle, patience=_PATIENCE):
            raise UserError(f"{folder}: another process trains in this folder")
        _held.add(name)
        yield
    finally:
        _held.discard(name)
        os.close(handle)


def lock_file(path: Path, *, patience: float) -> Callable[[], None]:
    """Lock a file, which is created, and return the function that removes and unlocks it.

    The function does nothing if another process still has the lock after `patience` seconds, or
    where files cannot be locked.
    """
    if fcntl is None:
        return lambda: None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return lambda: None
    if not _acquire(handle, patience=patience):
        os.close(handle)
        return lambda: None

    def unlock() -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)

    return unlock


def _acquire(handle: int, *, patience: float) -> bool:
    """Return True once the lock is held, or where there are no locks (network file systems)."""
    deadline = time.monotonic() + patience
    while True:
        try:
            # pyrefly: ignore[missing-attribute]
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except OSError:
            return True
