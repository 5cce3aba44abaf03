"""Other data to score a trained model on than its run names, by kind of recipe. (no torch: help is made of these)"""

from dataclasses import dataclass
from typing import Literal

from regard.data.config import OnBad, PairFormat
from regard.ranges import Count, check_ranges


@dataclass(frozen=True, kw_only=True)
class OtherText:
    """Another text to score a trained model on."""

    test: tuple[str, ...] = ()
    """Text files, UTF-8, also with .gz. Several are scored one by one. The run's own test text if not given."""


@dataclass(frozen=True, kw_only=True)
class OtherTagged:
    """Other sentences to score a tagger on."""

    test: tuple[str, ...] = ()
    """Columns of token and tag, or FILE.jsonl; .gz is fine. Several are scored one by one. The run's own test data if
    not given."""
    format: Literal["auto", "columns", "jsonl"] = "auto"
    """What the files are. auto: jsonl by name (.jsonl), else columns."""
    on_bad: OnBad = "error"
    """What a bad sentence does (a token without a tag, not UTF-8, unknown tag, too long): error stops, skip counts."""


@dataclass(frozen=True, kw_only=True)
class OtherTracks:
    """Other recordings to score a trained model on."""

    test: tuple[str, ...] = ()
    """Text files of frame, id, x, y. Several are scored one by one. The run's own test data, together, if not given."""


@dataclass(frozen=True, kw_only=True)
class OtherImages:
    """Other images to score a trained model on, of the kind that it was trained on."""

    test: tuple[str, ...] = ()
    """A folder with a folder per class, or an IDX file. Several are scored one by one. The run's own test data if not
    given."""
    on_bad: OnBad = "error"
    """What a file does that is no image or of no known class: error stops, skip counts it."""


@dataclass(frozen=True, kw_only=True)
class OtherBoxes:
    """Other images with boxes to score a trained model on."""

    test: tuple[str, ...] = ()
    """Boxes: FILE.json (COCO), FILE.csv or FILE.jsonl. Several are scored one by one. The run's own test data if not
    given."""
    images: str | None = None
    """Folder or tar of their images; beside the boxes if not given."""
    on_bad: OnBad = "error"
    """What a box does that has no area or lies outside its image: error stops, skip counts it."""


@dataclass(frozen=True, kw_only=True)
class OtherSounds:
    """Other sounds with events to score a trained model on."""

    test: tuple[str, ...] = ()
    """A CSV of sound files and their events, or an npz of recordings, of which test scenes are made. Several are scored
    one by one. The run's own test data if not given."""
    on_bad: OnBad = "error"
    """What an event does that has no duration or lies outside its file: error stops, skip counts it."""


@dataclass(frozen=True, kw_only=True)
class OtherScenes:
    """Other images to score a drawing model on, of the kind that it was trained on."""

    test: tuple[str, ...] = ()
    """A folder with a folder per class, or an IDX file, whose images are put on canvases; or FILE.tsv or FILE.jsonl of
    image files and texts. Several are scored one by one. The run's own test data if not given."""
    on_bad: OnBad = "error"
    """What a file does that is no image or of no known class, or a bad line: error stops, skip counts it."""


@dataclass(frozen=True, kw_only=True)
class OtherLabeled:
    """Other texts to score a trained model on, of the kind that it was trained on."""

    test: tuple[str, ...] = ()
    """Texts and labels: FILE.tsv, FILE.jsonl, hf:NAME; .gz is fine. Several are scored one by one. The run's own
    test data if not given."""
    format: Literal["auto", "tsv", "csv", "jsonl", "huggingface"] = "auto"
    """What the files are. auto: by the ending or `hf:`."""
    text_column: Count | str | None = None
    """Where the text is; as in training if not given."""
    label_column: Count | str | None = None
    """Where the label is; as in training if not given."""
    on_bad: OnBad = "error"
    """What a bad line does (wrong columns, empty text, not UTF-8, unknown label): error stops, skip counts."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class OtherData:
    """Other pairs to score a trained model on, of the kind that it was trained on."""

    test: tuple[str, ...] = ()
    """Pairs: FILE.tsv, FILE.jsonl, the source side of two text files, hf:NAME; .gz is fine. Several are
    scored one by one. The run's own test data if not given."""
    test_target: tuple[str, ...] = ()
    """Target side of each, if these are text files."""
    format: PairFormat = "auto"
    """What the files are. auto: text if a target file is given, else by the ending or `hf:`."""
    source_column: Count | str | None = None
    """Where the source text is: column number (from 1) or header name in TSV, field name otherwise."""
    target_column: Count | str | None = None
    """Where the target text is."""
    on_bad: OnBad = "error"
    """What a bad line does (wrong columns, empty side, not UTF-8, too long): error stops, skip counts."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.test_target and len(self.test_target) != len(self.test):
            raise ValueError(
                f"test_target must name a file for each of test, {len(self.test)}, but names {len(self.test_target)}"
            )
