"""Data sets for token tagging: readers and batches.

    we       O                      FILE: a token and its tag a line, the first and the last of its
    columns (tabs or
    met      O                      white space between), a blank line between sentences; comments
                                    (# ...) before a sentence and -DOCSTART- are skipped
    on       O
    5        B-DAY                  FILE.jsonl: {"tokens": ["we", "met", ...], "tags": ["O", "O",
    ...]}

    sentence,token,tag              FILE.csv: the same columns; a header names them in any order. A
    sentence also ends 1,we,O                          where the column `sentence` changes to
    another value (empty: the same sentence) ,met,O
    text,tags                       or a sentence a row: tokens and tags separated by white space,
    or lists we met on 5,O O O B-DAY

A word that is split into several tokens has its tag at the first one; the others have none.

Source: columns tjong2003, section 2.2.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRow, BadRows
from regard.data.batches import Ragged
from regard.data.config import TaggedConfig
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.labels import LabeledBatches
from regard.data.text.lines import OBJECTS, locate, read_lines, read_objects
from regard.data.text.rows import decode_line, parse_json_object
from regard.data.text.tables import read_rows
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError, did_you_mean
from regard.system.compression import plain_name

_NO_TAG = -1
_DOCUMENT = "-DOCSTART-"
_CONLLU = 10
"""Number of columns of CoNLL-U."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_INTEGERS = re.compile(r"\[\s*(\d+(?:[\s,]+\d+)*)\s*\]")
"""List of integers, as Python or NumPy writes it."""
_NAMES = (
    ("tokens", "token", "words", "word", "form", "text", "sentence"),
    ("tags", "tag", "labels", "label", "ner_tags", "ner_tag", "ner", "word_labels", "upos", "pos"),
    (
        "sentence",
        "sentence #",
        "sentence_id",
        "sentence id",
        "sentence_number",
        "sentence number",
        "sent_id",
    ),
)
"""Names of the columns of tokens, tags and sentences in a header, the preferred first."""


class _Row(NamedTuple):
    """Row of a table; `problem` if it cannot be decoded."""

    number: int
    cells: list[str]
    problem: str = ""


class _Table(NamedTuple):
    """Indices of the columns of a table."""

    token: int
    tag: int
    sentence: int | None
    has_header: bool


_Sentence = tuple[int, Callable[[], tuple[tuple[str, ...], tuple[str, ...]]]]
"""Number of the first line of a sentence, and the function that parses it into tokens and tags."""


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences with a tag for each word."""

    tokens: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    """Number of the first line of each sentence."""
    origin: str
    skipped: Sequence[str] = ()
    """Reason for each sentence that was skipped (on_bad = skip)."""

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, index: int) -> str:
        """Return the location of a sentence, for messages."""
        return locate(self.origin, self.lines[index])

    def take(self, index: Sequence[int], skipped: Sequence[str]) -> "TaggedSentences":
        """Return the data set of the given indices; `skipped` has the reasons for skipping
        others."""
        tokens, tags = (tuple(values[i] for i in index) for values in (self.tokens, self.tags))
        return TaggedSentences(
            tokens,
            tags,
            tuple(self.lines[i] for i in index),
            self.origin,
            (*self.skipped, *skipped),
        )


def locate_words(text: str) -> list[tuple[int, int]]:
    """Split a text to be tagged at white space. Returns the offsets of the start and end of each
    word."""
    return [found.span() for found in re.finditer(r"\S+", text)]


def read_tagged(path: str | Path, config: TaggedConfig) -> TaggedSentences:
    """Read the sentences of a file. Raises UserError naming the line, what was expected and what
    was found."""
    path = Path(path)
    tokens, tags, lines, bad_rows = [], [], [], BadRows(config.on_bad, "sentences")
    normalizer = LabelNormalizer()
    for number, parse in _read_sentences(path, config):
        words: tuple[str, ...] = ()
        word_tags: tuple[str, ...] = ()
        with bad_rows.catch(locate(path, number)):
            words, word_tags = parse()
        if words:
            tokens.append(words)
            tags.append(tuple(normalizer[tag] for tag in word_tags))
            lines.append(number)
    if not tokens:
        raise UserError(
            f"{path}: contains no sentence{'; ' + bad_rows.skipped[0] if bad_rows.skipped else ''}."
        )
    normalizer.warn(str(path))
    if all(tag.isdecimal() for row in tags for tag in row):
        shown = ", ".join(sorted({tag for row in tags for tag in row}, key=int)[:5])
        warnings.warn(
            f"{path}: the tags are numbers, and stay numbers in answers and scores ({shown}); to "
            f"name them, write the "
            "names to the file in their place, such as B-PER.",
            stacklevel=2,
        )
    return TaggedSentences(tuple(tokens), tuple(tags), tuple(lines), str(path), bad_rows.skipped)


class Words(NamedTuple):
    """Words of a sentence, and the number of its first line."""

    line: int
    words: tuple[str, ...]
    problem: str = ""
    """Reason why the sentence has no words."""


def read_words(path: Path, config: TaggedConfig) -> Iterator[Words]:
    """Yield the words of the sentences of a file, with or without tags."""
    if _is_json(path, config):
        field = str(config.token_column or "tokens")
        for number, line in read_objects(path):
            yield _read_sentence(path, number, partial(_parse_words, line, field))
        return
    groups = _read_groups(path, config)
    if any(len(row.cells) > 1 or row.problem for group in groups for row in group):
        for number, parse in _read_sentences(path, config):
            yield _read_sentence(path, number, lambda parse=parse: parse()[0])
        return
    for group in groups:  # a word in each line
        yield Words(group[0].number, tuple(row.cells[0] for row in group))


def _read_sentence(path: Path, number: int, parse: Callable[[], tuple[str, ...]]) -> Words:
    try:
        return Words(number, parse())
    except BadRow as bad:
        return Words(number, (), f"{locate(path, number)}: {bad.detail}.")
    except UserError as error:
        return Words(number, (), str(error))


def encode_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Encode a sentence word by word. Returns the token ids, and the position of the first token of
    each word."""
    ids: list[int] = []
    first = []
    for word in words:
        first.append(len(ids))
        ids += tokenizer.encode(word) or [UNK]
    return ids, first


