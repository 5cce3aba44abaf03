"""Data sets for token tagging: readers and batches; docs/recipes/tags.md describes the files.

A word that is split into several tokens has its tag at the first one; the others have none.

Source: columns tjong2003, section 2.2.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRows
from regard.data.batches import Ragged
from regard.data.config import TaggedConfig
from regard.data.formats.spans import read_span_rows, read_spans, recognize
from regard.data.tables import (
    FORMATS,
    Input,
    column_names,
    decode_line,
    excerpt,
    locate,
    read_column,
    read_lines,
    read_records,
    read_table,
)
from regard.data.text.labels import LabeledBatches, normalize_label
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.system.files import suffix_of

_NO_TAG = -1
_SENTENCE = ("sentence", "sentence_id", "Sentence #")
"""Names of the column of sentences in a CSV."""

_NO_WORD = re.compile("[0-9]+[-.][0-9]+")
"""Ids in CoNLL-U that are not of a word: a multiword token, 1-2, or an empty node, 1.1."""

_Sentence = tuple[int, Any, list[str]]
"""Number of the first line, tokens (or the text, if spans have no use), and tags."""


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences with a tag for each word."""

    tokens: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    """Number of the first line of each sentence."""
    origin: str
    notices: tuple[str, ...] = ()
    files: Sequence[str] = ()
    """File of each sentence, if they are of several (`join_files`)."""

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, index: int) -> str:
        return locate(self.files[index] if self.files else self.origin, self.lines[index])

    def take(self, index: Sequence[int]) -> Self:
        tokens = tuple(self.tokens[i] for i in index)
        tags, lines = tuple(self.tags[i] for i in index), tuple(self.lines[i] for i in index)
        files = [self.files[i] for i in index] if self.files else []
        return replace(self, tokens=tokens, tags=tags, lines=lines, files=files)


def read_tagged(path: str | Path, config: TaggedConfig) -> TaggedSentences:
    """Read the sentences of a file. Raises UserError naming the file and the line."""
    path, bad_rows = Path(path), BadRows(config.on_bad, "sentences")
    tokens, tags, lines = [], [], []
    for number, own_tokens, own_tags in _read_sentences(path, config, bad_rows, has_tags=True):
        with bad_rows.catch(locate(path, number)):
            tags.append(tuple(map(normalize_label, own_tags)))
            tokens.append(tuple(own_tokens))
            lines.append(number)
    if not tokens:
        problem = bad_rows.describe()
        raise UserError(f"{path}: contains no sentence; {problem}".rstrip("; "))
    notices = bad_rows.notices(path)
    return TaggedSentences(tuple(tokens), tuple(tags), tuple(lines), str(path), notices)


def read_words(path: Path, config: TaggedConfig) -> Iterator[Input]:
    """Yield the words of each sentence of a file, with or without tags, or its text in formats of
    texts; or in its place the problem of a sentence."""
    bad_rows = BadRows("skip")
    if field := _find_text_column(path, config):
        format, before = "auto" if config.format in ("auto", "spans") else "jsonl", None
        for cell in read_column(path, field, field, config, format):
            row = cell.value, cell.columns.get("sentence")
            if not row[1] or row != before:  # else a row of another span
                yield cell
            before = row
        return
    sentences = _read_sentences(path, config, bad_rows, has_tags=False)
    for problem, sentence in bad_rows.in_order(sentences):
        number, words, _ = sentence or (None, [], [])
        yield Input(words, str(path), number, problem=problem)


