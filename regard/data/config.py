"""Settings of data sets and tokenizers. Importing them needs no torch."""

from typing import Annotated, ClassVar, Literal

from regard.errors import UserError
from regard.settings.declare import settings
from regard.settings.ranges import Count, FractionWithin, Length, Range

TableFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet"]
PairFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "text", "huggingface"]
OnBad = Literal["error", "skip"]
FeatureKinds = Literal["words", "bigrams", "prefixes"]
TargetKind = Literal["class", "labels", "number"]
Header = Literal["auto", "yes", "no"]


@settings
class Splits:
    """Files for training, validation and test."""

    train: str | None = None
    """Training data. Synthetic data if not given."""

    val: str | None = None
    """Validation data, in any format of `train`. A fraction of the training data if not given."""

    test: str | None = None
    """Test data, in any format that `train` takes."""

    val_share: FractionWithin = 0.1
    """Fraction of the training data that is used for validation if `val` is not given: a random
    sample; equal inputs are on one side."""

    on_bad: OnBad = "error"
    """Handling of data that cannot be used (wrong cells, not UTF-8, unknown label, damaged files):
    error stops at the first; skip leaves it out and counts it."""


@settings
class Tables(Splits):
    """Tables for training, validation and test."""

    header: Header = "auto"
    """Header row of CSV and TSV. auto: CSV has one, and TSV if columns are chosen by name."""


