"""Settings of data sets and tokenizers. Importing them needs no torch."""

from typing import Annotated, ClassVar, Literal

from regard.errors import UserError
from regard.settings.declare import settings
from regard.settings.ranges import Count, FractionWithin, Length, Range

TableFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet"]
TextsFormat = TableFormat
PairFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "text", "huggingface"]
OnBad = Literal["error", "skip"]
FeatureKinds = Literal["words", "bigrams", "prefixes"]
TargetKind = Literal["class", "labels", "number"]
Header = Literal["auto", "yes", "no"]


@settings
class PairsConfig:
    """Data sets of pairs (source text, target text) for training, validation and test.

    Each of `train`, `val`, `test` is one of

        pairs.tsv, pairs.tsv.gz      one pair per line, columns separated by a tab, no quoting; also
        .txt, .bz2, .xz
        pairs.csv                    one pair per row, cells with commas or line ends in quotes;
        also with semicolons
        pairs.jsonl, pairs.jsonl.gz  one JSON object per line; pairs.json: also an array of objects
        train.en, train.en.gz        one text per line; the other side of each is in `train_target`
        hf:NAME[:CONFIG][#SPLIT]     a Hugging Face data set: hf:bentrevett/multi30k (needs
        regard[data]) hf:KIND:FILE                 a file that `datasets` reads; KIND is csv, json,
        parquet, text or arrow FOLDER                       a folder that `datasets` wrote with
        save_to_disk
    """

    train: str | None = None
    """Training pairs: FILE.tsv, FILE.csv, FILE.jsonl (also .gz), one side of two text files,
    hf:NAME, or a folder."""

    train_target: str | None = None
    """Target side of the training pairs, line-aligned with `train`; only for two parallel text
    files."""

    val: str | None = None
    """Validation pairs, in any format that `train` takes. A fraction of the training pairs if not
    given."""

    val_target: str | None = None
    """Target side of the validation pairs; only for two parallel text files."""

    test: str | None = None
    """Test pairs, in any format that `train` takes."""

    test_target: str | None = None
    """Target side of the test pairs; only for two parallel text files."""

    references: tuple[str, ...] = ()
    """More reference translations of the test pairs: text files with one line per pair, besides
    the target side."""

    val_share: FractionWithin = 0.1
    """Fraction of the training pairs that is used for validation if `val` is not given: a random
    sample; pairs of equal source texts are on one side."""

    format: PairFormat = "auto"
    """File format. auto: text if a target file is given, else by name (.tsv, .csv, .jsonl, hf:,
    folder)."""

    source_column: Count | str | None = None
    """Column of the source text: column number (from 1) or header name in TSV and CSV, field name
    in JSONL and data sets, with a dot for a nested field: translation.en. Default: source; 1, of
    two columns without header."""

    target_column: Count | str | None = None
    """Column of the target text, as `source_column`. Default: target; 2, of two columns without
    header."""

    header: Header = "auto"
    """Header row of TSV and CSV. auto: the first row, if it has the expected names or those of
    chosen columns; a row that merely looks like a header is refused."""

    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty side, not UTF-8, too long): error stops; skip
    leaves them out and counts them."""

    max_length: Length = 512
    """Maximum length of either side of a pair, in tokens; a longer pair is a bad line."""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            source, target = getattr(self, split), getattr(self, f"{split}_target")
            if "" in (source, target):
                raise UserError(
                    f"`{split}` must be a file, a folder or a data set (hf:NAME), got an empty "
                    f"text."
                )
            if target is not None and source is None:
                raise UserError(
                    f"`{split}_target` needs `{split}`, the source side, got only {target!r}."
                )
            if target is not None and self.format not in ("auto", "text"):
                raise UserError(
                    f"`{split}_target` needs `format` to be 'text' (parallel files), got "
                    f"{self.format!r}."
                )


@settings
class LabeledConfig:
    """Data sets of texts with labels for training, validation and test.

    Each of `train`, `val`, `test` is a file or data set in a format of PairsConfig, with the label
    in place of the target: FILE.tsv, FILE.csv, FILE.jsonl, also with .gz, hf:NAME, a folder.
    """

    train: str | None = None
    """Training texts: FILE.tsv, .csv or .jsonl (also .gz), hf:NAME, or a folder. Synthetic reviews
    if not given."""

    val: str | None = None
    """Validation texts, in any format that `train` takes. A fraction of the training texts if not
    given."""

    test: str | None = None
    """Test texts, in any format that `train` takes."""

    val_share: FractionWithin = 0.1
    """Fraction of the training texts that is used for validation if `val` is not given: a random
    sample; equal texts are on one side."""

    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "huggingface"] = "auto"
    """File format. auto: by name (.tsv, .csv, .jsonl, hf:, folder)."""

    text_column: Count | str | None = None
    """Column of the text: column number (from 1) or header name in TSV and CSV, field name in JSONL
    and data sets. Default: text; 1, in a TSV or CSV of two columns without that header."""

    label_column: tuple[Count | str, ...] = ()
    """Column of the label, a text or an integer; or of the labels. Several columns are labels that
    hold where the cell is 1 or true (target labels), or numbers (target number), with the names of
    the columns. Default: label; 2, in a TSV or CSV of two columns without that header."""

    header: Header = "auto"
    """Header row of TSV and CSV. auto: the first row, if it has the expected names or those of
    chosen columns; a row that merely looks like a header is refused."""

    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty text, not UTF-8, unknown label): error stops;
    skip leaves them out and counts them."""

    max_length: Length = 512
    """Maximum length of a text, in tokens. Longer texts are cut and counted in training and
    evaluation; for `predict` and `look`, they are inputs that cannot be used (predict --on-bad)."""

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
        _check_separator(self.separator)
        _check_label_columns(self.label_column, self.target)
        _check_class_weights(self.class_weights, self.target)
        _check_different(
            ("text_column", self.text_column or "text"), self.label_column or ("label",)
        )
        _check_train(self.train, self.val)


