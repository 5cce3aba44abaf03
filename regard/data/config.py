"""Settings of the data: where pairs of texts come from, and how texts become numbers. Imports no torch."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from regard.errors import UserError
from regard.ranges import Count, Length, Range, ShareWithin, check_ranges

PairFormat = Literal["auto", "tsv", "csv", "text", "jsonl", "huggingface"]
OnBad = Literal["error", "skip"]
OpinionKinds = Literal["words", "pairs", "beginnings"]
TargetKind = Literal["class", "labels", "number"]

_LATER = {"since": "0.2.0"}
"""Marks settings that runs of version 0.1.0 do not have; their defaults are what those did."""


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Where the pairs (source text, target text) are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is one of

        pairs.tsv, pairs.tsv.gz      one pair a line, columns separated by a tab, no quoting; also .txt, .bz2, .xz
        pairs.csv                    a pair a row, cells that hold commas or line ends in quotes; also with semicolons
        pairs.jsonl, pairs.jsonl.gz  one JSON object a line
        train.en, train.en.gz        one text a line; the other side of each is in `train_target`
        hf:NAME[:CONFIG][#SPLIT]     a Hugging Face data set: hf:bentrevett/multi30k (needs regard[data])
        hf:KIND:FILE                 a file that `datasets` reads; KIND is csv, json, parquet, text or arrow
        FOLDER                       a folder that `datasets` wrote with save_to_disk
    """

    train: str | None = None
    """Training pairs: FILE.tsv, FILE.csv, FILE.jsonl (also .gz), one side of two text files, hf:NAME, or a folder."""

    train_target: str | None = None
    """Target side of the training pairs, line by line beside `train`; only for two parallel text files."""

    val: str | None = None
    """Validation pairs, in any form that `train` takes."""

    val_target: str | None = None
    """Target side of the validation pairs; only for two parallel text files."""

    test: str | None = None
    """Test pairs, in any form that `train` takes."""

    test_target: str | None = None
    """Target side of the test pairs; only for two parallel text files."""

    format: PairFormat = "auto"
    """What the files are. auto: text if a target file is given, else by name (.tsv, .csv, .jsonl, hf:, folder)."""

    source_column: Count | str | None = None
    """Where the source text is: column number (from 1) or header name in TSV and CSV, field name in JSONL and data
    sets. A dot goes into a nested field: translation.en. Default: source; 1, if a TSV or CSV has no such header."""

    target_column: Count | str | None = None
    """Where the target text is, given as `source_column` is. Default: target; 2, if a TSV or CSV has no such header."""

    on_bad: OnBad = "error"
    """What a bad line does (wrong columns, empty side, not UTF-8, too long): error stops, skip counts it."""

    max_length: Length = 512
    """Longest side of a pair, in tokens; a longer pair is a bad line."""

    def __post_init__(self) -> None:
        _check_choice("format", self.format, get_args(PairFormat))
        _check_choice("on_bad", self.on_bad, get_args(OnBad))
        check_ranges(self)
        for split in ("train", "val", "test"):
            source, target = getattr(self, split), getattr(self, f"{split}_target")
            if "" in (source, target):
                raise UserError(f"`{split}` must name a file, a folder or a data set (hf:NAME), but is empty.")
            if target is not None and source is None:
                raise UserError(f"`{split}_target` needs `{split}`, the source side, but only {target!r} is given.")
            if target is not None and self.format not in ("auto", "text"):
                raise UserError(
                    f"`{split}_target` goes with format 'text' (parallel files), but it is {self.format!r}."
                )


