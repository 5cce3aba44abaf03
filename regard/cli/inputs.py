"""Inputs named on the command line: a file that is an input itself, the lines of a file, or a text."""

import os
import stat
from collections.abc import Iterator, Sequence
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import cast

from regard.data.text.lines import describe_decode_error
from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.registry import get_entry
from regard.system.compression import is_packed, plain_name
from regard.system.files import check_readable, read_unpacked
from regard.system.pipes import open_pipe

MOST_BYTES = 1_000_000
"""Maximum length of a line."""
_BLOCK = 1 << 16


def is_single_input(name: str, record: Run | None) -> bool:
    """Return True if a file is one input (an image, a sound, a recording) rather than a list of lines."""
    if record is None or not is_file(name):
        return False
    kind, is_list = get_entry(record.recipe).input_of(record.config), plain_name(name).endswith((".txt", ".lst"))
    return kind == "tracks" or (kind not in ("text", "vector") and not is_list)


def is_file(name: str) -> bool:
    """Return True if a file or a pipe of this name exists. Raises UserError for a device."""
    try:
        path = Path(name)
        if not path.exists() or path.is_dir():
            return False
    except (OSError, ValueError):  # not a valid name: too long, or with a null character
        return False
    check_readable(path)
    return True


def decode_argument(word: str) -> str:
    """Decode a command-line argument as UTF-8, also if Python decoded it as ASCII (LC_ALL=POSIX)."""
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def read_lines(name: str) -> Iterator[list[str]]:
    """Yield blocks of lines of a file or a pipe; only a compressed file is read into memory as a whole."""
    path = Path(name)
    if stat.S_ISFIFO(check_readable(path).st_mode):
        with open_pipe(path) as stream:
            yield from read_stream_lines(cast("BufferedIOBase", stream), name)
        return
    with path.open("rb") as file:
        is_plain = not is_packed(file.peek(_BLOCK))
        yield from read_stream_lines(file if is_plain else BytesIO(read_unpacked(path)), name)


def read_stream_lines(stream: BufferedIOBase, origin: str) -> Iterator[list[str]]:
    """Yield the complete lines of a stream as they become available, so that typed lines come one by one.

    Raises: UserError naming a line that is not UTF-8 or has more than MOST_BYTES.
    """
    rest, number = b"", 1
    while block := stream.read1(_BLOCK):
        whole, newline, after = (rest + block).rpartition(b"\n")
        rest = after
        if newline:
            lines = _decode(whole + newline, origin, number)
            number += len(lines)
            yield lines
        if len(rest) > MOST_BYTES:
            raise _too_long(origin, number)
    if rest:
        yield _decode(rest, origin, number)


def _decode(content: bytes, origin: str, first: int) -> list[str]:
    lines: Sequence[bytes] = content.split(b"\n")
    if not lines[-1]:
        lines = lines[:-1]
    texts = []
    for number, line in enumerate(lines, start=first):
        if len(line) > MOST_BYTES:
            raise _too_long(origin, number)
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise UserError(f"{origin}, line {number}: {describe_decode_error(error)}") from error
    return texts


def _too_long(origin: str, number: int) -> UserError:
    return UserError(f"{origin}, line {number}: has more than {MOST_BYTES:,} bytes, which is too long for one input")
