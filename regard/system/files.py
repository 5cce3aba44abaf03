"""Reading of untrusted files with size limits, and atomic writing. (no torch)

The size of a file is compared with a limit before anything is read. Data may also come through a
pipe, which is read up to the same limit; the files of a run must be regular files. Devices, which
never end, are refused.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from regard.errors import UserError, did_you_mean
from regard.system.compression import plain_name, unpack, unpack_blocks
from regard.system.fingerprints import add_digest, read_blocks, record_blocks
from regard.system.memory import available_memory, variable_limit
from regard.system.pipes import read_pipe

JSON_LIMIT = 64 << 20
"""Maximum size in bytes of a JSON file in a run folder; a vocabulary of a million entries takes a
quarter of it."""
_MOST_PARTS = 10_000_000
_DEFAULT_MIB = 1024
_MOST_RATIO = 100
"""Ratio of decompressed and stored bytes above which more than `file_limit()` is an absurd
claim."""
_VARIABLE = "REGARD_MAX_FILE_MIB"
_HINT = f" ({_VARIABLE} raises this)"
_TABLES = (
    ".tsv",
    ".tab",
    ".csv",
    ".jsonl",
    ".ndjson",
    ".json",
    ".txt",
    ".conll",
    ".conllu",
    ".bio",
    ".npz",
    ".npy",
)
"""Suffixes of files of data, besides images, sounds and point clouds."""
_SHOWN = 3
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def file_limit() -> int:
    """Return the maximum size in bytes of content whose size is not known before it is read: 1 GiB
    by default.

    More is read from pipes, compressed files and arrays as memory allows (`unpacked_limit`). The
    environment variable REGARD_MAX_FILE_MIB sets another limit, which then applies to all files.
    """
    return (variable_limit(_VARIABLE, "MiB") or _DEFAULT_MIB) << 20


def unpacked_limit(stored: int | None) -> int:
    """Return the maximum size in bytes of content that is decompressed from `stored` bytes, or
    comes through a pipe.

    Half of the available memory, and at most 100 times the stored bytes (None: a pipe), which text
    and numbers do not reach; but at least `file_limit()`. REGARD_MAX_FILE_MIB sets another limit.
    """
    least = file_limit()
    if is_limit_set():
        return least
    memory = (available_memory() or 0) // 2
    return max(least, memory if stored is None else min(memory, _MOST_RATIO * stored))


def is_limit_set() -> bool:
    """Return True if REGARD_MAX_FILE_MIB is set, so that its limit also applies to files of known
    size."""
    return bool(os.environ.get(_VARIABLE))


def check_readable(path: Path) -> os.stat_result:
    """Check that a path is a readable file or pipe, and return its stat result.

    Raises:  UserError naming the path if it is missing (with similar names), a folder, a device, or
             unreadable.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise UserError(
                f"{path}: is a link to a file that does not exist: {os.readlink(path)}."
            ) from None
        raise UserError(
            f"{path}: no such file.{_hint_closed_pipe(path) or hint_similar_files(path)}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from error
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: is a folder, expected a file.{hint_tables(path)}")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
        raise UserError(f"{path}: is a device or socket, expected a regular file.")
    return status


def check_file(path: Path) -> os.stat_result:
    """Check that a path is a readable regular file, and return its stat result.

    Raises:  UserError as `check_readable`, and for a pipe.
    """
    status = check_readable(path)
    if stat.S_ISFIFO(status.st_mode):
        raise UserError(f"{path}: is a named pipe, expected a regular file.")
    return status


def check_content(name: str | Path, start: bytes) -> None:
    """Raise UserError if a file that starts with these bytes is a Git LFS pointer."""
    if start.startswith(_LFS_POINTER):
        raise UserError(
            f"{name}: is a pointer of git-lfs and not the file itself; `git lfs pull` downloads "
            f"the file."
        )


def read_bytes(path: Path, *, limit: int | None = None) -> bytes:
    """Return the content of a file or a pipe of at most `limit` bytes (default: `file_limit()`).

    Raises:  UserError as `check_readable`, or if the content exceeds the limit.
    """
    content = _read(path, limit)
    add_digest(path, content)
    return content


def read_unpacked(path: Path) -> bytes:
    """Return the content of a file or a pipe, decompressed if its first bytes are those of gzip,
    bzip2 or xz.

    Raises:  UserError as `read_bytes` and `regard.system.compression.unpack`.
    """
    stored = _read(path, None)
    content = unpack(path, stored, limit=unpacked_limit(len(stored)), variable=_VARIABLE)
    add_digest(path, content)  # decompressed, so that compressing a file does not change its digest
    return content


class BlockReader:
    """File that is read from its beginning in blocks, any number of times; only one block is in
    memory.

    It is decompressed as by `read_unpacked`. The content of a pipe, which may be readable only
    once, stays in memory.
    """

    def __init__(self, path: Path):
        self.path, self._status = path, check_readable(path)
        self._content = read_unpacked(path) if stat.S_ISFIFO(self._status.st_mode) else None

    def blocks(self) -> Iterator[bytes]:
        """Yield the content; its digest is recorded at the end.

        Raises:  UserError as `read_unpacked`, or if the file has changed since the first time.
        """
        if self._content is not None:
            yield self._content
            return
        size = self._status.st_size
        if is_limit_set() and size > file_limit():
            raise UserError(_describe_excess(self.path, size, file_limit()))
        # What is decompressed is not kept in memory, so that is not a limit.
        limit = file_limit() if is_limit_set() else max(file_limit(), _MOST_RATIO * size)
        try:
            with self.path.open("rb") as file:
                check_content(self.path, file.read(len(_LFS_POINTER)))
                file.seek(0)
                stored = self._unchanged_blocks(file)
                yield from record_blocks(
                    self.path, unpack_blocks(self.path, stored, limit=limit, variable=_VARIABLE)
                )
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror or error}.") from error

    def _unchanged_blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the blocks of the open file; each is that of the first time, since a change is
        looked for after it."""
        for block in read_blocks(file):
            if _version_of(os.fstat(file.fileno())) != _version_of(self._status):
                raise UserError(f"{self.path}: was changed while it was read.")
            yield block


def _version_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what differs when a file was written or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_json(path: Path, kind: Any = Any) -> Any:
    """Return the content of a JSON file as a type of msgspec, such as a dataclass.

    Raises: UserError naming the file if it is missing, not valid JSON, or of another type.
    """
    try:
        return msgspec.convert(json.loads(read_bytes(path)), kind)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}") from error


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes | str, *, origin: str) -> Any:
    """Return the value of a JSON document; messages name `origin`. Raises UserError as
    `read_json`."""
    return _parse(content, origin, _STRICT)


def parse_data(content: bytes | str, *, origin: str) -> Any:
    """Return the value of a JSON document of another program, which may have duplicate keys
    (`DifferentValues`)."""
    return _parse(content, origin, _LENIENT)


def decode_json(text: str) -> Any:
    """Decode JSON text as `parse_data` does. Raises ValueError (also for too many parts) or
    RecursionError."""
    return _decode(text, _LENIENT)


class DifferentValues:
    """Differing values of a duplicate key in a JSON object.

    JSON allows duplicate keys and does not define which value counts. This is not a text, number,
    list or object, so a reader that uses the value refuses it.
    """

    def __init__(self, first: object, second: object):
        self.first, self.second = first, second

    def __repr__(self) -> str:
        return f"a key given twice, as {self.first!r} and {self.second!r}"


def _read(path: Path, limit: int | None) -> bytes:
    status = check_readable(path)
    size = status.st_size
    hint = _HINT if limit is None else ""
    has_limit = limit is not None or is_limit_set()
    is_pipe = stat.S_ISFIFO(status.st_mode)
    limit = (unpacked_limit(None) if is_pipe else file_limit()) if limit is None else limit
    if size > limit and not has_limit:  # the size is known, so available memory is the limit
        limit = available_memory() or size
        hint = ", since no more memory is available"
    if size > limit:
        raise UserError(_describe_excess(path, size, limit, hint))
    try:
        if is_pipe:
            content = read_pipe(path, status, limit=limit)
        else:
            with path.open("rb") as file:
                content = file.read(size + 1)  # given the limit, Python would allocate that much
                if len(content) > size:
                    content += file.read(limit + 1 - len(content))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if len(content) > limit:
        raise UserError(f"{path}: grew beyond {limit:,} bytes while it was read.")
    check_content(path, content)
    return content


def _describe_excess(path: Path, size: int, limit: int, hint: str = _HINT) -> str:
    return f"{path}: has {size:,} bytes, more than the {limit:,} that are read{hint}."


def _hint_closed_pipe(path: Path) -> str:
    """Return a hint if the path is that of a shell's process substitution."""
    is_shell_pipe = str(path).startswith(("/dev/fd/", "/proc/"))
    return (
        " The pipe of an earlier command is gone: give the data again, or write it to a file."
        if is_shell_pipe
        else ""
    )


