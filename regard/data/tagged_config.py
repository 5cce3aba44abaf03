"""Settings of data whose tokens have a tag each. Imports no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from regard.data.config import OnBad
from regard.errors import UserError
from regard.ranges import Length, check_ranges


@dataclass(frozen=True, kw_only=True)
class TaggedConfig:
    """Where sentences are whose tokens have a tag each, one file for each of training, validation and test.

    Columns: a token and its tag a line (the first and the last column), a blank line between sentences, also with .gz;
    or FILE.jsonl: objects with the lists `tokens` and `tags`.
    """

    train: str | None = None
    """Sentences to learn from. Made-up ones with dates if not given."""

    val: str | None = None
    """Sentences that choose the best weights."""

    test: str | None = None
    """Sentences to test on."""

    format: Literal["auto", "columns", "jsonl"] = "auto"
    """What the files are. auto: jsonl by name (.jsonl), else columns."""

    on_bad: OnBad = "error"
    """What a bad sentence does (a token without a tag, not UTF-8, unknown tag, too long): error stops, skip counts."""

    max_length: Length = 256
    """Longest sentence, in pieces."""

    def __post_init__(self) -> None:
        if self.format not in ("auto", "columns", "jsonl"):
            raise UserError(f"`format` must be one of auto, columns, jsonl, but is {self.format!r} instead.")
        if self.on_bad not in get_args(OnBad):
            raise UserError(f"`on_bad` must be one of error, skip, but is {self.on_bad!r} instead.")
        check_ranges(self)
        if (self.train is None) != (self.val is None):
            there, lacks = ("train", "val") if self.val is None else ("val", "train")
            raise UserError(f"`{there}` is given, so `{lacks}` must be given, too.")