class TaggedBatches(LabeledBatches):
    """Batches of tokenized sentences with tag indices, both (ids, tags) of equal length.

    Targets hold the tag of each token, -1 for none. settings: those of LabeledBatches.
    """

    def __init__(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], **settings: Any):
        super().__init__(Ragged.from_sequences(ids for ids, _ in rows), (), **settings)
        self.tags = Ragged.from_sequences(tags for _, tags in rows)

    def target(self, source: Padded, indices: Sequence[int]) -> Tensor:
        """Return the tags of the tokens of the given sentences."""
        target = torch.full(source.items.shape, _NO_TAG)
        for row, i in enumerate(indices):
            tags = torch.from_numpy(self.tags[i].astype(np.int64))
            target[row, : len(tags)] = tags
        return target


def _read_sentences(path: Path, config: TaggedConfig) -> Iterator[_Sentence]:
    """Yield the number of the first line of each sentence, and the function that parses it."""
    if _is_json(path, config):
        fields = str(config.token_column or "tokens"), str(config.tag_column or "tags")
        for number, line in read_objects(path):
            yield number, partial(_parse_object, line, fields)
        return
    groups = _read_groups(path, config)
    table = _find_columns(groups, path, config)
    rows = groups[0] if groups else []
    if table.has_header and rows:
        groups[0] = rows[1:]
    if _is_sentence_a_row(groups, table):
        groups = [[row] for group in groups for row in group]
        parse = _parse_row
    else:
        groups = [part for group in groups for part in _split_at_sentences(group, table)]
        parse = _parse_tokens
    for group in groups:
        if group:
            yield group[0].number, partial(parse, group, table, path)


def _is_json(path: Path, config: TaggedConfig) -> bool:
    is_named = plain_name(path).endswith(OBJECTS)
    return config.format == "jsonl" or (config.format == "auto" and is_named)


def _read_groups(path: Path, config: TaggedConfig) -> list[list[_Row]]:
    """Return the rows of a CSV, or the lines of columns, grouped at blank ones."""
    is_csv = config.format == "csv" or (
        config.format == "auto" and plain_name(path).endswith(".csv")
    )
    return _read_csv(path) if is_csv else _read_columns(path)