@settings
class ImagesConfig:
    """Data sets of images with classes for training, validation and test.

    Each of `train`, `val`, `test` is a folder with one subfolder of images per class, an IDX file
    of images (train-images-idx3-ubyte.gz) with its labels beside it, or a list of files and labels
    (FILE.tsv, .csv, .jsonl).
    """

    name: ClassVar[str] = "images"

    train: str | None = None
    """Training images: a folder with one subfolder per class, an IDX file, or a list of files and
    labels (.tsv, .csv: two columns, or a header with file and label; .jsonl: file, label) with
    paths relative to the list. PNG, JPEG, BMP, GIF (first frame), WEBP, TIFF, PPM and PGM, 8 or 16
    bits, rotated by their EXIF orientation. Handwritten digits if not given."""

    val: str | None = None
    """Validation images. A fraction of the training images if not given."""

    test: str | None = None
    """Test images."""

    val_share: FractionWithin = 0.0833
    """Fraction of the training images that is used for validation if `val` is not given: a random
    sample."""

    size: Annotated[int, Range(1, 4_096)] | None = None
    """Height and width to which all images are resized. If not given, all images must have the same
    size."""

    file_column: Count | str | None = None
    """Column of the image file in a list: column number (from 1) or header name, field name in
    JSONL. Default: file; 1, in a TSV or CSV of two columns without that header."""

    label_column: tuple[Count | str, ...] = ()
    """Column of the label in a list, or of the labels. Several columns are labels that hold where
    the cell is 1 or true (target labels), or numbers (target number), with the names of the
    columns. Default: label; 2, in a TSV or CSV of two columns without that header."""

    header: Header = "auto"
    """Header row of TSV and CSV. auto: the first row, if it has the expected names or those of
    chosen columns; a row that merely looks like a header is refused."""

    color: Literal["auto", "gray", "rgb"] = "auto"
    """Color mode: one channel (gray) or three (rgb). auto: that of the first image."""

    names: tuple[str, ...] = ()
    """Names of the classes 0, 1, 2 ... of IDX files, for predictions; their numbers if not
    given."""

    on_bad: OnBad = "error"
    """Handling of files that are not images: error stops; skip leaves them out and counts them."""

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
        _check_separator(self.separator)
        _check_label_columns(self.label_column, self.target)
        _check_class_weights(self.class_weights, self.target)
        _check_different(
            ("file_column", self.file_column or "file"), self.label_column or ("label",)
        )


