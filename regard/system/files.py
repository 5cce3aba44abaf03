"""Reading of files, plain or compressed by gzip, bzip2, xz or zstd. (no torch)"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import msgspec

from regard.errors import UserError
from regard.system.extras import import_extra
from regard.system.verbosity import print_notice

ENDINGS = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files."""


def _open_zstd(file: BufferedIOBase) -> Any:
    pyarrow = import_extra("pyarrow", getattr(file, "name", "a file of zstd"))
    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


_FORMS: dict[re.Pattern[bytes], Any] = {
    re.compile(rb"\x1f\x8b"): gzip.open,
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): bz2.open,
    re.compile(rb"\xfd7zXZ\0"): lzma.open,
    re.compile(rb"\x28\xb5\x2f\xfd"): _open_zstd,
}
"""Functions that open compressed files, by the first bytes of these."""
_VARIABLE = "REGARD_MAX_FILE_MIB"
"""Maximum size of content that is read into memory as a whole."""
_BLOCK = 1 << 20


def plain_name(path: str | Path) -> str:
    """Return the name of a file in lower case, without the suffix of its compression."""
    name = Path(path).name.lower()
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a file in lower case, without that of its compression."""
    name = plain_name(path)
    return name[name.rfind(".") :] if "." in name else ""


def check_file(path: Path, *, may_be_pipe: bool = False) -> None:
    """Raise UserError naming the path if it is missing, a folder or a pipe."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a file.")
    if not path.exists():
        raise UserError(f"{path}: no such file.")
    if not path.is_file() and not may_be_pipe:
        raise UserError(f"{path}: is a pipe or a device, expected a file.")


@contextmanager
def open_unpacked(path: Path) -> Generator[BufferedIOBase, None, None]:
    """Open a file or a pipe for reading, decompressed if it begins as gzip, bzip2, xz or zstd.
    Raises UserError naming the file if it is missing or damaged, also while it is read."""
    check_file(path, may_be_pipe=True)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            start = file.peek(10)
            for first_bytes, open_form in _FORMS.items():
                if first_bytes.match(start):
                    file = stack.enter_context(open_form(file))
                    break
            yield file
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}.") from error
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged: {error}.") from error


@contextmanager
def open_text(path: Path, encoding: str) -> Generator[BufferedIOBase, None, None]:
    """Open a file as `open_unpacked`, as UTF-8. With another encoding, all of it is in memory.
    Raises UserError naming the line that is not in this encoding."""
    with open_unpacked(path) as file:
        if encoding in ("utf-8", "utf8", "UTF-8"):
            yield file
            return
        content = file.read()
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not {encoding}: {error}.") from None
    with suppress(UnicodeDecodeError):
        if not content.isascii() and content.decode("utf-8") != text:
            _notice_utf8(path, encoding)
    yield io.BytesIO(text.encode("utf-8"))


@cache
def _notice_utf8(path: Path, encoding: str) -> None:
    """Print once that a file is valid in two encodings."""
    print_notice(f"{path}: is read as {encoding}, but seems to be UTF-8 (--data.encoding utf-8)")


def one_path(path: str | Path | Sequence[str]) -> Path:
    """Return a path, also from a sequence of one. Raises UserError for several."""
    if isinstance(path, str | Path):
        return Path(path)
    if len(path) != 1:
        raise UserError(f"expected one file or folder of this kind, got {', '.join(path)}.")
    return Path(path[0])


def read_blocks(path: Path, encoding: str = "utf-8") -> Iterator[bytes]:
    """Yield the content of a file block by block, decompressed and in UTF-8 as by `open_text`."""
    with open_text(path, encoding) as file:
        while block := file.read(_BLOCK):
            yield block


def read_bytes(path: Path, encoding: str = "utf-8") -> bytes:
    """Return the content of a file, as `read_blocks`. Raises UserError as that,
    for a pipe, or if the content exceeds REGARD_MAX_FILE_MIB."""
    check_file(path)
    mebibytes = os.environ.get(_VARIABLE) or "4096"
    if not mebibytes.isdecimal():
        raise UserError(f"{_VARIABLE} must be a whole number of MiB, got {mebibytes}")
    blocks, size, limit = [], 0, int(mebibytes) << 20
    for block in read_blocks(path, encoding):
        size += len(block)
        if size > limit:
            raise UserError(f"{path}: has more than {limit:,} bytes ({_VARIABLE} raises it).")
        blocks.append(block)
    return b"".join(blocks)


def copy_pipe(path: str, copy: Path) -> str:
    """Return a path; that of a copy for a pipe, which can be read only once."""
    if not Path(path).is_fifo():
        return path
    with open(path, "rb") as pipe, copy.open("wb") as file:
        shutil.copyfileobj(pipe, file)
    return str(copy)


def read_json(path: Path, kind: Any = Any) -> Any:
    """Return the content of a JSON file as a type of msgspec, such as a dataclass. Raises UserError
    naming the file if it is missing, not valid JSON, or of another type."""
    content = read_bytes(path)
    try:
        return msgspec.convert(json.loads(content), kind)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}") from error


def list_files(folder: Path, suffixes: Sequence[str]) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of these suffixes in a folder and its subfolders, by name, and a notice of
    others, if there are any. Hidden ones are ignored. Raises UserError if none is found."""
    found: list[Path] = []
    others: list[Path] = []
    for path in sorted(_walk(folder, frozenset())):
        is_found = path.suffix.lower() in suffixes and path.is_file()  # no pipe, no dangling link
        (found if is_found else others).append(path)
    if not found:
        raise UserError(f"{folder}: contains no file that can be read ({', '.join(suffixes)}).")
    if others:
        return found, (f"{folder}: skipped {len(others):,} other files; first: {others[0]}.",)
    return found, ()


def _walk(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Yield the files below a folder. A link to a folder that it is in is not followed."""
    real = folder.resolve()
    if real in above:
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path, above | {real})
        else:
            yield path


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