def _parse_words(line: bytes, field: str) -> tuple[str, ...]:
    words = _string_tuple(parse_json_object(decode_line(line)).get(field))
    if words is None:
        raise BadRow("no tokens", f"expected {field}, a list of strings, got {line[:60]!r}")
    return words


def _read_columns(path: Path) -> list[list[_Row]]:
    """Return the lines of a file, grouped at blank ones."""
    groups: list[list[_Row]] = [[]]
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            groups.append([])
            continue
        try:
            text = decode_line(line)
        except BadRow as bad:
            groups[-1].append(_Row(number, [], f"{path}, line {number}: {bad.detail}."))
            continue
        cells = text.split("\t") if "\t" in text else text.split()
        groups[-1].append(_Row(number, [cell.strip() for cell in cells]))
    groups = [_without_comments(group) for group in groups]
    return [group for group in groups if group]


def _without_comments(rows: list[_Row]) -> list[_Row]:
    """Return the rows of a sentence without the comments before it and the marks of documents.

    A comment begins with # and has other columns than the last row, or the form `# name = value`;
    "# O" is a token.
    """
    first = 0
    while first < len(rows) and rows[first].cells[:1] and rows[first].cells[0].startswith("#"):
        cells, others = rows[first].cells, rows[-1].cells
        if len(cells) == len(others) and not (len(cells) > 2 and cells[2] == "="):
            break
        first += 1
    return [row for row in rows[first:] if row.cells[:1] != [_DOCUMENT]]


def _read_csv(path: Path) -> list[list[_Row]]:
    """Return the rows of a CSV, grouped at blank ones."""
    groups: list[list[_Row]] = [[]]
    following = 1
    for number, cells in read_rows(path)[1]:
        if number != following:
            groups.append([])
        following = number + 1 + sum(cell.count("\n") for cell in cells)
        groups[-1].append(_Row(number, [cell.strip() for cell in cells]))
    return [group for group in groups if group]


def _find_columns(groups: Sequence[Sequence[_Row]], path: Path, config: TaggedConfig) -> _Table:
    """Return the columns of tokens, tags and sentences, and whether the first row is a header."""
    header = [cell.lower() for cell in groups[0][0].cells] if groups else []
    chosen = [
        int(column) if isinstance(column, str) and column.isdecimal() else column
        for column in (config.token_column, config.tag_column)
    ]
    names = [column for column in chosen if isinstance(column, str)]
    by_name = [
        next((header.index(name) for name in known if name in header), None) for known in _NAMES
    ]
    has_names = by_name[0] is not None and by_name[1] is not None and by_name[0] != by_name[1]
    has_header = config.header == "yes" or (config.header == "auto" and bool(names or has_names))
    if names and not has_header:
        raise UserError(
            f"{path}: columns must be chosen by number with --data.header no, got {names[0]!r}."
        )
    if config.token_column is None and not has_header and _is_conllu(groups):
        raise UserError(
            f"{path}: looks like CoNLL-U, whose first column is a number: choose the columns of "
            f"tokens and tags, such "
            "as --data.token-column 2 --data.tag-column 4."
        )
    indices = []
    for column, known, default in zip(chosen, by_name, (0, -1), strict=False):
        if isinstance(column, str):
            if header.count(column.lower()) != 1:
                found = ", ".join(map(repr, header))
                near = did_you_mean(column, header)
                raise UserError(
                    f"{path}, line {groups[0][0].number}: no column {column!r}; the header is "
                    f"{found}.{near}"
                )
            indices.append(header.index(column.lower()))
        elif column is not None:
            indices.append(column - 1)
        else:
            indices.append(default if known is None or not has_header else known)
    return _Table(indices[0], indices[1], by_name[2] if has_header else None, has_header)


def _is_conllu(groups: Sequence[Sequence[_Row]]) -> bool:
    """Return True if rows have ten columns, and the first is the number of the token in the
    sentence."""
    rows = groups[0] if groups else []
    return bool(rows) and all(
        len(row.cells) == _CONLLU and row.cells[0][:1].isdecimal() for row in rows
    )


def _is_sentence_a_row(groups: Sequence[Sequence[_Row]], table: _Table) -> bool:
    """Return True if a row of a table with a header has the tags of a sentence: several, or a
    list."""
    if not table.has_header:
        return False
    tags = (
        row.cells[table.tag]
        for group in groups
        for row in group
        if len(row.cells) > max(table.tag, 0)
    )
    return any(tag.startswith("[") or len(tag.split()) > 1 for tag in tags)


