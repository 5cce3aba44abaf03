"""What a word of a command line stands for, where inputs are asked for: a file itself, its lines, or a text."""

import os
from collections.abc import Iterator, Sequence
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import cast

from regard.data.lines import not_utf8
from regard.errors import UserError
from regard.files import check_readable, read_unpacked
from regard.packed import is_packed, plain_name
from regard.pipes import is_pipe, open_pipe
from regard.recipes.config import Tracks
from regard.recipes.folder import Run
from regard.recipes.registry import entry

MOST_BYTES = 1_000_000
"""Of a line."""
_BLOCK = 1 << 16


def is_input_itself(given: str, record: Run | None) -> bool:
    """Whether a file is to be answered itself, and not its lines: an image, a sound, a recording."""
    if record is None or not is_file(given):
        return False
    kind = entry(record.recipe)
    return kind.reads_files and (isinstance(record.config, Tracks) or not plain_name(given).endswith((".txt", ".lst")))


def is_file(given: str) -> bool:
    """Whether there is a file or a pipe of this name. Raises UserError for a device, which is never read."""
    try:
        path = Path(given)
        if not path.exists() or path.is_dir():
            return False
    except (OSError, ValueError):  # no possible name: too long, or with a null character
        return False
    check_readable(path)
    return True


def text_of(word: str) -> str:
    """A text of the command line, also where Python took its bytes for ASCII (LC_ALL=POSIX) and it is UTF-8."""
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def lines_of(given: str) -> Iterator[list[str]]:
    """The lines of a file or a pipe, some at a time, so that a large one is never in memory whole; a packed one is."""
    path = Path(given)
    if is_pipe(check_readable(path)):
        with open_pipe(path) as stream:
            yield from lines_in(cast("BufferedIOBase", stream), given)
        return
    with path.open("rb") as file:
        is_plain = not is_packed(file.peek(_BLOCK))
        yield from lines_in(file if is_plain else BytesIO(read_unpacked(path)), given)


def lines_in(stream: BufferedIOBase, origin: str) -> Iterator[list[str]]:
    """Whole lines of a stream, those that are there at once: a person's come one by one.

    Raises: UserError, naming the line, for what is not UTF-8, or has more than MOST_BYTES.
    """
    rest, number = b"", 1
    while block := stream.read1(_BLOCK):
        whole, newline, after = (rest + block).rpartition(b"\n")
        rest = after
        if newline:
            lines = _decoded(whole + newline, origin, number)
            number += len(lines)
            yield lines
        if len(rest) > MOST_BYTES:
            raise _too_long(origin, number)
    if rest:
        yield _decoded(rest, origin, number)


def _decoded(content: bytes, origin: str, first: int) -> list[str]:
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
            raise UserError(f"{origin}, line {number}: {not_utf8(error)}") from error
    return texts


def _too_long(origin: str, number: int) -> UserError:
    return UserError(f"{origin}, line {number}: has more than {MOST_BYTES:,} bytes, which no model reads at once")
