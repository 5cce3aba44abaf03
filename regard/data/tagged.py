"""Sentences with a tag a token: read from the user's files, or made up, and put in batches.

    we       O                      FILE: a token and its tag a line, the first and the last of its columns (tabs or
    met      O                      white space between), a blank line between sentences; -DOCSTART- is left out
    on       O
    5        B-DAY                  FILE.jsonl: {"tokens": ["we", "met", ...], "tags": ["O", "O", ...]}

A token that is cut into pieces has its tag at its first piece, and none at the others.

Source: columns tjong2003, section 2.2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import Ragged, pad, plan_batches
from regard.data.lines import not_utf8, read_lines
from regard.data.spellings import Spellings
from regard.data.tagged_config import TaggedConfig
from regard.data.tokenize import UNK, Tokenizer
from regard.errors import UserError
from regard.files import decode_json
from regard.packed import plain_name

_NO_TAG = -1
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentences:
    """Tokens and their tags, sentence by sentence."""

    tokens: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    """Where each begins."""
    origin: str
    skipped: tuple[str, ...] = ()
    """What was left out because the user asked for that, and why."""

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, index: int) -> str:
        """The place of a sentence, for messages."""
        return f"{self.origin}, line {self.lines[index]}"

    def take(self, index: Sequence[int], skipped: Sequence[str]) -> "Sentences":
        """Some of them; `skipped` is why others were left out."""
        tokens, tags = (tuple(of[i] for i in index) for of in (self.tokens, self.tags))
        return Sentences(tokens, tags, tuple(self.lines[i] for i in index), self.origin, (*self.skipped, *skipped))


def words_of(text: str) -> tuple[str, ...]:
    """The tokens of a line that is to be tagged: what white space separates."""
    return tuple(text.split())


def read_tagged(path: str | Path, config: TaggedConfig) -> Sentences:
    """The sentences of a file. Raises UserError naming the line, what was expected and what was got."""
    path = Path(path)
    is_json = config.format == "jsonl" or (config.format == "auto" and plain_name(path).endswith((".jsonl", ".ndjson")))
    tokens, tags, lines, skipped = [], [], [], []
    spellings = Spellings()
    numbered = list(enumerate(read_lines(path), start=1))
    for number, part in [(n, [line]) for n, line in numbered] if is_json else _parts(numbered):
        try:
            words, found = _object(part[0], number) if is_json else _columns(part, number)
        except ValueError as error:
            if config.on_bad == "error":
                hint = "With `on_bad` = skip, such sentences are left out and counted."
                raise UserError(f"{path}, {error}. {hint}") from None
            skipped.append(f"{path}, {error}")
            continue
        if words and words[0] != _DOCUMENT:
            tokens.append(words)
            tags.append(tuple(spellings[tag] for tag in found))
            lines.append(number)
    if not tokens:
        raise UserError(f"{path}: there is no sentence in it{'; ' + skipped[0] if skipped else ''}.")
    spellings.warn_merged(str(path))
    return Sentences(tuple(tokens), tuple(tags), tuple(lines), str(path), tuple(skipped))


def _parts(lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    """The lines between blank ones, and the number of the first."""
    found = []
    for is_blank, group in groupby(lines, key=lambda line: not line[1].strip()):
        if not is_blank:
            part = list(group)
            found.append((part[0][0], [line for _, line in part]))
    return found


def _columns(lines: Sequence[bytes], first: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    rows = []
    for number, line in enumerate(lines, start=first):
        text = _decoded(line, number)
        columns = [part.strip() for part in text.split("\t")] if "\t" in text else text.split()
        if len(columns) < 2 or not columns[0] or not columns[-1]:  # a token and a tag
            raise ValueError(f"line {number}: expected a token and its tag, got {text[:60]!r}")
        rows.append((columns[0], columns[-1]))
    tokens, tags = zip(*rows, strict=True)
    return tokens, tags


def _object(line: bytes, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = _decoded(line, number)
    if not text.strip():
        return (), ()
    try:
        row = decode_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not valid JSON: {error}") from None
    tokens, tags = (_texts(row.get(name)) for name in ("tokens", "tags")) if isinstance(row, dict) else (None, None)
    if tokens is None or tags is None:
        raise ValueError(f"line {number}: expected tokens and tags, two lists of texts, got {text[:60]!a}")
    if len(tokens) != len(tags):
        raise ValueError(f"line {number}: expected a tag a token, got {len(tokens)} tokens and {len(tags)} tags")
    return tokens, tags


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
        return None
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # JSON can write half a surrogate pair
        return None
    return tuple(value)


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number}: {not_utf8(error)}") from None


def cut(tokens: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The pieces of a sentence, token by token, and the place of each token's first."""
    ids: list[int] = []
    first = []
    for token in tokens:
        first.append(len(ids))
        ids += tokenizer.encode(token) or [UNK]
    return ids, first


@dataclass(frozen=True)
class TaggedBatch:
    """Rows of pieces, padded with 0, and the tag of each, -1 where it has none."""

    source: Padded
    target: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "TaggedBatch":
        """The same batch on a device."""
        return TaggedBatch(self.source.to(device), self.target.to(device, non_blocking=True), self.indices)


class TaggedBatches:
    """Batches over sentences as pieces with tags as numbers, both (ids, tags) of equal length.

    change(ids, epoch, index): what training shows of a sentence (pieces left out at random), a pure function; or None.
    Raises:  UserError by `plan` if one sentence alone exceeds batch_tokens.
    """

    def __init__(
        self,
        rows: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        batch_tokens: int,
        seed: int,
        change: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
        origin: str = "",
    ):
        self.origin = origin
        self.ids, self.tags = Ragged.of(ids for ids, _ in rows), Ragged.of(tags for _, tags in rows)
        self.batch_tokens, self.seed, self.change = batch_tokens, seed, change

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (lengths, seed, epoch)."""
        lengths = [(length, length) for length in self.ids.lengths.tolist()]
        return plan_batches(lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch, origin=self.origin)

    def collate(self, epoch: int, indices: Sequence[int]) -> TaggedBatch:
        """The tensors of these rows."""
        rows = [self.ids[i] for i in indices]
        if self.change is not None:
            rows = [self.change(row, epoch, i) for row, i in zip(rows, indices, strict=True)]
        source = pad([row.tolist() for row in rows])
        target = torch.full(source.items.shape, _NO_TAG)
        for row, i in enumerate(indices):
            tags = torch.from_numpy(self.tags[i].astype(np.int64))
            target[row, : len(tags)] = tags
        return TaggedBatch(source, target, tuple(indices))
