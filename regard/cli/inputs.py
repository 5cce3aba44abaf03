"""Inputs named on the command line.

file            the input itself (an image, a sound, a cloud of points, a recording); else its rows,
                if it is a table as for training (.tsv, .csv, .jsonl, .conll, COCO), or its lines
folder          its files, with those of subfolders
pattern         "photos/*.png", if the shell left it as it is: the files that it matches
-               lines of standard input
anything else   a text
"""

import difflib
import glob
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, cast

from regard.cli.notices import print_notice
from regard.data.bad_rows import SKIP_HINT
from regard.errors import UserError
from regard.recipes.base.inputs import Input, list_files
from regard.system.compression import check_unpacked, is_packed, plain_name
from regard.system.files import check_file, check_readable, read_unpacked
from regard.system.pipes import open_pipe

MOST_BYTES = 1_000_000
"""Maximum length of a line."""
_BLOCK = 1 << 16
_TOGETHER = 256
"""Number of files in a block, if each file is one input."""
_FILE_NAME = re.compile(
    r"\S+\.(txt|lst|tsv|tab|csv|jsonl?|ndjson|conllu?|bio|iob2?|npy|npz|ply|pcd|png|jpe?g|bmp|gif|webp|tiff?|wav|flac|"
    r"ogg|mp3|md|pdf|docx?|xlsx?)(\.(gz|bz2|xz|zst|zip))?",
    re.IGNORECASE,
)
"""Names that only files have."""


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


def expand_words(words: Sequence[str], kind: str, *, may_mix: bool = False) -> list[str]:
    """Return the words with the files that patterns match, in order of their names.

    kind:    of the inputs of the run: text, image ...
    may_mix: there may be texts besides files.
    Raises:  UserError for several words of which one is neither a file nor a text with a space (a
             text that was not in quotes), a word that looks like a file that does not exist, and an
             empty name.
    """
    expanded: list[str] = []
    for word in words:
        if word == "-" or exists(word):
            expanded.append(word)
            continue
        matches = sorted(glob.glob(word, recursive=True)) if glob.has_magic(word) else []
        if matches:
            expanded += matches
            continue
        if not word.strip() and kind not in ("text", "vector"):
            raise UserError("the name is empty: expected the name of a file or a folder")
        is_text = kind == "text" and (" " in word or not word)  # an empty text is that of a script
        if len(words) > 1 and not may_mix and not _looks_like_file(word) and not is_text:
            raise UserError(
                f"{word}: no such file; several inputs must be files, folders, or texts of several "
                f"words in quotes"
            )
        if kind not in ("text", "vector") or _looks_like_file(word):
            if os.path.islink(word):
                check_file(Path(word))  # names where the link leads
            raise UserError(f"{word}: no such file.{_suggest_file(word)}{_as_text(word, kind)}")
        if "." in word and " " not in word and (near := _suggest_file(word)):
            print_notice(f"{word}: no such file, so that it is read as a text.{near}")
        expanded.append(word)
    return expanded


def is_single_input(word: str, trained: Any) -> bool:
    """Return True if a word is a file that is one input, rather than a table or a list."""
    if word == "-" or not is_file(word) or trained.input in ("text", "vector"):
        return False
    path = Path(word)
    return not (trained.recipe.is_table(path) or (trained.input != "tracks" and _is_list(word)))


def read_inputs(
    words: Sequence[str], trained: Any, *, on_bad: str | None = None
) -> Iterator[list[Input]]:
    """Yield blocks of the inputs that expanded words name, each with those that are available.

    on_bad: a line that is not UTF-8 is an error, or (skip, truncate) an input with a problem. None:
            an error, of a command without the option --on-bad.
    Raises: UserError naming the file and the line.
    """
    files: list[Input] = []
    for word in words:
        if is_single_input(word, trained):
            files.append(Input(word, word))
        elif files:
            yield files
            files = []
        if len(files) == _TOGETHER:
            yield files
            files = []
        if not is_single_input(word, trained):
            yield from _read_word(word, trained, on_bad)
    if files:
        yield files