@dataclass(frozen=True, kw_only=True)
class LabeledConfig:
    """Where texts and their labels are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is a file or data set of the forms that pairs come in (see PairsConfig), the label
    standing where a pair has its target: FILE.tsv, FILE.csv, FILE.jsonl, also with .gz, hf:NAME, a folder.
    """

    train: str | None = None
    """Texts to learn from: FILE.tsv, FILE.jsonl (also .gz), hf:NAME, or a folder. Made-up reviews if not given."""

    val: str | None = None
    """Texts that choose the best weights, in any form that `train` takes."""

    test: str | None = None
    """Texts to test on, in any form that `train` takes."""

    format: Literal["auto", "tsv", "csv", "jsonl", "huggingface"] = "auto"
    """What the files are. auto: by name (.tsv, .csv, .jsonl, hf:, folder)."""

    text_column: Count | str | None = None
    """Where the text is: column number (from 1) or header name in TSV and CSV, field name in JSONL and data sets.
    Default: text; 1, if a TSV or CSV has no such header."""

    label_column: Count | str | None = None
    """Where the label is, any text or whole number; or labels, or numbers. Default: label; 2, if a TSV or CSV
    has no such header."""

    on_bad: OnBad = "error"
    """What a bad line does (wrong columns, empty text, not UTF-8, unknown label): error stops, skip counts it."""

    max_length: Length = 512
    """Tokens of a text that are read; what follows is left out."""

    target: TargetKind = field(default="class", metadata=_LATER)
    """What a label is: class: one of several; labels: any number of them, each there or not; number: a number, or
    several."""

    separator: str = field(default=",", metadata=_LATER)
    """The character between several labels or numbers, where they are no JSON list."""

    def __post_init__(self) -> None:
        _check_choice("format", self.format, ("auto", "tsv", "csv", "jsonl", "huggingface"))
        _check_choice("on_bad", self.on_bad, get_args(OnBad))
        _check_target(self.target, self.separator)
        check_ranges(self)
        if (self.train is None) != (self.val is None):
            there, lacks = ("train", "val") if self.val is None else ("val", "train")
            raise UserError(f"`{there}` is given, so `{lacks}` must be given, too.")


