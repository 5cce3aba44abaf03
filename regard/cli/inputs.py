"""Inputs named on the command line, as docs/answers.md describes them."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from os.path import exists
from pathlib import Path
from typing import Any

from regard.data.tables import TABLES, Input, skip_mark
from regard.errors import UserError
from regard.system.files import check_file, list_files, open_text
from regard.system.verbosity import print_notice

MANY = 1_000_000
"""Maximum number of inputs on a command line."""
MAX_BLOCK = 256
"""Maximum number of files or rows that are answered together."""
_LISTS = (".txt", ".lst")
"""Suffixes of files with the name of an input in each line."""


def check_words(words: Sequence[str], kind: str) -> None:
    """Raise UserError for a word that must be the name of a file, but there is none."""
    for word in words:
        is_text = kind in ("text", "vector")
        if is_text and (word.split() != [word] or not word.lower().endswith((*_LISTS, *TABLES))):
            continue
        if word != "-" and not exists(word):
            raise UserError(f"{word}: no such file")


def is_single_input(word: str, trained: Any) -> bool:
    """Return True if a word is a file that is one input, rather than a table or a list."""
    if word == "-" or not exists(word) or trained.input in ("text", "vector"):
        return False
    path = Path(word)
    if path.is_dir() or trained.recipe.is_table(path):
        return False
    return trained.input == "tracks" or path.suffix.lower() not in _LISTS


def read_inputs(
    words: Sequence[str], trained: Any, *, skip_bad: bool = False
) -> Iterator[list[Input]]:
    """Yield blocks of the inputs that the words name; of a stream, those that are available.

    An input that cannot be read may have a `problem`. Raises: UserError naming the file.
    """
    for is_single, group in groupby(words, key=lambda word: is_single_input(word, trained)):
        if is_single:
            yield from _blocks(Input(word, word) for word in group)
            continue
        for word in group:
            yield from _read_word(word, trained, skip_bad)


def _read_word(word: str, trained: Any, skip_bad: bool) -> Iterator[list[Input]]:
    recipe, path = trained.recipe, Path(word)
    if word == "-" and recipe.is_table(path):  # by the option that names a format
        _check_standard_input()
        path = Path("/dev/stdin")
    elif word == "-":
        yield from read_lines(word, trained)
        return
    elif not exists(word):
        yield [Input(word)]
        return
    if path.is_dir():
        if not recipe.files_of_folder:
            raise UserError(f"{word}: is a folder, expected a text or a file")
        files, notices = list_files(path, recipe.files_of_folder)
        for notice in notices:
            print_notice(notice)
        yield from _blocks(Input(str(file), str(file)) for file in files)
        return
    check_file(path, may_be_pipe=True)
    if recipe.is_table(path):
        yield from _blocks(recipe.read_inputs(path, skip_bad=skip_bad))
        return
    yield from read_lines(word, trained)


def read_lines(word: str, trained: Any) -> Iterator[list[Input]]:
    """Yield blocks of the lines of a file, or of standard input (-), as inputs."""
    if word == "-":
        _check_standard_input()
        if sys.stdin.isatty():
            print_notice("Reading standard input: one input per line, Ctrl-D to end.")
        yield from _to_inputs(_read_lines(sys.stdin.buffer), word, trained)
        return
    encoding = getattr(trained.config.data, "encoding", "utf-8")
    with open_text(Path(word), encoding) as file:
        yield from _to_inputs(_read_lines(file), word, trained)


def _check_standard_input() -> None:
    if sys.stdin is None:
        raise UserError("standard input is closed: give a text or a file")


class BadInputs:
    """Handling of inputs that cannot be used: an error; skipped; or cut if they are too long."""

    def __init__(self, trained: Any, on_bad: str, shorten: Callable[[Any], Any] | None = None):
        self.on_bad, self.cut = on_bad, shorten or trained.recipe.shorten
        self.count, self.skipped = 0, 0

    def answer(
        self, inputs: Sequence[Input], compute: Callable[..., Iterable[Any]]
    ) -> Iterator[tuple[int, Input, Any]]:
        """Yield the number of each input, the input, cut if that is chosen, and what is computed of
        it (`TrainedRun.compute_answers` ...), or the error of one that is skipped."""
        first, prepared, values = self.count + 1, list[Input](), list[Any]()
        for given in inputs:
            self.count += 1
            is_cut = self.on_bad == "truncate" and not given.problem
            prepared.append(self._shorten(given) if is_cut else given)
            problem = given.problem
            if not problem and _is_blank(given):  # a language model has tokens of white space
                problem = f"input {self.count} is empty"
            values.append(UserError(problem) if problem else prepared[-1].value)
        found = compute(values, first=first, is_skipping=True)
        for number, (given, one) in enumerate(zip(prepared, found, strict=True), start=first):
            yield number, given, self._skip(given, one) if isinstance(one, UserError) else one

    def _skip(self, given: Input, error: UserError) -> UserError:
        """Count an input that is skipped, as a blank line is, and return its error; raise it if no
        other is skipped."""
        if given.file and given.line and given.file not in str(error):
            error = UserError(f"{given.file}, line {given.line}: {error}")
        if self.on_bad == "error" and (given.problem or not _is_blank(given)):
            raise error
        self.skipped += 1
        print_notice(f"skipped: {error}")
        return error

    def report(self) -> None:
        """Print how many inputs were skipped, or that there were none."""
        if not self.count:
            print_notice("nothing was read: there are no inputs")
        if self.skipped:
            count = f"{self.skipped} of {self.count}"
            print_notice(f"skipped {count} inputs, whose outputs are empty")

    def _shorten(self, given: Input) -> Input:
        value, whole = self.cut(given.value), given.value
        if len(value) < len(whole.strip() if isinstance(whole, str) else whole):
            print_notice(f"truncated: input {self.count}")
        return given._replace(value=value)


def _is_blank(given: Input) -> bool:
    """Return True for a line of a file, or a cell of a table, that is empty but for white space."""
    return isinstance(given.value, str) and given.line is not None and not given.value.strip()


def add_input(cells: dict[str, Any], given: Input, name: str, table: Path) -> dict[str, Any]:
    """Return the columns of an input (in no table: one of this name), and the cells of its answer;
    the name of a file is relative to the table that is written."""
    inputs, name = dict(given.columns), given.column or name
    path = Path(given.folder, given.file or "")
    if given.source is not None:
        inputs.setdefault(name, given.source)
    elif given.problem or path.is_absolute() or not path.exists():  # or in an archive
        inputs[name] = "" if given.problem else given.file
    else:
        inputs[name] = os.path.relpath(path, table.parent)
    return add_input_columns(cells, inputs)


def add_input_columns(cells: dict[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an input, those with the name of an answer's as input_NAME, and the
    cells of its answer."""
    renamed = {f"input_{name}" if name in cells else name: cell for name, cell in inputs.items()}
    return renamed | cells


def _blocks(inputs: Iterable[Input]) -> Iterator[list[Input]]:
    inputs = iter(inputs)
    while block := list(islice(inputs, MAX_BLOCK)):
        yield block


def _read_lines(stream: Any) -> Iterator[list[bytes]]:
    """Yield the complete lines of a stream as they become available."""
    rest = b""
    while content := stream.read1(1 << 16):
        *lines, rest = (rest + content).split(b"\n")
        yield lines
    if rest:
        yield [rest]


def _to_inputs(blocks: Iterable[list[bytes]], file: str, trained: Any) -> Iterator[list[Input]]:
    """Yield lines as inputs: texts, or names of files beside the file."""
    number, origin = 0, "standard input" if file == "-" else file
    for lines in blocks:
        block = []
        for line in lines:
            number += 1
            content = skip_mark(line, origin) if number == 1 else line
            try:
                text = content.decode("utf-8").removesuffix("\r")
            except UnicodeDecodeError:
                problem = f"{origin}, line {number}: not UTF-8"
                block.append(Input("", file, number, problem=problem))
                continue
            if trained.input in ("text", "vector"):
                block.append(Input(text, file, number))
            elif text.strip():
                name = str(Path(file).parent / text)
                block.append(Input(name, name))
        yield block
