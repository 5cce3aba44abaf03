"""Open and locked directory of a run.

Training opens the directory of the run once, locks it, and derives every path it writes from the
open directory. So redirecting a symbolic link to another run, or moving the directory, does not
change where the run is saved. After each save the directory is compared (by device and inode) with
the one at its path; if they differ, training stops.

The lock is a system lock (flock) on the directory itself: it leaves no file behind and ends with
the process. Reading a run needs no lock.
"""

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]


Item = TypeVar("Item")

_PATIENCE = 0.5  # seconds; who only asks for the report of a finished run holds the lock for less
_LONGEST_PATH = 1024  # size of the buffer of F_GETPATH on macOS


class DirectoryChangedError(UserError):
    """Error for a path that no longer leads to the directory of the run; the message says where the
    run is now."""


class RunDirectory:
    """Directory that is kept open, so that it is found after a move.

    Linux and macOS report the current path of an open directory. On Windows the directory is not
    kept open, and one that was moved counts as removed.
    """

    def __init__(self, name: Path):
        self.name = name
        self._handle = (
            None if os.name == "nt" else os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )
        self.close: Callable[[], object] = lambda: None
        if self._handle is not None:
            self.close = weakref.finalize(self, os.close, self._handle)
        self.stat = os.stat(name) if self._handle is None else os.fstat(self._handle)
        # Links are resolved, so that redirecting one cannot change where files are saved; without
        # links, as given.
        real = os.path.realpath(name)
        self._path = name if real == os.path.abspath(name) else Path(real)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name; the other process opens the directory itself."""
        return RunDirectory, (self.name,)

    @property
    def path(self) -> Path:
        """Current path of the directory. Raises DirectoryChangedError if it was removed or cannot
        be found."""
        for path in (self._path, self._current_path()):
            if path is not None and self._is(path):
                return path
        raise DirectoryChangedError(
            f"{self.name} is no longer the directory this training started in. That directory was "
            f"removed, or can no "
            "longer be found; nothing more was saved."
        )

    def check(self, saved: str) -> None:
        """Raise DirectoryChangedError unless its name still leads to the directory; `saved` is part
        of the message."""
        path = self.path
        if not self._is(self.name):
            raise DirectoryChangedError(
                f"{self.name} is no longer the directory this training started in. That directory "
                f"is now {path}; "
                f"{saved}. Run the same command with that directory to resume."
            )

    def write(self, work: Callable[[Path], Item]) -> Item:
        """Return `work(root)`, where `root` leads to the directory even if it is moved meanwhile.

        On Linux `root` is a path through the open directory, which renaming does not affect; error
        messages show the current path instead. On other systems it is the current path, and work
        that a move interrupts is repeated.
        """
        path, root = self.path, Path(f"/proc/self/fd/{self._handle}")
        is_open = self._handle is not None and self._is(root)
        try:
            return work(root if is_open else path)
        except UserError as error:
            if is_open:
                raise type(error)(str(error).replace(str(root), str(path))) from error
            if self.path == path:
                raise
        except OSError:
            if is_open or self.path == path:
                raise
        return work(self.path)

    def lock(self) -> None:
        """Lock the directory against training by other processes, until `close`.

        Raises:  UserError with the directory and, if the system reports it, the process that trains
                 in it.
        """
        if fcntl is None or self._handle is None:
            return
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                owner = _lock_owner(self.stat)
                process = f"process {owner}" if owner else "another process"
                raise UserError(
                    f"{self.name}: {process} trains in this folder; wait until it has ended, or "
                    f"choose another folder "
                    "with --run"
                ) from None
            except OSError as error:  # some network file systems
                return warnings.warn(
                    f"{self.name} cannot be locked ({error.strerror}): make sure that no other "
                    f"process trains in it",
                    stacklevel=5,
                )

    def _is(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), self.stat)
        except OSError:
            return False

    def _current_path(self) -> Path | None:
        """Return the path of the open directory as reported by the system."""
        if self._handle is None:
            return None
        with suppress(OSError):
            if sys.platform == "darwin" and fcntl is not None:
                path = fcntl.fcntl(self._handle, fcntl.F_GETPATH, bytes(_LONGEST_PATH))
                return Path(os.fsdecode(path.rstrip(b"\0")))
            return Path(f"/proc/self/fd/{self._handle}").readlink()
        return None


@contextmanager
def lock_directory(folder: Path) -> Generator[RunDirectory, None, None]:
    """Open and lock a folder as the directory of a run; create it if there is none.

    Raises:  UserError if another process trains in it; see `RunDirectory.lock`.
    """
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder)
    try:
        directory.lock()
        yield directory
    finally:
        directory.close()


def lock_file(path: Path, *, patience: float) -> Callable[[], None]:
    """Lock a file, which is created, and return the function that removes and unlocks it.

    Waits at most `patience` seconds for another process. Without a lock after that, or where files
    cannot be locked, the returned function does nothing.
    """
    if fcntl is None:
        return lambda: None
    deadline = time.monotonic() + patience
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return lambda: None
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() > deadline:
                os.close(handle)
                return lambda: None
            time.sleep(0.05)

    def unlock() -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)

    return unlock


def _lock_owner(stat: os.stat_result) -> int | None:
    """Return the process that holds the lock, as reported by Linux: `1: FLOCK ADVISORY WRITE 4711
    fe:01:1234 0 EOF`."""
    inode = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    owners = [
        int(words[4])
        for words in map(str.split, lines)
        if words[1:2] == ["FLOCK"] and words[5:6] == [inode]
    ]
    return owners[0] if owners and owners[0] > 0 else None