@dataclass(frozen=True, kw_only=True)
class ImagesConfig:
    """Where images and their classes are, one set for each of training, validation and test.

    Each of `train`, `val`, `test` is a folder that holds a folder of images for each class, an IDX file of images
    (train-images-idx3-ubyte.gz) with its labels beside it, or a list of files and labels (FILE.tsv, .csv, .jsonl).
    """

    train: str | None = None
    """Images to learn from: a folder with a folder per class, an IDX file, or a list of files and labels (.tsv, .csv:
    two columns; .jsonl: file, label), files named from where the list is. PNG, JPEG, BMP, GIF (its first frame), WEBP,
    TIFF, PPM and PGM, of 8 or 16 bits, upright as EXIF says. Handwritten digits if not given."""

    val: str | None = None
    """Images that choose the best weights. A share of the training images if not given."""

    test: str | None = None
    """Images to test on."""

    val_share: ShareWithin = 0.0833
    """Share of the training images that is kept for validation where `val` is not given: of an IDX file the last, of a
    folder some of every class."""

    size: Annotated[int, Range(1, 4_096)] | None = None
    """Height and width that every image is brought to; images must be of one size if not given."""

    color: Literal["auto", "gray", "rgb"] = "auto"
    """One channel or three. auto: as the first image."""

    names: tuple[str, ...] = ()
    """Names of the classes 0, 1, 2 ... of IDX files, for answers; their numbers if not given."""

    on_bad: OnBad = "error"
    """What a file does that is no image, and a class folder that has files but no image: error stops, skip leaves it
    out and counts it."""

    target: TargetKind = field(default="class", metadata=_LATER)
    """What a label is: class: one of several; labels: any number of them, each there or not; number: a number, or
    several."""

    separator: str = field(default=",", metadata=_LATER)
    """The character between several labels or numbers, where they are no JSON list."""

    def __post_init__(self) -> None:
        _check_choice("color", self.color, ("auto", "gray", "rgb"))
        _check_target(self.target, self.separator)
        _check_choice("on_bad", self.on_bad, get_args(OnBad))
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ScenesConfig(ImagesConfig):
    """Where canvases and the texts that describe them are: made of images with a class each, or your own.

    Each of `train`, `val`, `test` is what ImagesConfig takes, whose images are put on canvases as items; or a file
    (FILE.tsv, FILE.jsonl, also .gz) with the name of an image file and a text a line, in JSONL as `image` and `text`.
    Names of image files are relative to the file's own folder.
    """

    train: str | None = None
    """What to learn from: a folder of images per class, an IDX file, or FILE.tsv or FILE.jsonl of image files and
    texts. Handwritten digits if not given."""

    val: str | None = None
    """What chooses the best weights. A share of the training images if not given."""

    test: str | None = None
    """What to test on."""

    rows: Annotated[int, Range(1, 64)] = 1
    """Rows of places for items on a canvas."""

    columns: Annotated[int, Range(1, 64)] = 2
    """Columns of places for items on a canvas."""

    most: Annotated[int, Range(1, 1_000)] = 2
    """Most items on a canvas."""

    scenes: Annotated[int, Range(1, 10_000_000)] = 20000
    """Canvases of an epoch, made on the fly, new ones in every epoch."""

    test_scenes: Annotated[int, Range(1, 1_000_000)] = 1000
    """Canvases that are asked for in a test; half as many in a validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most > self.rows * self.columns:
            places = self.rows * self.columns
            raise UserError(f"`most` must be at most the places of a canvas, {places}, but is {self.most}.")


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Where the text is that a language model learns: plain text files, UTF-8, also with .gz."""

    train: str | None = None
    """Text to learn from. Dates in many languages, each with its ISO form, if not given."""

    val: str | None = None
    """Text that chooses the best weights. The last part of the training text if not given."""

    test: str | None = None
    """Text to test on."""

    val_share: ShareWithin = 0.1
    """Share of the training text, its end, that is kept for validation where `val` is not given."""

    line_ends: Literal["keep", "eos"] = "keep"
    """keep: a line end is a character like others; eos: it becomes the word <eos>, as is usual for texts in words."""

    def __post_init__(self) -> None:
        _check_choice("line_ends", self.line_ends, ("keep", "eos"))
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TracksConfig:
    """Where recordings of people on a plane are: text files of frame, id, x, y, one position a line.

    White space, commas or semicolons separate the columns. A first line of names chooses columns among others; lines
    that begin with # are left out.
    """

    train: tuple[str, ...] = ()
    """Recordings to learn from. Made-up crowds if not given."""

    val: tuple[str, ...] = ()
    """Recordings that choose the best weights."""

    test: tuple[str, ...] = ()
    """Recordings to test on."""

    observed: Annotated[int, Range(2, 1_000)] = 8
    """Positions of each person that are known."""

    predicted: Annotated[int, Range(1, 1_000)] = 12
    """Positions after them that are predicted."""

    neighbors: Annotated[int, Range(0, 1_000)] = 16
    """Others that a person sees, the nearest ones; 0: nobody."""

    least: Annotated[int, Range(1, 1_000)] = 2
    """People that a window must have at least."""

    on_bad: OnBad = field(default="error", metadata=_LATER)
    """What a line does that is no position (a word or nan for a number, columns too few): error stops, skip counts."""

    def __post_init__(self) -> None:
        _check_choice("on_bad", self.on_bad, get_args(OnBad))
        check_ranges(self)
        if bool(self.train) != bool(self.val):
            there, lacks = ("train", "val") if self.train else ("val", "train")
            raise UserError(f"`{there}` is given, so `{lacks}` must be given, too.")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How a text is cut into pieces, each of which has a number."""

    kind: Literal["bpe", "word", "char"] = "bpe"
    """bpe: parts of words, learned from the training texts; word: by white space; char: single characters."""

    vocab_size: Annotated[int, Range(5, 1_000_000)] = 8000
    """Most pieces in a vocabulary, the 4 special ones included; fewer if the texts do not hold that many."""

    joint: bool = True
    """One vocabulary learned from both sides (needed to share embeddings), or one for each side."""

    lowercase: bool = False
    """Lower-case every text first."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normal form put on every text first; nfkc also folds look-alikes such as full-width letters."""

    min_count: Count = 1
    """Words (kind word) or characters (kinds char, bpe) seen fewer times in training are unknown."""

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, ("bpe", "word", "char"))
        _check_choice("normalize", self.normalize, ("nfc", "nfkc", "none"))
        check_ranges(self)
        for name in ("joint", "lowercase"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"`{name}` must be true or false, but is {getattr(self, name)!r} instead.")


def _check_target(target: str, separator: str) -> None:
    _check_choice("target", target, get_args(TargetKind))
    if len(separator) != 1 or separator in "[]":
        raise UserError(f"`separator` must be one character, and no bracket, but is {separator!r} instead.")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"`{name}` must be one of {', '.join(choices)}, but is {value!r} instead.")