def _split_at_sentences(rows: Sequence[_Row], table: _Table) -> list[list[_Row]]:
    """Split rows where the column of sentences has another value."""
    if table.sentence is None:
        return [list(rows)]
    parts: list[list[_Row]] = []
    before = ""
    for row in rows:
        name = row.cells[table.sentence] if len(row.cells) > table.sentence else ""
        if not parts or (name and name != before):
            parts.append([])
            before = name
        parts[-1].append(row)
    return parts


def _parse_tokens(
    rows: Sequence[_Row], table: _Table, path: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pairs = []
    for number, cells, problem in rows:
        if problem:
            raise UserError(problem)
        least = max(2, table.token + 1, table.tag + 1)  # a token and a tag
        if len(cells) < least or not cells[table.token] or not cells[table.tag]:
            shown = " ".join(cells)[:60]
            raise UserError(f"{path}, line {number}: expected a token and its tag, got {shown!r}.")
        pairs.append((cells[table.token], cells[table.tag]))
    tokens, tags = zip(*pairs, strict=True)
    return tokens, tags


def _parse_row(
    rows: Sequence[_Row], table: _Table, path: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ((_, cells, _),) = rows
    if len(cells) <= max(table.token, table.tag):
        raise BadRow(
            "wrong number of columns",
            f"expected a sentence and its tags, got {' '.join(cells)[:60]!r}",
        )
    numbers = _INTEGERS.fullmatch(cells[table.tag])
    tags = tuple(numbers[1].replace(",", " ").split()) if numbers else _split_cell(cells[table.tag])
    tokens = _split_cell(cells[table.token])
    return _check_lengths(tokens, tags)


def _split_cell(text: str) -> tuple[str, ...]:
    """Return the texts of a JSON list, of a list as pandas writes it, or between white space."""
    if not text.startswith("["):
        return tuple(text.split())
    if _QUOTED.sub("", text).strip("[], \t\n"):
        raise BadRow("no list", f"expected a list of strings, got {text[:60]!r}")
    return tuple(part[1:-1] for part in _QUOTED.findall(text))


def _check_lengths(
    tokens: tuple[str, ...], tags: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if len(tokens) != len(tags):
        detail = f"expected one tag per token, got {len(tokens)} tokens and {len(tags)} tags"
        raise BadRow("unequal lengths", detail)
    return tokens, tags


def _parse_object(line: bytes, fields: tuple[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = decode_line(line)
    row = parse_json_object(text)
    missing = [
        (name, option)
        for name, option in zip(fields, ("token", "tag"), strict=True)
        if name not in row
    ]
    if missing:
        name, option = missing[0]
        known = ", ".join(map(repr, row)) or "none"
        others = [field for field in row if field not in fields]
        lists = [field for field in others if _string_tuple(_name_integers(row[field])) is not None]
        chosen = next((other for other in _NAMES[option == "tag"] if other in lists), "FIELD")
        hint = f"; --data.{option}-column {chosen} selects another" if lists else ""
        raise BadRow(
            "missing field",
            f"no field {name!r}; expected {fields[0]}, a list of strings, and {fields[1]}, a list "
            f"of as many tags, as "
            f'in {{"{fields[0]}": ["on", "Monday"], "{fields[1]}": ["O", "B-DAY"]}}; the fields '
            f"are {known}{hint}",
        )
    tokens, tags = _string_tuple(row[fields[0]]), _string_tuple(_name_integers(row[fields[1]]))
    if tokens is None or tags is None:
        raise BadRow(
            "no tokens and tags",
            f"expected {fields[0]}, a list of strings, and {fields[1]}, a list of strings or "
            f"integers, got "
            f"{text[:60]!a}",
        )
    return _check_lengths(tokens, tags)


def _name_integers(value: object) -> object:
    """Return a list with integers of at least 0 as strings, as `datasets` numbers tags."""
    if not isinstance(value, list):
        return value
    return [
        str(part) if isinstance(part, int) and not isinstance(part, bool) and part >= 0 else part
        for part in value
    ]


def _string_tuple(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
        return None
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # JSON can express a lone surrogate
        return None
    return tuple(value)