@settings
class VectorsConfig:
    """Data sets of vectors of numbers, all of one size, for training, validation and test.

    Each of `train`, `val`, `test` is FILE.npy with numbers (rows, size), FILE.npz with such an
    array `y`, or columns of numbers: FILE.csv, .tsv or .txt, also with .gz.
    """

    name: ClassVar[str] = "vectors"
    input: ClassVar[str] = "vector"

    train: str | None = None
    """Training vectors: FILE.npy, FILE.npz (array `y`), or columns of numbers (.csv, .tsv, .txt).
    Points on a curve of the plane if not given."""

    val: str | None = None
    """Validation vectors. A fraction of the training vectors if not given."""

    test: str | None = None
    """Test vectors."""

    val_share: FractionWithin = 0.1
    """Fraction of the training vectors that is used for validation if `val` is not given: a random
    sample."""

    curve: Literal["ellipse", "spiral"] = "ellipse"
    """Synthetic points if `train` is not given, with z from 0 to 2 pi. ellipse: (2 cos z, 1.5 sin
    z); spiral: z / pi (cos z, sin z)."""

    samples: Annotated[int, Range(10, 10_000_000)] = 1000
    """Number of synthetic training points."""

    deviation: Annotated[float, Range(0, 100)] = 0.05
    """Standard deviation of the noise on synthetic points."""

    header: Header = "auto"
    """Header row of columns of numbers. auto: the first row, if it has no number."""

    on_bad: OnBad = "error"
    """Handling of rows that are not vectors (not a number, too few columns): error stops; skip
    leaves them out and counts them."""


@settings
class ScenesConfig(ImagesConfig):
    """Data sets of images with captions: scenes composed of images with classes, or the user's own
    images and texts.

    Each of `train`, `val`, `test` is as in ImagesConfig, and its images are composed into scenes;
    or a file (FILE.tsv, FILE.csv, FILE.jsonl, also .gz) with the name of an image file and a text
    per line, in JSONL as `image` and `text`. Names of image files are relative to the folder of the
    file.
    """

    train: str | None = None
    """Training data: a folder of images per class, an IDX file, or FILE.tsv, FILE.csv or FILE.jsonl
    of image files and texts. Handwritten digits if not given."""

    val: str | None = None
    """Validation data. A fraction of the training images if not given."""

    test: str | None = None
    """Test data."""

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
            cells = self.rows * self.columns
            raise UserError(
                f"`max_items` must be at most the number of cells of a canvas ({cells}), got "
                f"{self.max_items}."
            )


@settings
class TextConfig:
    """Text of a language model for training, validation and test: plain text files in UTF-8, also
    with .gz."""

    train: str | None = None
    """Training text: a file in UTF-8, also with .gz. Dates in many languages with their ISO form if
    not given."""

    val: str | None = None
    """Validation text. The last part of the training text if not given."""

    test: str | None = None
    """Test text."""

    val_share: FractionWithin = 0.1
    """Fraction at the end of the training text that is used for validation if `val` is not
    given."""

    line_ends: Literal["keep", "eos"] = "keep"
    """Tokenization of line ends. keep: as a character; eos: as the word <eos>, usual for word-level
    models."""


