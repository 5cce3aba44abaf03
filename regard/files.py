"""Reading files that anybody may have written, and writing files that appear whole. (no torch)

A file's size is compared with a stated limit before anything is read. Data may come through a pipe, which is read up to
the same limit; the files of a run must be regular files. Devices, which never end, are refused.
"""

import difflib
import errno
import json
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from regard.available import available_memory, variable_limit
from regard.digests import note
from regard.errors import UserError
from regard.packed import unpack
from regard.pipes import is_pipe, read_pipe

JSON_LIMIT = 64 << 20
"""Bytes that a JSON file of a run folder may have; vocabularies of a million entries have a quarter."""
_MOST_PARTS = 10_000_000
_DEFAULT_MIB = 1024
_VARIABLE = "REGARD_MAX_FILE_MIB"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def file_limit() -> int:
    """Bytes that content may take whose size is seen only while it is read, or is only stated: 1 GiB.

    Of that kind are pipes, packed files, arrays and images. The environment variable REGARD_MAX_FILE_MIB sets another
    limit, which then holds for all files.
    """
    return (variable_limit(_VARIABLE, "MiB") or _DEFAULT_MIB) << 20


def is_limit_set() -> bool:
    """Return True if REGARD_MAX_FILE_MIB is set, so that its limit holds for files whose size is known too."""
    return bool(os.environ.get(_VARIABLE))


def check_readable(path: Path) -> os.stat_result:
    """What the system says of a file or a pipe.

    Raises:  UserError naming the path if it is missing (with near names), a folder, a device, or unreadable.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file.{_gone_pipe(path) or _near_files(path)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from error
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path}: is a folder, expected a file.")
    if not stat.S_ISREG(found.st_mode) and not is_pipe(found):
        raise UserError(f"{path}: is a device or socket, expected a regular file.")
    return found


def check_file(path: Path) -> os.stat_result:
    """As `check_readable`, of a regular file. Raises UserError also for a pipe."""
    found = check_readable(path)
    if is_pipe(found):
        raise UserError(f"{path}: is a named pipe, expected a regular file.")
    return found


def check_content(name: str | Path, start: bytes) -> None:
    """Raise UserError if a file, of which this is the beginning, is a pointer to a file that git keeps elsewhere."""
    if start.startswith(_LFS_POINTER):
        raise UserError(f"{name}: is a pointer of git-lfs and not the file itself; `git lfs pull` downloads the file.")


def read_bytes(path: Path, *, limit: int | None = None) -> bytes:
    """The content of a file or a pipe of at most `limit` bytes; `file_limit()` if not given.

    Raises:  UserError as `check_readable`, or if there is more.
    """
    content = _content(path, limit)
    note(path, content)
    return content


def _content(path: Path, limit: int | None) -> bytes:
    found = check_readable(path)
    size = found.st_size
    raised = f" ({_VARIABLE} raises this)" if limit is None else ""
    is_stated = limit is not None or is_limit_set()
    limit = file_limit() if limit is None else limit
    if size > limit and not is_stated:  # the file is as large as it says: memory decides
        limit = available_memory() or size
        raised = ", since no more memory is available"
    if size > limit:
        raise UserError(f"{path}: has {size:,} bytes, more than the {limit:,} that are read{raised}.")
    try:
        if is_pipe(found):
            content = read_pipe(path, found, limit=limit)
        else:
            with path.open("rb") as file:
                content = file.read(size + 1)  # of the limit itself, Python would allocate it all
                if len(content) > size:
                    content += file.read(limit + 1 - len(content))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if len(content) > limit:
        raise UserError(f"{path}: grew beyond {limit:,} bytes while it was read.")
    check_content(path, content)
    return content


def read_unpacked(path: Path) -> bytes:
    """The content of a file or a pipe, unpacked if it is gzip, bzip2 or xz, which its first bytes tell.

    Raises:  UserError as `read_bytes` and `regard.packed.unpack`.
    """
    content = unpack(path, _content(path, None), limit=file_limit(), variable=_VARIABLE)
    note(path, content)  # unpacked: a file that was packed since has the same content
    return content


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> Any:
    """What a JSON file holds.

    Raises:  UserError as `check_file` and `read_bytes`, or naming the file if it is no JSON: not UTF-8, malformed,
             nested too deeply, or an object that gives a key twice.
    """
    check_file(path)
    return parse_json(read_bytes(path, limit=limit), origin=str(path))


def parse_json(content: bytes | str, *, origin: str) -> Any:
    """What JSON holds. Raises UserError as `read_json`; origin: what a message names."""
    return _parsed(content, origin, _STRICT)


def parse_data(content: bytes | str, *, origin: str) -> Any:
    """As `parse_json`, of JSON that other programs wrote: a key may be given twice, see `DifferentValues`."""
    return _parsed(content, origin, _LENIENT)


def decode_json(text: str) -> Any:
    """As `parse_data`, of a text. Raises ValueError, also for too many parts, or RecursionError."""
    return _decoded(text, _LENIENT)


class DifferentValues:
    """The values of a key that an object of JSON gives more than once, if they differ.

    JSON allows this, and does not say which value counts. This is no text, number, list or object, so that a reader
    that needs the value refuses it, and one that does not never sees it.
    """

    def __init__(self, first: object, second: object):
        self.first, self.second = first, second

    def __repr__(self) -> str:
        return f"a key given twice, as {self.first!r} and {self.second!r}"


@contextmanager
def written_whole(path: Path, *, overwrite: bool = True) -> Generator[BinaryIO, None, None]:
    """A file to write, which appears as `path` when the block ends, complete and on the disk; an error leaves nothing.

    Raises:  FileExistsError if the file exists and may not be overwritten; UserError naming the path if the system
             cannot write: the disk is full, the folder read-only.
    """
    unfinished = path.with_name(f".{path.name}.new")
    try:
        # What a killed process left there, or a link that somebody planted.
        unfinished.unlink(missing_ok=True)
        try:
            with unfinished.open("xb") as file:
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
        flush_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}.") from error


def write_atomically(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file that appears under its name only when complete; text as UTF-8. Raises as `written_whole`."""
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    with written_whole(path, overwrite=overwrite) as file:
        file.write(encoded)


