"""Lock of a folder between processes, which ends with the process: `flock` of the folder itself; on
Windows, where there is none, a lock of a file in the user's temporary folder. (no torch)"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_held: set[str] = set()
"""Folders that this process has locked."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes, once per process. Raises UserError if
    another process has locked it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = os.path.realpath(folder)
    if name in _held:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_lock_file(name) if fcntl is None else _lock_itself(folder))
        except (BlockingIOError, TimeoutError):
            raise UserError(f"{folder}: another process works in this folder") from None
        _held.add(name)
        stack.callback(_held.discard, name)
        yield


@contextlib.contextmanager
def _lock_itself(folder: Path) -> Iterator[None]:
    """Lock a folder. Raises: BlockingIOError if it is locked."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # pyrefly: ignore[missing-attribute]
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # a network file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def _lock_file(name: str) -> contextlib.AbstractContextManager[object]:
    """Lock a file that stands for a folder. Raises: TimeoutError if it is locked."""
    from filelock import FileLock  # needed on Windows alone # noqa: PLC0415

    digest = hashlib.sha256(os.fsencode(os.path.normcase(name))).hexdigest()[:32]
    return FileLock(Path(tempfile.gettempdir(), f"regard-{digest}.lock")).acquire(blocking=False)