@settings
class Targets:
    """Kind of targets: of texts or images."""

    label_column: tuple[Count | str, ...] = ()
    """Column of the label, a text or an integer; or of the labels. Several columns are labels that
    hold where the cell is 1 or true (target labels), or numbers (target number), with the names of
    the columns. Default: label, else the second."""

    target: TargetKind = "class"
    """Kind of target: class (one class per input), labels (multi-label: any number of labels) or
    number (regression: one number or several)."""

    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the classes in the loss, for target class. balanced: n / (k n_c), for n_c of n
    inputs in one of k classes, so that rare classes count as much as frequent ones; macro F1 then
    selects the weights of the model."""

    separator: str = ","
    """Separator of several labels or numbers in one cell; JSON lists need none."""

    def __post_init__(self) -> None:
        if len(self.separator) != 1 or self.separator in "[]":
            raise UserError(
                f"`separator` must be one character other than a bracket, got {self.separator!r}."
            )
        if len(self.label_column) > 1 and self.target == "class":
            raise UserError(
                "`label_column` must be one column for `target` class, got "
                f"{len(self.label_column)} columns."
            )
        if self.class_weights != "none" and self.target != "class":
            raise UserError(f"`class_weights` must be none for `target` {self.target}.")


@settings
class PairsConfig(Tables):
    """Data sets of pairs (source text, target text) for training, validation and test.

    Each of `train`, `val`, `test` is one of

        FILE.csv, FILE.tsv, FILE.jsonl, FILE.parquet      a pair a row; text files also with .gz
        train.en                                          a text a line; the other side of each is
                                                          in `train_target`
        hf:NAME[:CONFIG][#SPLIT]                          a Hugging Face data set (regard[data])
        hf:KIND:FILE                                      KIND is csv, json, parquet, text, arrow
        FOLDER                                            written by save_to_disk of `datasets`
    """

    train: str | None = None
    """Training pairs: FILE.tsv, .csv, .jsonl (also .gz) or .parquet, one side of two text files,
    hf:NAME, or a folder."""

    train_target: str | None = None
    """Target side of the training pairs, line by line; only for two parallel text files."""

    val_target: str | None = None
    """Target side of the validation pairs; only for two parallel text files."""

    test_target: str | None = None
    """Target side of the test pairs; only for two parallel text files."""

    references: tuple[str, ...] = ()
    """More reference translations of the test pairs: text files with one line per pair."""

    format: PairFormat = "auto"
    """File format. auto: text if a target file is given, else by the name."""

    source_column: Count | str | None = None
    """Column of the source text: number (from 1) or name, with a dot for a nested field:
    translation.en. Default: source, else the first."""

    target_column: Count | str | None = None
    """Column of the target text, as `source_column`. Default: target, else the second."""

    max_length: Length = 512
    """Maximum length of either side of a pair, in tokens; a longer pair is a bad row."""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            target = getattr(self, f"{split}_target")
            if target is not None and getattr(self, split) is None:
                raise UserError(
                    f"`{split}_target` needs `{split}`, the source side, got only {target!r}."
                )
            if target is not None and self.format not in ("auto", "text"):
                raise UserError(
                    f"`{split}_target` needs `format` to be 'text' (parallel files), got "
                    f"{self.format!r}."
                )


@settings
class LabeledConfig(Targets, Tables):
    """Data sets of texts with labels for training, validation and test, in a format of PairsConfig,
    with the label in place of the target."""

    train: str | None = None
    """Training texts: FILE.tsv, .csv, .jsonl (also .gz) or .parquet, hf:NAME, or a folder.
    Synthetic reviews if not given."""

    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "huggingface"] = "auto"
    """File format. auto: by the name."""

    text_column: Count | str | None = None
    """Column of the text: number (from 1) or name. Default: text, else the first."""

    max_length: Length = 512
    """Maximum length of a text, in tokens. Longer texts are cut and counted in training and
    evaluation; for `predict` and `look`, they are inputs that cannot be used (predict --on-bad)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_train(self.train, self.val)


@settings
class ImagesConfig(Targets, Tables):
    """Data sets of images with classes for training, validation and test.

    Each of `train`, `val`, `test` is a folder with one subfolder of images per class, an IDX file
    of images (train-images-idx3-ubyte.gz) with its labels beside it, or a table of files and
    labels, with paths relative to it.
    """

    name: ClassVar[str] = "images"

    train: str | None = None
    """Training images: a folder with one subfolder per class, an IDX file, or a table of the
    columns file and label (.csv, .tsv, .jsonl, .parquet) with paths relative to it. Images of all
    formats of Pillow, 8 or 16 bits, rotated by their EXIF orientation. Handwritten digits if not
    given."""

    val_share: FractionWithin = 0.0833
    """Fraction of the training images used for validation if `val` is not given, at random."""

    size: Annotated[int, Range(1, 4_096)] | None = None
    """Height and width to which images are resized; if not given, all must have the same size."""

    file_column: Count | str | None = None
    """Column of the image file in a table: number from 1 or name. Default: file, else the first."""

    color: Literal["auto", "gray", "rgb"] = "auto"
    """Color mode: one channel (gray) or three (rgb). auto: that of the first image."""

    names: tuple[str, ...] = ()
    """Names of the classes 0, 1, 2 ... of IDX files, for predictions; else their numbers."""


@settings
class VectorsConfig(Tables):
    """Data sets of vectors of numbers, all of one size, for training, validation and test.

    Each of `train`, `val`, `test` is FILE.npy with numbers (rows, size), FILE.npz with such an
    array `y`, or rows of numbers: FILE.csv (with a header), .tsv or .txt, also with .gz.
    """

    name: ClassVar[str] = "vectors"
    input: ClassVar[str] = "vector"

    train: str | None = None
    """Training vectors: FILE.npy, FILE.npz (array `y`), or rows of numbers (.csv, .tsv, .txt).
    Points on a curve of the plane if not given."""

    curve: Literal["ellipse", "spiral"] = "ellipse"
    """Synthetic points if `train` is not given, with z from 0 to 2 pi. ellipse: (2 cos z, 1.5 sin
    z); spiral: z / pi (cos z, sin z)."""

    samples: Annotated[int, Range(10, 10_000_000)] = 1000
    """Number of synthetic training points."""

    deviation: Annotated[float, Range(0, 100)] = 0.05
    """Standard deviation of the noise on synthetic points."""


@settings
class ScenesConfig(ImagesConfig):
    """Data sets of images with captions: scenes composed of images with classes, or the user's own
    images and texts.

    Each of `train`, `val`, `test` is as in ImagesConfig, and its images are composed into scenes;
    or a table of the columns image and text, the name of an image file relative to the table, and a
    text.
    """

    train: str | None = None
    """Training data: a folder of images per class, an IDX file, or a table of image files and
    texts. Handwritten digits if not given."""

    rows: Annotated[int, Range(1, 64)] = 1
    """Number of rows of the grid of items on a canvas."""

    columns: Annotated[int, Range(1, 64)] = 2
    """Number of columns of the grid of items on a canvas."""

    max_items: Annotated[int, Range(1, 1_000)] = 2
    """Maximum number of items on a canvas."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 20000
    """Number of scenes in an epoch; generated on the fly, new ones in every epoch."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of test scenes; validation uses half as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_items > self.rows * self.columns:
            raise UserError(
                "`max_items` must be at most the number of cells of a canvas "
                f"({self.rows * self.columns}), got {self.max_items}."
            )


@settings
class TextConfig:
    """Plain text of a language model for training, validation and test: UTF-8, also with .gz."""

    train: str | None = None
    """Training text: a file in UTF-8, also with .gz. Dates in many languages if not given."""

    val: str | None = None
    """Validation text. The last part of the training text if not given."""

    test: str | None = None
    """Test text."""

    val_share: FractionWithin = 0.1
    """Fraction at the end of the training text used for validation if `val` is not given."""

    line_ends: Literal["keep", "eos"] = "keep"
    """Tokenization of line ends. keep: as a character; eos: as the word <eos> (for word models)."""


@settings
class TracksConfig:
    """Trajectories of pedestrians for training, validation and test: text files, a position (frame,
    id, x, y) per line.

    White space or commas separate the columns. A header selects these columns among others; lines
    that begin with # are comments.
    """

    train: tuple[str, ...] = ()
    """Training recordings: text files of lines frame, id, x, y. Synthetic crowds if not given."""

    val: tuple[str, ...] = ()
    """Validation recordings. The last part of each training recording if not given."""

    test: tuple[str, ...] = ()
    """Test recordings."""

    val_share: FractionWithin = 0.1
    """Fraction at the end of each training recording for validation, at least one window."""

    observed: Annotated[int, Range(2, 1_000)] = 8
    """Number of observed positions of each agent."""

    predicted: Annotated[int, Range(1, 1_000)] = 12
    """Number of predicted positions of each agent."""

    neighbors: Annotated[int, Range(0, 1_000)] = 16
    """Maximum number of neighbors that are input for each agent, the nearest ones; 0: none."""

    min_agents: Annotated[int, Range(1, 1_000)] = 2
    """Minimum number of agents in a window."""

    on_bad: OnBad = "error"
    """Handling of lines without a position: error stops; skip leaves them out and counts them."""

    def __post_init__(self) -> None:
        _check_train(self.train, self.val)


@settings
class TokenizerConfig:
    """Settings of a tokenizer."""

    kind: Literal["bpe", "word", "char"] = "bpe"
    """Kind of tokens. bpe: learned subwords; word: split at white space; char: characters."""

    vocab_size: Annotated[int, Range(5, 1_000_000)] = 8000
    """Maximum size of a vocabulary, including the 4 special tokens."""

    joint: bool = True
    """Learn one vocabulary for both sides (required for shared embeddings) instead of two."""

    lowercase: bool = False
    """Lowercase all texts."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization of all texts; nfkc also folds characters such as full-width letters."""

    min_count: Count = 1
    """Minimum count in training of a word (word) or character (char, bpe); others become <unk>."""


@settings
class ImageFiles(Tables):
    """Tables that name images, and the folders of the images."""

    images: str | None = None
    """Folder or tar of the images of all splits."""

    train_images: str | None = None
    """Folder or tar of the training images. The folder of `train` if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images. The folder of `val` if not given."""

    test_images: str | None = None
    """Folder or tar of the test images. The folder of `test` if not given."""


@settings
class BoxesConfig(ImageFiles):
    """Data sets of images with boxes for training, validation and test.

    Each of `train`, `val`, `test` is one of

        instances.json     COCO: images, annotations with bbox = [x, y, width, height] in pixels,
                           categories; annotations with iscrowd = 1 are left out and counted
        boxes.csv          a header, then one box per line: file,x,y,width,height,label; file alone:
                           no boxes; boxes.tsv: the same, separated by tabs
        boxes.jsonl        one image per line: {"file": "1.png", "boxes": [{"x":, "y":, "width":,
                           "height":, "label":}]}

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Training boxes: FILE.json (COCO), .csv, .tsv or .jsonl. Synthetic shapes if not given."""

    width: Annotated[int, Range(1, 4_096)] = 320
    """Input width in pixels; images are scaled to fit, and padded with gray right or below."""

    height: Annotated[int, Range(1, 4_096)] = 240
    """Input height in pixels."""


@settings
class CaptionsConfig(ImageFiles):
    """Data sets of images with captions for training, validation and test.

    Each of `train`, `val`, `test` is one of

        captions.csv       columns image and caption; several rows with the same image are several
                           captions of it; also captions.tsv, captions.jsonl
        captions.json      COCO: images, annotations with image_id and caption

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Training captions: FILE.tsv, FILE.csv, FILE.jsonl (also .gz) or FILE.json (COCO). Drawn
    scenes of shapes, with sentences, if not given."""

    width: Annotated[int, Range(1, 4_096)] = 224
    """Input width in pixels; images are scaled to fit, and padded with gray right or below."""

    height: Annotated[int, Range(1, 4_096)] = 224
    """Input height in pixels."""

    max_length: Length = 64
    """Maximum length of a caption, in tokens; a longer one is a bad row."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of drawn scenes in an epoch; new ones in every epoch."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of drawn test scenes; validation uses half as many."""

    def __post_init__(self) -> None:
        if self.train is None and min(self.width, self.height) < 24:  # smaller shapes look alike
            raise UserError(
                f"`width` and `height` must be at least 24 for drawn scenes, got {self.width}, "
                f"{self.height}."
            )


@settings
class EventsConfig(Tables):
    """Data sets of sounds with events for training, validation and test.

    Each of `train`, `val`, `test` is one of

        events.csv         a header, then one event per line: file,onset,duration,label, of sound
                           files (WAV, FLAC, Ogg, MP3 and others) beside it; offset in place of
                           duration; only file: a file without events
        events.tsv         the same, separated by tabs
        events.jsonl       the same as objects: {"file": "a.wav", "onset": 0.5, "duration": 1,
                           "label": "bell"}
        recordings.npz     single recordings (samples, offsets, label, index, sample_rate), which
                           are mixed into scenes
    """

    train: str | None = None
    """Training events: a table of sound files and their events (.csv, .tsv, .jsonl), or an npz of
    recordings. Synthetic tones and noises if not given."""

    val: str | None = None
    """Validation events; for scenes of recordings the same file if not given, else a fraction of
    the training files."""

    test: str | None = None
    """Test events; for scenes of recordings the same file if not given."""

    val_share: FractionWithin = 0.1
    """Fraction of the training segments that is used for validation if a table is given without
    `val`: a random sample of the sound files; the last part, if there is one file."""

    seconds: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 4.0
    """Input length in seconds; longer files are split into segments, shorter ones padded."""

    sample_rate: Annotated[int, Range(1, 768_000)] = 8000
    """Sample rate in Hz; files of another rate are resampled."""

    bands: Annotated[int, Range(1, 1_024)] = 40
    """Number of mel bands of the spectrogram."""

    hop: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 0.01
    """Hop length of the spectrogram in seconds; shorter ones resolve onsets better, at a cost."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of synthetic training scenes in an epoch."""

    val_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of synthetic validation scenes."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of synthetic test scenes."""

    unit: Literal["seconds", "samples"] = "seconds"
    """Unit of onset and duration in tables."""

    def __post_init__(self) -> None:
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError(
                f"`hop` must be at least two samples and at most a quarter of `seconds`, got "
                f"{self.hop}."
            )


@settings
class PointsConfig(Tables):
    """Data sets of point clouds with boxes in three dimensions for training, validation and test.

    Each of `train`, `val`, `test` is a table of boxes with a header, parallel to the axes, in
    meters:

        boxes.csv          file,x,y,z,dx,dy,dz,label: the file of a cloud, center and sizes of a
                           box; z points upward; a row with only a file: a cloud without boxes
        boxes.tsv          the same, separated by tabs
        boxes.jsonl        the same as objects: {"file": "a.ply", "x": 1, ..., "dz": 0.7, "label":
                           "table"}

    The clouds are beside it, as .npz, .csv, .ply or .pcd (the last two need the extra `points`).
    """

    train: str | None = None
    """Training boxes: FILE.csv, FILE.tsv or FILE.jsonl. Synthetic rooms if not given."""

    features: tuple[str, ...] = ()
    """Numbers of each point besides x, y, z: names of columns, properties, fields or arrays."""

    points: Annotated[int, Range(16, 100_000)] = 2048
    """Maximum number of points of a cloud; in larger ones, the points in each cell of a grid are
    replaced by their mean."""

    def __post_init__(self) -> None:
        if len({"x", "y", "z", *self.features}) < 3 + len(self.features):
            raise UserError("`features` must be different names other than x, y and z.")
        if self.train is None and self.features:
            raise UserError("`features` must be empty for synthetic rooms.")


@settings
class TaggedConfig(Tables):
    """Files of sentences with a tag for each token, for training, validation and test.

    Each of `train`, `val`, `test` is one of

        FILE             a token and its tag per line, in the first and the last of its columns
                         (tabs or white space between), a blank line between sentences
        FILE.csv         columns token, tag, and sentence, which changes with each sentence
        FILE.jsonl       objects with the lists `tokens` and `tags`; also FILE.parquet
    """

    train: str | None = None
    """Training sentences: columns of token and tag, FILE.csv or FILE.jsonl; also with .gz.
    Synthetic sentences if not given."""

    format: Literal["auto", "columns", "csv", "jsonl", "parquet"] = "auto"
    """File format. auto: by the suffix (.csv, .jsonl, .parquet), else columns."""

    token_column: Count | str | None = None
    """Column of the tokens: number (from 1) or name. Default: token in CSV, tokens in JSONL, the
    second in CoNLL-U, else the first."""

    tag_column: Count | str | None = None
    """Column of the tags, as `token_column`. Default: tag in CSV, tags in JSONL, the fourth in
    CoNLL-U, else the last."""

    max_length: Length = 256
    """Maximum length of a sentence, in subwords; a longer one is a bad sentence."""

    def __post_init__(self) -> None:
        _check_train(self.train, self.val)


def _check_train(train: str | tuple[str, ...] | None, val: str | tuple[str, ...] | None) -> None:
    if val and not train:
        raise UserError("`train` must be given together with `val`.")