def is_text_file(name: str) -> bool:
    """Return True if the lines of a regular file can be counted: it exists and is not
    compressed."""
    if not is_file(name) or not Path(name).is_file():
        return False
    with Path(name).open("rb") as file:
        return not is_packed(file.read(8))


def _read_word(word: str, trained: Any, option: str | None) -> Iterator[list[Input]]:
    recipe, on_bad = trained.recipe, option or "error"
    if (
        word == "-"
        and sys.stdin is not None
        and getattr(recipe.config.data, "format", "auto") != "auto"
    ):
        word = "/dev/stdin"  # a table in the format that was given
    path = Path(word)
    if word == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed: give a text or a file")
        if sys.stdin.isatty():
            print_notice("Reading standard input: one input per line, Ctrl-D to end.")
        lines = read_stream_lines(
            cast("BufferedIOBase", sys.stdin.buffer), "standard input", on_bad=on_bad
        )
        try:
            yield from _to_inputs(lines, word, trained)
        except UserError as error:
            if trained.input in ("text", "vector"):
                raise
            is_binary = isinstance(error.__cause__, UnicodeDecodeError)
            problem = "standard input is not text" if is_binary else str(error).rstrip(".")
            raise UserError(
                f"{problem}. Standard input must hold the names of files, one in each line; to "
                f"give one file, name it "
                f"in place of - (the run reads: {trained.input})"
            ) from error
    elif path.is_dir() if exists(word) else False:
        if not recipe.files_of_folder:
            raise UserError(f"{word}: is a folder, expected a text or a file")
        yield from _batches(list_files(path, recipe.files_of_folder, print_notice))
    elif not is_file(word):
        yield [Input(decode_argument(word))]
    elif recipe.is_table(path):
        yield from _batches(_read_table(path, recipe, option))
    else:
        yield from _to_inputs(read_lines(word, on_bad=on_bad), word, trained)


def _read_table(path: Path, recipe: Any, on_bad: str | None) -> Iterator[Input]:
    """Yield the inputs of a table. Raises UserError for one that cannot be read, unless it is to be
    skipped."""
    try:
        skips = on_bad not in ("error", None)
        for given in recipe.read_inputs(path, skip_bad=skips):
            if given.problem and not skips:
                raise UserError(given.problem)
            yield given
    except (
        UserError
    ) as error:  # the hint is that of training: here the option has another name, or does not exist
        text, hint, rest = str(error).partition(f" {SKIP_HINT}")
        raise UserError(
            text + (f" With --on-bad skip{rest}" if hint and on_bad is not None else "")
        ) from error


def _to_inputs(blocks: Iterable[list[str]], file: str, trained: Any) -> Iterator[list[Input]]:
    """Yield the lines of a file as inputs: texts, or names of files that exist."""
    number, is_warned, origin = 0, False, "standard input" if file == "-" else file
    for lines in blocks:
        block: list[Input] = []
        for number, line in enumerate(lines, start=number + 1):  # noqa: B020  # numbers go on after a block
            if not is_unicode(line):
                block.append(Input("", file, number, f"{origin}, line {number}: not UTF-8"))
            elif trained.input in ("text", "vector"):
                block.append(Input(line, file, number))
                if (
                    "\t" in line
                    and trained.recipe.tables
                    and trained.input == "text"
                    and not is_warned
                ):
                    is_warned = True
                    print_notice(
                        f"{origin}, line {number}: has a tab, and is read as one text; to read a "
                        f"column, name the file "
                        "FILE.tsv"
                    )
            elif line.strip():
                path = next(
                    (p for p in (Path(line), Path(origin).parent / line) if exists(str(p))), None
                )
                if path is None:
                    yield block
                    raise UserError(f"{origin}, line {number}: {line[:200]}: no such file")
                block.append(Input(str(path), str(path)))
        yield block


def _batches(inputs: Iterable[Input]) -> Iterator[list[Input]]:
    """Yield blocks of the inputs; those before one that cannot be read, and then raise its
    UserError."""
    block: list[Input] = []
    try:
        for given in inputs:
            block.append(given)
            if len(block) == _TOGETHER:
                yield block
                block = []
    except UserError:
        yield block
        raise
    yield block