def flush_folder(folder: Path) -> None:
    """Have the system write a folder's entries to the disk, so that a renamed file survives a power cut."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        os.close(handle)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names nearest to `name`, or nothing when none is near."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""


def _gone_pipe(path: Path) -> str:
    """A hint for the pipe of a shell that an earlier command was given."""
    is_one = str(path).startswith(("/dev/fd/", "/proc/"))
    return " The pipe of an earlier command is gone: give the data again, or write it to a file." if is_one else ""


def _near_files(path: Path) -> str:
    try:
        if not path.parent.is_dir():
            return f" The folder {path.parent} does not exist."
        return did_you_mean(path.name, (one.name for one in path.parent.iterdir()))
    except OSError:  # a folder that may be entered but not listed: the near names are only a help
        return ""


def _parsed(content: bytes | str, origin: str, decoder: json.JSONDecoder) -> Any:
    try:
        return _decoded(content if isinstance(content, str) else content.decode("utf-8-sig"), decoder)
    except RecursionError:
        raise UserError(f"{origin}: damaged: JSON is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{origin}: damaged: no JSON ({error})") from error


def _decoded(text: str, decoder: json.JSONDecoder) -> Any:
    if len(text) > _MOST_PARTS and text.count("[") + text.count("{") > _MOST_PARTS:
        raise ValueError(f"more than {_MOST_PARTS:,} lists and objects, which take a hundred bytes each")
    return decoder.decode(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} is given twice")
    return content


def _equal_or_both(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        content = {}
        for name, value in pairs:
            before = content.setdefault(name, value)
            is_other = type(before) is not type(value) or before != value
            if is_other and not isinstance(before, DifferentValues):
                content[name] = DifferentValues(before, value)
    return content


_STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys)  # one for all: `json.loads` would make one a line
_LENIENT = json.JSONDecoder(object_pairs_hook=_equal_or_both)