@settings
class TracksConfig:
    """Trajectories of pedestrians for training, validation and test: text files, a position (frame,
    id, x, y) per line.

    White space, commas or semicolons separate the columns. A header selects these columns among
    others; lines that begin with # are comments.
    """

    train: tuple[str, ...] = ()
    """Training recordings: text files with a position (frame, id, x, y) per line. Synthetic crowds
    if not given."""

    val: tuple[str, ...] = ()
    """Validation recordings. The last part of each training recording if not given."""

    test: tuple[str, ...] = ()
    """Test recordings."""

    val_share: FractionWithin = 0.1
    """Fraction at the end of each training recording that is used for validation if `val` is not
    given, at least one window."""

    observed: Annotated[int, Range(2, 1_000)] = 8
    """Number of observed positions of each agent."""

    predicted: Annotated[int, Range(1, 1_000)] = 12
    """Number of predicted positions of each agent."""

    neighbors: Annotated[int, Range(0, 1_000)] = 16
    """Maximum number of neighbors that are input for each agent, the nearest ones; 0: none."""

    min_agents: Annotated[int, Range(1, 1_000)] = 2
    """Minimum number of agents in a window."""

    on_bad: OnBad = "error"
    """Handling of lines that are not a position (not a number, too few columns): error stops; skip
    leaves them out and counts them."""

    def __post_init__(self) -> None:
        _check_train(self.train, self.val)


@settings
class TokenizerConfig:
    """Settings of a tokenizer."""

    kind: Literal["bpe", "word", "char"] = "bpe"
    """Kind of tokens. bpe: subwords, learned from the training texts; word: split at white space;
    char: characters."""

    vocab_size: Annotated[int, Range(5, 1_000_000)] = 8000
    """Maximum size of a vocabulary, including the 4 special tokens; smaller if the texts have fewer
    tokens."""

    joint: bool = True
    """Learn one vocabulary from both sides (required for shared embeddings) instead of one for each
    side."""

    lowercase: bool = False
    """Lowercase all texts."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization of all texts; nfkc also folds compatibility characters such as
    full-width letters."""

    min_count: Count = 1
    """Minimum count in the training texts of a word (kind word) or character (char, bpe); rarer
    ones become <unk>."""


@settings
class BoxesConfig:
    """Data sets of images with boxes for training, validation and test.

    Each of `train`, `val`, `test` is one of

        instances.json     COCO: images, annotations with bbox = [x, y, width, height] in pixels,
                                 categories;
                           annotations with iscrowd = 1 are left out and counted
        boxes.csv          a header, then one box per line: file,x,y,width,height,label; file alone:
                           no boxes; boxes.tsv: the same, separated by tabs
        boxes.jsonl        one image per line: {"file": "1.png", "boxes": [{"x":, "y":, "width":,
                           "height":, "label":}]}

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Training boxes: FILE.json (COCO), FILE.csv, FILE.tsv or FILE.jsonl. Synthetic images of
    shapes if not given."""

    images: str | None = None
    """Folder or tar of the images of all splits."""

    train_images: str | None = None
    """Folder or tar of the training images. The folder of `train` if not given."""

    val: str | None = None
    """Validation boxes. A fraction of the training images if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images. The folder of `val` if not given."""

    test: str | None = None
    """Test boxes."""

    test_images: str | None = None
    """Folder or tar of the test images. The folder of `test` if not given."""

    val_share: FractionWithin = 0.1
    """Fraction of the training images that is used for validation if `val` is not given: a random
    sample."""

    header: Header = "auto"
    """Header row of CSV and TSV. auto and yes: required; no: the columns are, in this order,
    file, x, y, width, height, label."""

    width: Annotated[int, Range(1, 4_096)] = 320
    """Input width in pixels; images are scaled to fit, and padded with gray on the right or at the
    bottom."""

    height: Annotated[int, Range(1, 4_096)] = 240
    """Input height in pixels."""

    on_bad: OnBad = "error"
    """Handling of missing or damaged images, and of boxes without an area inside their image: error
    stops; skip leaves them out and counts them."""


