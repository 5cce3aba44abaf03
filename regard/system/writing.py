"""Writing files whole: a file has its name only when it is complete and flushed. (no torch)"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from regard.errors import UserError


@contextmanager
def replace_atomically(path: Path) -> Generator[Path, None, None]:
    """Yield the path of a temporary file to write, which replaces `path` when the block ends, with
    the permissions of the file that was there. Raises UserError naming the path if there is
    something other than a file, or the system cannot write it (disk full, read-only folder)."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is a folder, a pipe or a device, expected the name of a file.")
    unfinished = path.with_name(f".{path.name}.new")
    try:
        if path.exists():
            unfinished.touch()
            unfinished.chmod(path.stat().st_mode)
        yield unfinished
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
        flush_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextmanager
def open_text_atomically(path: Path) -> Generator[TextIO, None, None]:
    """Open a file for text in UTF-8, and names of files as they are, that appears at `path` when
    the block ends; an error leaves no file. Raises as `replace_atomically`."""
    with (
        replace_atomically(path) as unfinished,
        unfinished.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file,
    ):
        yield file


def write_atomically(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file whole; text is encoded as by `valid_text`. Raises as `replace_atomically`;
    FileExistsError if the file exists and `overwrite` is False."""
    with replace_atomically(path) as unfinished:
        content = valid_text(content).encode() if isinstance(content, str) else content
        unfinished.write_bytes(content)
        if not overwrite and path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def valid_text(text: str) -> str:
    r"""Return a text with the bytes of names of files that are not UTF-8 as \udce9, as in JSON."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def flush_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a renamed file survives a power failure."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
