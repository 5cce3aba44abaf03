"""Shared settings of recipes: limits on lengths, and the data that `evaluate` takes. Importing them needs no torch."""

from dataclasses import replace
from typing import Literal

from regard.data.config import OnBad, PairFormat
from regard.decode.config import DecodeConfig
from regard.models.config import ModelConfig, max_length_of
from regard.settings.declare import settings
from regard.settings.ranges import Count


def clamp_max_length(decode: DecodeConfig, model: ModelConfig) -> DecodeConfig:
    """Return the search settings with max_length limited to the number of learned positions."""
    limit = max_length_of(model.core)
    return decode if limit is None else replace(decode, max_length=min(decode.max_length, limit))


def limit_input_length(max_length: int, model: ModelConfig) -> int:
    """Return max_length, limited to the number of learned positions minus one for EOS."""
    limit = max_length_of(model.core)
    return max_length if limit is None else min(max_length, limit - 1)


@settings
class OtherText:
    """Another text to evaluate a language model on."""

    test: tuple[str, ...] = ()
    """Text files, UTF-8, also with .gz. Several are evaluated one by one. Default: the run's test text."""


@settings
class OtherTagged:
    """Other sentences to evaluate a tagger on."""

    test: tuple[str, ...] = ()
    """Columns of token and tag, or FILE.jsonl; also with .gz. Several are evaluated one by one. Default: the run's test
    data."""
    format: Literal["auto", "columns", "jsonl"] = "auto"
    """File format. auto: jsonl for names ending in .jsonl, else columns."""
    on_bad: OnBad = "error"
    """Handling of bad sentences (a token without a tag, not UTF-8, unknown tag, too long): error stops; skip leaves
    them out and counts them."""


@settings
class OtherTracks:
    """Other recordings to evaluate a forecaster on."""

    test: tuple[str, ...] = ()
    """Text files of frame, id, x, y. Several are evaluated one by one. Default: the run's test data, as a whole."""


@settings
class OtherImages:
    """Other images to evaluate a model on, in the format of its training data."""

    test: tuple[str, ...] = ()
    """A folder with one subfolder per class, or an IDX file. Several are evaluated one by one. Default: the run's test
    data."""
    on_bad: OnBad = "error"
    """Handling of files that are not images or have an unknown class: error stops; skip leaves them out and counts
    them."""


@settings
class OtherBoxes:
    """Other images with boxes to evaluate a detector on."""

    test: tuple[str, ...] = ()
    """Boxes: FILE.json (COCO), FILE.csv or FILE.jsonl. Several are evaluated one by one. Default: the run's test
    data."""
    images: str | None = None
    """Folder or tar of the images. Default: the folder of the file of boxes."""
    on_bad: OnBad = "error"
    """Handling of boxes without area or outside their image: error stops; skip leaves them out and counts them."""


@settings
class OtherSounds:
    """Other sounds with events to evaluate a detector on."""

    test: tuple[str, ...] = ()
    """A CSV of sound files and their events, or an npz of recordings from which test scenes are generated. Several are
    evaluated one by one. Default: the run's test data."""
    on_bad: OnBad = "error"
    """Handling of events without duration or outside their file: error stops; skip leaves them out and counts them."""


@settings
class OtherScenes:
    """Other images to evaluate a text-to-image model on, in the format of its training data."""

    test: tuple[str, ...] = ()
    """A folder with one subfolder per class, or an IDX file, whose images are placed on canvases; or FILE.tsv or
    FILE.jsonl of image files and captions. Several are evaluated one by one. Default: the run's test data."""
    on_bad: OnBad = "error"
    """Handling of bad lines and of files that are not images or have an unknown class: error stops; skip leaves them
    out and counts them."""


@settings
class OtherLabeled:
    """Other texts to evaluate a classifier on, in the format of its training data."""

    test: tuple[str, ...] = ()
    """Texts and labels: FILE.tsv, FILE.jsonl, hf:NAME; also with .gz. Several are evaluated one by one. Default: the
    run's test data."""
    format: Literal["auto", "tsv", "csv", "jsonl", "huggingface"] = "auto"
    """File format. auto: by the file suffix or `hf:`."""
    text_column: Count | str | None = None
    """Column of the text. Default: as in training."""
    label_column: Count | str | None = None
    """Column of the label. Default: as in training."""
    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty text, not UTF-8, unknown label): error stops; skip leaves them out
    and counts them."""


@settings
class OtherData:
    """Other text pairs to evaluate a model on."""

    test: tuple[str, ...] = ()
    """Pairs: FILE.tsv, FILE.jsonl, the source side of two text files, hf:NAME; also with .gz. Several are evaluated one
    by one. Default: the run's test data."""
    test_target: tuple[str, ...] = ()
    """Target side of each file in `test`, for text files."""
    format: PairFormat = "auto"
    """File format. auto: text if a target file is given, else by the file suffix or `hf:`."""
    source_column: Count | str | None = None
    """Column of the source text: number (from 1) or header name in TSV, else field name."""
    target_column: Count | str | None = None
    """Column of the target text, as `source_column`."""
    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty side, not UTF-8, too long): error stops; skip leaves them out and
    counts them."""

    def __post_init__(self) -> None:
        if self.test_target and len(self.test_target) != len(self.test):
            raise ValueError(
                f"test_target must name one file for each file in test ({len(self.test)}), got {len(self.test_target)}"
            )