@settings
class CaptionsConfig:
    """Data sets of images with captions for training, validation and test.

    Each of `train`, `val`, `test` is one of

        captions.tsv       an image file and a caption per line, separated by a tab; several lines
                           with the same file are several captions of one image; captions.csv,
                           captions.jsonl: `image` and `caption`
        captions.json      COCO: images, annotations with image_id and caption

    with the images in a folder or a tar.
    """

    train: str | None = None
    """Training captions: FILE.tsv, FILE.csv, FILE.jsonl (also .gz) or FILE.json (COCO). Drawn
    scenes of shapes, with sentences, if not given."""

    images: str | None = None
    """Folder or tar of the images of all splits."""

    train_images: str | None = None
    """Folder or tar of the training images. The folder of `train` if not given."""

    val: str | None = None
    """Validation captions. A fraction of the training images if not given."""

    val_images: str | None = None
    """Folder or tar of the validation images. The folder of `val` if not given."""

    test: str | None = None
    """Test captions."""

    test_images: str | None = None
    """Folder or tar of the test images. The folder of `test` if not given."""

    val_share: FractionWithin = 0.1
    """Fraction of the training images that is used for validation if `val` is not given: a random
    sample."""

    width: Annotated[int, Range(1, 4_096)] = 224
    """Input width in pixels; images are scaled to fit, and padded with gray on the right or at the
    bottom."""

    height: Annotated[int, Range(1, 4_096)] = 224
    """Input height in pixels."""

    header: Header = "auto"
    """Header row of TSV and CSV. auto: the first row, if it has the expected names or those of
    chosen columns; a row that merely looks like a header is refused."""

    max_length: Length = 64
    """Maximum length of a caption, in tokens; a longer one is a bad line."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of drawn scenes in an epoch; new ones in every epoch."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of drawn test scenes; validation uses half as many."""

    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, no caption, too long), of images that are missing or
    damaged, and of images without a caption (COCO): error stops; skip leaves them out and counts
    them."""

    def __post_init__(self) -> None:
        if self.train is None and min(self.width, self.height) < 24:  # smaller shapes look alike
            raise UserError(
                f"`width` and `height` must be at least 24 for drawn scenes, got {self.width}, "
                f"{self.height}."
            )


@settings
class EventsConfig:
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

    header: Header = "auto"
    """Header row of CSV and TSV. auto and yes: required; no: the columns are, in this order,
    file, onset, duration, label."""

    seconds: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 4.0
    """Input length in seconds; longer files are split into segments, shorter ones padded with
    silence."""

    sample_rate: Annotated[int, Range(1, 768_000)] = 8000
    """Sample rate in Hz; files of another rate are resampled."""

    bands: Annotated[int, Range(1, 1_024)] = 40
    """Number of mel bands of the spectrogram."""

    hop: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 0.01
    """Hop length of the spectrogram in seconds; a shorter one resolves onsets more precisely, at a
    higher cost."""

    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of synthetic training scenes in an epoch."""

    val_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of synthetic validation scenes."""

    test_size: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of synthetic test scenes."""

    unit: Literal["seconds", "samples"] = "seconds"
    """Unit of onset and duration in CSV files."""

    on_bad: OnBad = "error"
    """Handling of events without duration or outside their file, and of missing or damaged sound
    files: error stops; skip leaves them out and counts them."""

    def __post_init__(self) -> None:
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError(
                f"`hop` must be at least two samples and at most a quarter of `seconds`, got "
                f"{self.hop}."
            )


@settings
class PointsConfig:
    """Data sets of point clouds with boxes in three dimensions for training, validation and test.

    Each of `train`, `val`, `test` is a table of boxes with a header, parallel to the axes, in
    meters:

        boxes.csv          file,x,y,z,dx,dy,dz,label: the file of a cloud, center and sizes of a
                           box; z points upward; a line with only a file: a cloud without boxes
        boxes.tsv          the same, separated by tabs
        boxes.jsonl        the same as objects: {"file": "a.ply", "x": 1, ..., "dz": 0.7, "label":
                           "table"}

    The clouds are beside it, as .npz, .csv, .ply or .pcd (the last two need the extra `points`).
    """

    train: str | None = None
    """Training boxes: FILE.csv, FILE.tsv or FILE.jsonl. Synthetic rooms if not given."""

    val: str | None = None
    """Validation boxes. A fraction of the training clouds if not given."""

    test: str | None = None
    """Test boxes."""

    val_share: FractionWithin = 0.1
    """Fraction of the training clouds that is used for validation if `val` is not given: a random
    sample."""

    header: Header = "auto"
    """Header row of CSV and TSV. auto and yes: required; no: the columns are, in this order,
    file, x, y, z, dx, dy, dz, label."""

    features: tuple[str, ...] = ()
    """Numbers of each point besides x, y and z, such as intensity: names of columns, properties,
    fields or arrays."""

    points: Annotated[int, Range(16, 100_000)] = 2048
    """Maximum number of points of a cloud; in larger ones, the points in each cell of a grid are
    replaced by their mean."""

    on_bad: OnBad = "error"
    """Handling of missing or damaged clouds, and of boxes without size or away from their cloud:
    error stops; skip leaves them out and counts them."""

    def __post_init__(self) -> None:
        names = [name.lower() for name in (*"xyz", *self.features)]
        double = next((name for name in names if not name or names.count(name) > 1), None)
        if double is not None:
            raise UserError(
                f"`features` must be different names other than x, y and z, got {double!r}."
            )
        if self.train is None and self.features:
            raise UserError(
                f"`features` must be empty for synthetic rooms, got {', '.join(self.features)}."
            )