def hint_tables(folder: Path) -> str:
    """Return a sentence that names tables and other files of data in a folder, or an empty text if
    it has none."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:  # a folder that may be entered but not listed
        return ""
    found = [str(folder / name) for name in names if plain_name(name).endswith(_TABLES)]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f" It has {', '.join(found[:_SHOWN])}{more}." if found else ""


def hint_similar_files(path: Path) -> str:
    """Return a sentence that suggests files of similar names in the folder of a missing file, or an
    empty text."""
    try:
        if not path.parent.is_dir():
            return f" The folder {path.parent} does not exist."
        return did_you_mean(path.name, (file.name for file in path.parent.iterdir()))
    except OSError:  # a folder that may be entered but not listed; the suggestion is optional
        return ""


def _parse(content: bytes | str, origin: str, decoder: json.JSONDecoder) -> Any:
    try:
        return _decode(
            content if isinstance(content, str) else content.decode("utf-8-sig"), decoder
        )
    except RecursionError:
        raise UserError(f"{origin}: damaged: JSON is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{origin}: damaged: not valid JSON ({error})") from error


def _decode(text: str, decoder: json.JSONDecoder) -> Any:
    if len(text) > _MOST_PARTS and text.count("[") + text.count("{") > _MOST_PARTS:
        raise ValueError(f"more than {_MOST_PARTS:,} lists and objects")
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
            differs = type(before) is not type(value) or before != value
            if differs and not isinstance(before, DifferentValues):
                content[name] = DifferentValues(before, value)
    return content


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys
)  # shared: `json.loads` would make one for each call
_LENIENT = json.JSONDecoder(object_pairs_hook=_equal_or_both)