def exists(name: str) -> bool:
    """Return True if a file, a folder or a pipe of this name exists."""
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # not a valid name: too long, or with a null character
        return False


def is_unicode(line: str) -> bool:
    """Return False for a text with lone surrogates."""
    try:
        return line.isascii() or bool(line.encode())
    except UnicodeEncodeError:
        return False


def _is_list(name: str) -> bool:
    return plain_name(name).endswith((".txt", ".lst"))


def _looks_like_file(word: str) -> bool:
    """Return True for a name that only files have, and for a path from /, ~, . or .. or below a
    folder that exists.

    A text such as and/or or 12/05/1998 is none.
    """
    if _FILE_NAME.fullmatch(word) is not None:
        return True
    first, separator, _ = word.replace(os.sep, "/").partition("/")
    is_path = bool(separator) and word.split() == [word] and any(map(str.isalpha, word))
    return is_path and (first in ("", "~", ".", "..") or Path(first).is_dir())


def _suggest_file(word: str) -> str:
    folder, name = os.path.split(word)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    except OSError:
        return ""
    return f" Did you mean {os.path.join(folder, near[0])}?" if near else ""


def _as_text(word: str, kind: str) -> str:
    return (
        f" As a text, give it on standard input: echo {shlex.quote(word)} | regard ... -"
        if kind == "text"
        else ""
    )


def decode_argument(word: str) -> str:
    """Decode a command-line argument as UTF-8, also if Python decoded it as ASCII
    (LC_ALL=POSIX)."""
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def read_lines(name: str, *, on_bad: str = "error") -> Iterator[list[str]]:
    """Yield blocks of lines of a file or a pipe; only a compressed file is read into memory as a
    whole."""
    path = Path(name)
    if stat.S_ISFIFO(check_readable(path).st_mode):
        with open_pipe(path) as stream:
            yield from read_stream_lines(cast("BufferedIOBase", stream), name, on_bad=on_bad)
        return
    with path.open("rb") as file:
        is_plain = not is_packed(start := file.peek(_BLOCK))
        check_unpacked(path, start if is_plain else b"")
        yield from read_stream_lines(
            file if is_plain else BytesIO(read_unpacked(path)), name, on_bad=on_bad
        )


def read_stream_lines(
    stream: BufferedIOBase, origin: str, *, on_bad: str = "error"
) -> Iterator[list[str]]:
    """Yield the complete lines of a stream as they become available, so that typed lines come one
    by one.

    on_bad: a line that is not UTF-8 is an error, or (skip, truncate) has lone surrogates in place
    of the wrong bytes.
    Raises: UserError naming a line that is not UTF-8 or has more than MOST_BYTES.
    """
    rest, number = b"", 1
    while block := stream.read1(_BLOCK):
        whole, newline, after = (rest + block).rpartition(b"\n")
        rest = after
        if newline:
            yield from _decode(whole + newline, origin, number, on_bad)
            number += whole.count(b"\n") + 1
        if len(rest) > MOST_BYTES:
            raise _too_long(origin, number)
    if rest:
        yield from _decode(rest, origin, number, on_bad)


def _decode(content: bytes, origin: str, first: int, on_bad: str) -> Iterator[list[str]]:
    """Yield the lines of a block; those before one that cannot be used, and then raise
    UserError."""
    lines: Sequence[bytes] = content.split(b"\n")
    if not lines[-1]:
        lines = lines[:-1]
    texts: list[str] = []
    for number, line in enumerate(lines, start=first):
        if len(line) > MOST_BYTES:
            yield texts
            raise _too_long(origin, number)
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            if on_bad == "error":
                yield texts
                raise UserError(f"{origin}, line {number}: not UTF-8: {error}") from error
            texts.append(line.decode("utf-8", "surrogateescape"))
    yield texts


def _too_long(origin: str, number: int) -> UserError:
    return UserError(
        f"{origin}, line {number}: has more than {MOST_BYTES:,} bytes, which is too long for one "
        f"input"
    )
