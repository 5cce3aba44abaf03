"""A run is its directory, not its path.

Training opens the run's directory once, locks it, and derives every path that it writes from that directory: a link
that is turned to another run, or a directory that is moved, changes nothing about where the run is saved. After each
save the directory is compared (by device and inode) with the one that its name leads to; where they differ, training
stops.

The lock is the system's (flock) on the directory itself: there is no file to leave behind, and it ends with the
process. Reading a run needs no lock.
"""

import os
import sys
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

_LONGEST_PATH = 1024  # what F_GETPATH of macOS fills


class DirectoryChangedError(UserError):
    """The name of a run's directory leads to another directory, or to none; the message says where the run is now."""


class RunDirectory:
    """A directory that is held open, so that it is found under whatever path it lies.

    Linux and macOS tell the present path of an open directory. On Windows nothing is held open: there a directory that
    was moved counts as removed.
    """

    def __init__(self, name: Path):
        self.name = name
        self._handle = None if os.name == "nt" else os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.close: Callable[[], object] = lambda: None
        if self._handle is not None:
            self.close = weakref.finalize(self, os.close, self._handle)
        self.stat = os.stat(name) if self._handle is None else os.fstat(self._handle)
        # Without links, so that turning one cannot lead a save elsewhere; as it was given where there are none.
        real = os.path.realpath(name)
        self._path = name if real == os.path.abspath(name) else Path(real)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the directory for itself."""
        return RunDirectory, (self.name,)

    @property
    def path(self) -> Path:
        """The directory's present path. Raises DirectoryChangedError if it was removed or cannot be found."""
        for path in (self._path, self._present()):
            if path is not None and self._is(path):
                return path
        raise DirectoryChangedError(
            f"{self.name} is no longer the directory this training started in. That was removed, or can no longer be "
            "found; nothing more was saved."
        )

    def check(self, saved: str) -> None:
        """Raise DirectoryChangedError unless the directory's name still leads to it; `saved` is part of the message."""
        path = self.path
        if not self._is(self.name):
            raise DirectoryChangedError(
                f"{self.name} is no longer the directory this training started in. That is now {path}; {saved}. "
                "The same command continues from there when it is given that directory."
            )

    def write(self, work: Callable[[Path], Item]) -> Item:
        """Return `work(root)`, where `root` leads to the directory for as long as the work takes.

        On Linux that is a path through the open directory, which no change of names can turn elsewhere; errors name the
        present path instead. On other systems it is the present path, and work that a move interrupts is done again.
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
        """Keep every other process from training here, until `close`.

        Raises:  UserError naming the directory and, where the system tells, the process that trains in it.
        """
        if fcntl is None or self._handle is None:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self.stat)
            who = f"process {owner}" if owner else "another process"
            raise UserError(
                f"{self.name}: {who} trains in this folder; wait until it has ended, or choose another folder with "
                "--run"
            ) from None
        except OSError as error:  # some network file systems
            warnings.warn(
                f"{self.name} cannot be locked here ({error.strerror}): see that no other process trains in it",
                stacklevel=5,
            )

    def _is(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), self.stat)
        except OSError:
            return False

    def _present(self) -> Path | None:
        """Where the system says that the open directory lies."""
        if self._handle is None:
            return None
        with suppress(OSError):
            if sys.platform == "darwin" and fcntl is not None:
                found = fcntl.fcntl(self._handle, fcntl.F_GETPATH, bytes(_LONGEST_PATH))
                return Path(os.fsdecode(found.rstrip(b"\0")))
            return Path(f"/proc/self/fd/{self._handle}").readlink()
        return None


@contextmanager
def held(folder: Path) -> Generator[RunDirectory, None, None]:
    """Open an existing folder as a run's directory, and keep every other training out of it.

    Raises:  UserError as `RunDirectory.lock`.
    """
    directory = RunDirectory(folder)
    try:
        directory.lock()
        yield directory
    finally:
        directory.close()


def _owner(found: os.stat_result) -> int | None:
    """The process that holds the lock, where Linux tells it: `1: FLOCK ADVISORY WRITE 4711 fe:01:1234 0 EOF`."""
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    owners = [int(words[4]) for words in map(str.split, lines) if words[1:2] == ["FLOCK"] and words[5:6] == [place]]
    return owners[0] if owners and owners[0] > 0 else None
