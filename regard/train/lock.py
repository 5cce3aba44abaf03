"""One process at a time trains in a run folder.

The system's lock (flock) on the folder itself: there is no file to leave behind, and it ends with the process, however
that ends. Reading a run is not concerned.
"""

import os
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["held"]

_owners: dict[tuple[int, int], tuple[int, int]] = {}
"""By device and inode of a folder, the process and thread here that hold it."""


@contextmanager
def held(folder: Path) -> Generator[None, None, None]:
    """Keep every other training out of an existing folder; entering it twice is fine.

    Raises:  UserError naming the folder and, where the system tells, the process that trains in it.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    found, me = os.fstat(handle), (os.getpid(), threading.get_ident())
    key = found.st_dev, found.st_ino
    is_again = _owners.get(key) == me
    try:
        if not is_again:
            _lock(handle, folder, found)
            _owners[key] = me
        yield
    finally:
        if not is_again and _owners.get(key) == me:
            del _owners[key]
        os.close(handle)


def _lock(handle: int, folder: Path, found: os.stat_result) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(found)
        who = f"process {owner}" if owner else "another process"
        raise UserError(
            f"{folder}: {who} trains in this folder; wait until it has ended, or choose another folder with --run"
        ) from None
    except OSError as error:  # some network file systems
        warnings.warn(
            f"{folder} cannot be locked here ({error.strerror}): see that no other process trains in it", stacklevel=5
        )


def _owner(found: os.stat_result) -> int | None:
    """The process that holds the lock, where Linux tells it: `1: FLOCK ADVISORY WRITE 4711 fe:01:1234 0 EOF`."""
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    owners = [int(words[4]) for words in map(str.split, lines) if words[1:2] == ["FLOCK"] and words[5:6] == [place]]
    return owners[0] if owners and owners[0] > 0 else None
