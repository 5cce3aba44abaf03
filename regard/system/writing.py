"""Writing files whole: a file appears under its name only when its content is complete and
flushed."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from regard.errors import UserError

_unfinished: set[Path] = set()
"""Temporary files that are being written."""


@contextmanager
def open_atomically(path: Path, *, overwrite: bool = True) -> Generator[BinaryIO, None, None]:
    """Open a file for writing that appears at `path` when the block ends, flushed to disk; an error
    leaves no file.

    Raises:  FileExistsError if the file exists and `overwrite` is False; UserError naming the path
             if the system cannot write it (disk full, read-only folder).
    """
    unfinished = path.with_name(f".{path.name}.new")
    try:
        # Left behind by a killed process, or a symbolic link planted there.
        unfinished.unlink(missing_ok=True)
        try:
            with unfinished.open("xb") as file:
                _unfinished.add(unfinished)
                yield file
                file.flush()
                os.fsync(file.fileno())
            if not overwrite and os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        finally:
            _unfinished.discard(unfinished)
        flush_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}.") from error


def remove_unfinished_files() -> None:
    """Remove the temporary files that are being written, before the process ends at once."""
    for path in _unfinished:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def open_text_atomically(path: Path) -> Generator[TextIOWrapper, None, None]:
    """Open a file as `open_atomically`, for text in UTF-8."""
    with open_atomically(path) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="\n")
        yield text
        text.detach()  # flushed, and left open for the file to be flushed to disk


def write_atomically(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file atomically; text is encoded as UTF-8. Raises as `open_atomically`."""
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    with open_atomically(path, overwrite=overwrite) as file:
        file.write(encoded)


def flush_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a renamed file survives a power failure."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        os.close(handle)
