"""Settings of data sets for token tagging. Does not import torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from regard.data.config import OnBad
from regard.errors import UserError
from regard.ranges import Length, check_ranges


@dataclass(frozen=True, kw_only=True)
class TaggedConfig:
    """Files of sentences with a tag for each token, for training, validation and test.

    Columns: a token and its tag a line (the first and the last column), a blank line between sentences, also with .gz;
    or FILE.jsonl: objects with the lists `tokens` and `tags`.
    """

    train: str | None = None
    """Training sentences. Synthetic sentences with dates if not given."""

    val: str | None = None
    """Validation sentences."""

    test: str | None = None
    """Test sentences."""

    format: Literal["auto", "columns", "jsonl"] = "auto"
    """File format. auto: jsonl by name (.jsonl), else columns."""

    on_bad: OnBad = "error"
    """Handling of bad sentences (a token without a tag, not UTF-8, unknown tag, too long): error stops, skip skips and
    counts them."""

    max_length: Length = 256
    """Maximum length of a sentence, in subwords."""

    def __post_init__(self) -> None:
        if self.format not in ("auto", "columns", "jsonl"):
            raise UserError(f"`format` must be one of auto, columns, jsonl, got {self.format!r}.")
        if self.on_bad not in get_args(OnBad):
            raise UserError(f"`on_bad` must be one of error, skip, got {self.on_bad!r}.")
        check_ranges(self)
        if (self.train is None) != (self.val is None):
            present, missing = ("train", "val") if self.val is None else ("val", "train")
            raise UserError(f"`{missing}` must be given together with `{present}`.")