def encode_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the token ids of a sentence and around it, and the first position of each word."""
    ids, first = [*tokenizer.text_ends.before], []
    for word in words:
        first.append(len(ids))
        ids += tokenizer.encode(word) or [tokenizer.specials.filler]
    return [*ids, *tokenizer.text_ends.after], first


class TaggedBatches(LabeledBatches):
    """Batches of tokenized sentences with the tag of each token as target, -1 for none."""

    def __init__(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], **settings: Any):
        super().__init__(Ragged.from_sequences(ids for ids, _ in rows), (), **settings)
        self.tags = Ragged.from_sequences(tags for _, tags in rows)

    def target(self, source: Padded, indices: Sequence[int]) -> Tensor:
        tags = [torch.from_numpy(self.tags[i].astype(np.int64)) for i in indices]
        return pad_sequence(tags, batch_first=True, padding_value=_NO_TAG)


def _read_sentences(
    path: Path, config: TaggedConfig, bad_rows: BadRows, *, has_tags: bool
) -> Iterator[_Sentence]:
    if suffix_of(path) == ".spacy":
        raise UserError(f"{path}: is binary: docs/formats.md converts it to JSON lines with spaCy.")
    by_suffix = FORMATS.get(suffix_of(path), "tsv")
    format = by_suffix if config.format == "auto" else config.format
    is_span_table = format in ("csv", "parquet") and _find_text_column(path, config)
    if format == "spans" or is_span_table:
        return read_span_rows(path, config, bad_rows)
    if format in ("prodigy", "doccano", "label-studio", "spacy"):
        field = str(config.token_column or "text")
        return read_spans(path, format, field, bad_rows, config.encoding, has_spans=has_tags)
    if format in ("columns", "tsv"):
        return _read_columns(path, config, bad_rows, has_tags=has_tags)
    suffix = "" if format == "csv" else "s"
    if config.format == "auto" and format == "jsonl":
        for _, record in islice(read_records(path, BadRows("skip"), config.encoding), 100):
            if found := recognize(record):
                raise UserError(f"{path}: has texts with spans: give --data.format {found}.")
    columns = [config.token_column or f"token{suffix}", config.tag_column or f"tag{suffix}"]
    rows = read_table(
        path,
        columns[: 1 + has_tags],
        config,
        optional=_SENTENCE if format == "csv" else (),
        blank_rows=format == "csv",
        by_position=config.token_column is None and config.tag_column is None,
        format=format,
        bad_rows=bad_rows,
    )
    join = _join_rows if format == "csv" else _check_lists
    return join(rows, path, bad_rows)


def _find_text_column(path: Path, config: TaggedConfig) -> str:
    """Return the name of the column of texts of a table; empty if it has tokens."""
    if config.format in ("spans", "prodigy", "doccano"):
        return str(config.token_column or "text")
    is_table = FORMATS.get(suffix_of(path)) in ("csv", "jsonl", "parquet")
    if config.format != "auto" or config.token_column or config.header == "no" or not is_table:
        return ""
    names = column_names(path, config)
    return "text" if "text" in names and not {"token", "tokens"} & {*names} else ""


def _check_lists(
    rows: Iterable[tuple[int, list[Any]]], path: Path, bad_rows: BadRows
) -> Iterator[_Sentence]:
    for number, (tokens, *rest) in rows:
        tags = rest[0] if rest else tokens
        are_tokens = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        are_tags = isinstance(tags, list) and all(isinstance(tag, str | int) for tag in tags)
        if are_tokens and are_tags and tokens and len(tokens) == len(tags):
            yield number, tokens, list(map(str, tags))
            continue
        shown = f"{excerpt(str(tokens))} and {excerpt(str(tags))}"
        where = locate(path, number)
        bad_rows.add(f"{where}: expected lists of tokens and of as many tags, got {shown}")


def _join_rows(
    rows: Iterable[tuple[int, list[Any]]], path: Path, bad_rows: BadRows
) -> Iterator[_Sentence]:
    """Yield the sentences of rows of a token, a tag if there are tags, and names of sentences."""
    tokens: list[str] = []
    tags: list[str] = []
    first, current = 0, ""
    for _, row in bad_rows.in_order(rows):
        number, (cell, *rest) = row if row and row[1] else (0, [""])  # blank, or left out
        name = next((cell for cell in rest[-len(_SENTENCE) :] if cell), "")
        if tokens and (number == 0 or (name and name != current)):
            yield first, tokens, tags
            tokens, tags = [], []
        if number == 0:
            continue
        token = cell.strip(" ")
        tag = rest[0].strip(" ") if len(rest) > len(_SENTENCE) else "-"
        if not token or not tag:
            bad_rows.add(f"{locate(path, number)}: expected a token and its tag")
            continue
        if not tokens:
            first = number
        current = name or current
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield first, tokens, tags


def _read_columns(
    path: Path, config: TaggedConfig, bad_rows: BadRows, *, has_tags: bool
) -> Iterator[_Sentence]:
    is_conllu = suffix_of(path) == ".conllu"
    default = (2, 4) if is_conllu else (1, 0)  # 0 - 1: the last column
    columns = [str(config.token_column or default[0]), str(config.tag_column or default[1])]
    is_named = not all(map(str.isdecimal, columns))
    has_header = config.header == "yes" or (config.header == "auto" and is_named)
    first = next(read_lines(path, encoding=config.encoding), b"")
    if {b"text", b"start", b"end", b"label"} <= {*first.split(b"\t")}:
        raise UserError(f"{path}: has texts with spans: give --data.format spans.")
    numbered = enumerate(read_lines(path, encoding=config.encoding), start=1)
    for is_blank, group in groupby(numbered, key=lambda line: not line[1].strip()):
        if is_blank:
            continue
        lines = list(group)
        if has_header:
            header, has_header = _split(*lines.pop(0), path), False
            for i, column in enumerate(columns):
                if not column.isdecimal() and column not in header:
                    names = ", ".join(map(repr, header))
                    raise UserError(f"{path}: no column {column!r}; the columns are {names}.")
                if not column.isdecimal():
                    columns[i] = str(header.index(column) + 1)
        token, tag = (int(column) - 1 for column in columns)
        with bad_rows.catch():
            rows = [(number, _split(number, line, path)) for number, line in lines]
            rows = _without_comments(rows)
            if is_conllu:
                rows = [row for row in rows if not _NO_WORD.fullmatch(row[1][0])]
            for number, cells in rows:
                is_short = len(cells) <= max(token, tag, int(has_tags))
                if is_short or not cells[token] or (has_tags and not cells[tag]):
                    where, shown = locate(path, number), excerpt(" ".join(cells))
                    raise UserError(f"{where}: expected a token and its tag, got {shown}")
            if rows:
                tags = [cells[tag] for _, cells in rows] if has_tags else []
                yield rows[0][0], [cells[token] for _, cells in rows], tags


def _split(number: int, line: bytes, path: Path) -> list[str]:
    text = decode_line(line, locate(path, number))
    if "\t" in text:
        return [cell.strip(" ") for cell in text.split("\t")]
    return [cell for cell in text.split(" ") if cell]


def _without_comments(rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Return the rows of a sentence without the comments before it and the marks of documents.

    A comment begins with # and has other columns than the last row, or the form `# name = value`;
    "# O" is a token.
    """
    first = 0
    for _, cells in rows:
        if not cells[0].startswith("#") or (len(cells) == len(rows[-1][1]) and cells[2:3] != ["="]):
            break
        first += 1
    return [row for row in rows[first:] if row[1][0] != "-DOCSTART-"]