@settings
class TaggedConfig:
    """Files of sentences with a tag for each token, for training, validation and test.

    Each of `train`, `val`, `test` is one of

        FILE             a token and its tag per line, in the first and the last of its columns
                         (tabs or white space between), a blank line between sentences
        FILE.csv         the same as CSV; with a header such as sentence,token,tag; or a sentence
        and its tags per row
        FILE.jsonl       objects with the lists `tokens` and `tags`
    """

    train: str | None = None
    """Training sentences: columns of token and tag, FILE.csv or FILE.jsonl; also with .gz.
    Synthetic sentences if not given."""

    val: str | None = None
    """Validation sentences. A fraction of the training sentences if not given."""

    test: str | None = None
    """Test sentences."""

    val_share: FractionWithin = 0.1
    """Fraction of the training sentences that is used for validation if `val` is not given: a
    random sample; equal sentences are on one side."""

    format: Literal["auto", "columns", "csv", "jsonl", "parquet"] = "auto"
    """File format. auto: by the suffix (.csv, .jsonl, .parquet), else columns."""

    token_column: Count | str | None = None
    """Column of the tokens: column number (from 1) or header name, field name in JSONL. Default:
    token or word, if there is a header, tokens in JSONL, else the first."""

    tag_column: Count | str | None = None
    """Column of the tags, as `token_column`. Default: tag or label, if there is a header, tags in
    JSONL, else the last."""

    header: Header = "auto"
    """Header row. auto: the first row, if it has the expected names or those of chosen columns."""

    on_bad: OnBad = "error"
    """Handling of bad sentences (a token without a tag, not UTF-8, unknown tag, too long): error
    stops; skip leaves them out and counts them."""

    max_length: Length = 256
    """Maximum length of a sentence, in subwords; a longer one is a bad sentence."""

    def __post_init__(self) -> None:
        _check_train(self.train, self.val)


def _check_train(train: str | tuple[str, ...] | None, val: str | tuple[str, ...] | None) -> None:
    if val and not train:
        raise UserError("`train` must be given together with `val`.")


def _check_label_columns(columns: tuple[int | str, ...], target: TargetKind) -> None:
    if len(columns) > 1 and target == "class":
        raise UserError(
            f"`label_column` must be one column for `target` class, got {len(columns)} columns; "
            f"several are labels of "
            "0 and 1 with `target` labels, and numbers with `target` number."
        )
    if len(set(map(str, columns))) < len(columns):
        raise UserError(
            f"`label_column` must name different columns, got {', '.join(map(str, columns))}."
        )


def _check_class_weights(weights: str, target: TargetKind) -> None:
    if weights != "none" and target != "class":
        raise UserError(f"`class_weights` must be none for `target` {target}, got {weights!r}.")


def _check_different(column: tuple[str, int | str], labels: tuple[int | str, ...]) -> None:
    name, value = column
    if str(value) in map(str, labels):
        raise UserError(
            f"`{name}` and `label_column` must be different columns, got {value!r} for both."
        )


def _check_separator(separator: str) -> None:
    if len(separator) != 1 or separator in "[]":
        raise UserError(
            f"`separator` must be one character other than a bracket, got {separator!r}."
        )
