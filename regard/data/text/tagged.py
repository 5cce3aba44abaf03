"""Data sets for token tagging: readers and batches.

    we       O                      FILE: a token and its tag a line, the first and the last of its columns (tabs or
    met      O                      white space between), a blank line between sentences; -DOCSTART- is skipped
    on       O
    5        B-DAY                  FILE.jsonl: {"tokens": ["we", "met", ...], "tags": ["O", "O", ...]}

A word that is split into several tokens has its tag at the first one; the others have none.

Source: columns tjong2003, section 2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRow, BadRows
from regard.data.batches import Ragged
from regard.data.config import TaggedConfig
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.labels import LabeledBatches
from regard.data.text.lines import read_lines
from regard.data.text.rows import decode_line, parse_json_object
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import UserError
from regard.system.compression import plain_name

_NO_TAG = -1
_DOCUMENT = "-DOCSTART-"


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
        return f"{self.origin}, line {self.lines[index]}"

    def take(self, index: Sequence[int], skipped: Sequence[str]) -> "TaggedSentences":
        """Return the data set of the given indices; `skipped` has the reasons for skipping others."""
        tokens, tags = (tuple(values[i] for i in index) for values in (self.tokens, self.tags))
        return TaggedSentences(
            tokens, tags, tuple(self.lines[i] for i in index), self.origin, (*self.skipped, *skipped)
        )


def split_words(text: str) -> tuple[str, ...]:
    """Split a line to be tagged into words at white space."""
    return tuple(text.split())


def read_tagged(path: str | Path, config: TaggedConfig) -> TaggedSentences:
    """Read the sentences of a file. Raises UserError naming the line, what was expected and what was found."""
    path = Path(path)
    is_json = config.format == "jsonl" or (config.format == "auto" and plain_name(path).endswith((".jsonl", ".ndjson")))
    tokens, tags, lines, bad_rows = [], [], [], BadRows(config.on_bad, "sentences")
    normalizer = LabelNormalizer()
    numbered = list(enumerate(read_lines(path), start=1))
    for number, part in [(n, [line]) for n, line in numbered] if is_json else _split_sentences(numbered):
        words: tuple[str, ...] = ()
        word_tags: tuple[str, ...] = ()
        with bad_rows.catch(f"{path}, line {number}"):
            words, word_tags = _parse_object(part[0]) if is_json else _parse_columns(path, part, number)
        if words and words[0] != _DOCUMENT:
            tokens.append(words)
            tags.append(tuple(normalizer[tag] for tag in word_tags))
            lines.append(number)
    if not tokens:
        raise UserError(f"{path}: contains no sentence{'; ' + bad_rows.skipped[0] if bad_rows.skipped else ''}.")
    normalizer.warn_merged(str(path))
    return TaggedSentences(tuple(tokens), tuple(tags), tuple(lines), str(path), bad_rows.skipped)


def encode_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Encode a sentence word by word. Returns the token ids, and the position of the first token of each word."""
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


def _split_sentences(lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    """Split lines at blank ones. Returns the number of the first line and the lines of each part."""
    parts = []
    for is_blank, group in groupby(lines, key=lambda line: not line[1].strip()):
        if not is_blank:
            part = list(group)
            parts.append((part[0][0], [line for _, line in part]))
    return parts


def _parse_columns(path: Path, lines: Sequence[bytes], first: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    rows = []
    for number, line in enumerate(lines, start=first):
        try:
            text = decode_line(line)
        except BadRow as bad:
            raise UserError(f"{path}, line {number}: {bad.detail}.") from None
        columns = [part.strip() for part in text.split("\t")] if "\t" in text else text.split()
        if len(columns) < 2 or not columns[0] or not columns[-1]:  # a token and a tag
            raise UserError(f"{path}, line {number}: expected a token and its tag, got {text[:60]!r}.")
        rows.append((columns[0], columns[-1]))
    tokens, tags = zip(*rows, strict=True)
    return tokens, tags


def _parse_object(line: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = decode_line(line)
    if not text.strip():
        return (), ()
    row = parse_json_object(text)
    tokens, tags = (_string_tuple(row.get(name)) for name in ("tokens", "tags"))
    if tokens is None or tags is None:
        raise BadRow("no tokens and tags", f"expected tokens and tags, two lists of strings, got {text[:60]!a}")
    if len(tokens) != len(tags):
        detail = f"expected one tag per token, got {len(tokens)} tokens and {len(tags)} tags"
        raise BadRow("unequal lengths", detail)
    return tokens, tags


def _string_tuple(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
        return None
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # JSON can express a lone surrogate
        return None
    return tuple(value)
