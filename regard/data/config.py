"""Settings of data sets and tokenizers. Importing them needs no torch."""

from typing import Annotated, ClassVar, Literal

from regard.errors import UserError
from regard.settings.declare import settings
from regard.settings.ranges import Count, FractionWithin, Length, Range

TableFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet"]
PairFormat = Literal[TableFormat, "text", "huggingface"]
SpanFormat = Literal["prodigy", "doccano", "label-studio", "spacy"]
OnBad = Literal["error", "skip"]
FeatureKinds = Literal["words", "bigrams", "prefixes"]
TargetKind = Literal["class", "labels", "number"]
Header = Literal["auto", "yes", "no"]
ImageAugmentation = Literal[
    "auto", "none", "shift", "zoom", "crop", "flip", "flip-vertical", "color", "randaugment"
]
SoundAugmentation = Literal["auto", "none", "speed", "shift", "frequency-mask", "time-mask"]

Files = tuple[str, ...] | None


def used_augmentation(names: tuple[str, ...], auto: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of augmentations, those of `auto` for auto, and nothing for none. Raises
    UserError if auto or none is not alone."""
    for alone, used in (("none", ()), ("auto", auto)):
        if alone in names:
            if len(names) > 1:
                raise UserError(f"augment must be {alone} or other names, got {' '.join(names)}")
            return used
    return names


@settings
class Splits:
    """Files for training, validation and test."""

    train: Files = None
    """Training data. Synthetic data if not given."""
    val: Files = None
    """Validation data, as `train`. A fraction of the training data if not given."""
    test: Files = None
    """Test data, as `train`."""
    val_share: FractionWithin = 0.1
    """Fraction of the training data for validation, a random sample, if `val` is not given."""
    encoding: str = "utf-8"
    """Encoding of text files, such as cp1252."""

    def __post_init__(self) -> None:
        if self.val and not self.train:
            raise UserError("`train` must be given together with `val`.")
        try:
            "x".encode(self.encoding)
        except LookupError as error:
            raise UserError(f"`encoding` must be one of Python, such as cp1252: {error}.") from None


@settings
class Tables(Splits):
    """Tables for training, validation and test."""

    on_bad: OnBad = "error"
    """Handling of data that cannot be used: error stops at the first; skip leaves it out and counts
    it."""
    header: Header = "auto"
    """Header row of CSV and TSV. auto: CSV has one, and TSV if columns are chosen by name."""


@settings
class Targets(Tables):
    """Kind of targets: of texts or images."""

    label_column: tuple[Count | str, ...] = ()
    """Column of the label, or of the labels: several columns are labels that hold where the cell is
    1 or true (target labels), or numbers (target number). Default: label, else the second."""
    target: TargetKind = "class"
    """Kind of target: class (one per input), labels (any number) or number (one or several)."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the classes in the loss, for target class. balanced: n / (k n_c), for n_c of n
    inputs in one of k classes; macro F1 then selects the weights of the model."""
    separator: str = ","
    """Separator of several labels or numbers in one cell; JSON lists need none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.separator) != 1 or self.separator in "[]":
            raise UserError(
                f"`separator` must be one character, no bracket, got {self.separator!r}."
            )
        if len(self.label_column) > 1 and self.target == "class":
            count = len(self.label_column)
            raise UserError(f"`label_column` must be one column for `target` class, got {count}.")
        if self.class_weights != "none" and self.target != "class":
            raise UserError(f"`class_weights` must be none for `target` {self.target}.")


@settings
class PairsConfig(Tables):
    """Data sets of pairs (source text, target text) for training, validation and test."""

    train: Files = None
    """Training pairs: FILE.tsv, .csv, .jsonl (also .gz) or .parquet, one side of two text files,
    hf:NAME, or a folder."""
    train_target: Files = None
    """Target side of the training pairs, if they are two parallel text files."""
    val_target: Files = None
    """Target side of the validation pairs, if they are two parallel text files."""
    test_target: Files = None
    """Target side of the test pairs, if they are two parallel text files."""
    references: tuple[str, ...] = ()
    """Text files with more reference translations of the test pairs, one line per pair."""
    format: PairFormat = "auto"
    """File format. auto: text if a target file is given, else by the name."""
    source_column: Count | str | None = None
    """Column of the source text: number (from 1) or name, as translation.en for a nested field.
    Default: source, else the first."""
    target_column: Count | str | None = None
    """Column of the target text, as `source_column`. Default: target, else the second."""
    max_length: Length = 512
    """Maximum length of either side of a pair, in tokens; a longer pair is a bad row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in ("train", "val", "test"):
            if getattr(self, f"{split}_target") is None:
                continue
            sources, targets = getattr(self, split) or (), getattr(self, f"{split}_target")
            if len(sources) != len(targets):
                counts = f"got {len(sources)} and {len(targets)} files"
                raise UserError(f"`{split}_target` needs `{split}`, the source side: {counts}.")
            if self.format not in ("auto", "text"):
                raise UserError(f"`{split}_target` needs `format` text, got {self.format!r}.")


@settings
class LabeledConfig(Targets):
    """Data sets of texts with labels for training, validation and test."""

    train: Files = None
    """Training texts: FILE.tsv, .csv, .jsonl (also .gz) or .parquet, hf:NAME, or a folder.
    Synthetic reviews if not given."""
    format: Literal[TableFormat, "huggingface"] = "auto"
    """File format. auto: by the name."""
    text_column: Count | str | None = None
    """Column of the text: number (from 1) or name. Default: text, else the first."""
    max_length: Length = 512
    """Maximum length of a text, in tokens. Longer texts are cut and counted in training and
    evaluation, and refused by `predict` and `look`."""


@settings
class ImagesConfig(Targets):
    """Data sets of images with classes for training, validation and test."""

    name: ClassVar[str] = "images"
    train: Files = None
    """Training images: a folder with one subfolder per class, an IDX file with its labels beside
    it, or a table of the columns file (relative to it) and label (.csv, .tsv, .jsonl, .parquet).
    Handwritten digits if not given."""
    val_share: FractionWithin = 0.0833
    size: Annotated[int, Range(1, 4_096)] | None = None
    """Height and width to which images are resized. If not given, all must have the same size."""
    file_column: Count | str | None = None
    """Column of the image file: number (from 1) or name. Default: file, else the first."""
    color: Literal["auto", "gray", "rgb"] = "auto"
    """Color mode: one channel (gray) or three (rgb). auto: that of the first image."""
    names: tuple[str, ...] = ()
    """Names of the classes 0, 1, 2 ... of IDX files; their numbers if not given."""


@settings
class VectorsConfig(Tables):
    """Data sets of vectors of numbers, all of one size, for training, validation and test."""

    name: ClassVar[str] = "vectors"
    input: ClassVar[str] = "vector"
    train: Files = None
    """Training vectors: FILE.npy, FILE.npz (array `y`), or rows of numbers (.csv, .tsv, .txt).
    Points on a curve of the plane if not given."""
    condition: str | None = None
    """Name of the column of a file with a header, or of the array (rows,) beside `y` in FILE.npz,
    with a number x on which the rest, y, depends. Only with kind=latent of the model."""
    curve: Literal["ellipse", "spiral", "horn"] = "ellipse"
    """Synthetic points if `train` is not given, with z from 0 to 2 pi. ellipse: (2 cos z, 1.5 sin
    z); spiral: z / pi (cos z, sin z); horn: an ellipse that grows with a condition x from 0 to 1,
    exp(2 x) ((2 - x / 2) cos z, (1.5 + x / 2) sin z)."""
    samples: Annotated[int, Range(10, 10_000_000)] = 1000
    """Number of synthetic training points."""
    deviation: Annotated[float, Range(0, 100)] = 0.05
    """Standard deviation of the noise on synthetic points."""

    @property
    def conditions(self) -> int:
        """Number of numbers x before y in each row."""
        return int(self.curve == "horn" if self.train is None else self.condition is not None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train is None and self.condition is not None:
            raise UserError("`condition` names a column of `train`, which is not given.")


@settings
class ScenesConfig(ImagesConfig):
    """Data sets of scenes composed of images with classes, or of the user's images with texts."""

    train: Files = None
    """Training data: a folder of images per class, an IDX file, or a table of the columns image
    (a file, relative to it) and text. Handwritten digits if not given."""
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
            raise UserError(f"`max_items` must be at most the {self.rows * self.columns} cells.")


@settings
class TextConfig(Tables):
    """Text of a language model for training, validation and test."""

    train: Files = None
    """Training text: text files; or tables with a text in each row (.jsonl, .csv, .tsv, .parquet),
    also .gz, or hf:NAME. The `built_in` one if not given."""
    text_column: Count | str | None = None
    """Column of the text in tables: number (from 1) or name. Default: text, else the first."""
    built_in: Literal["dates", "chases"] = "dates"
    """Generated text: dates in many languages with their ISO form, or chases: English sentences
    such as "The FBI is chasing a criminal on the run ."."""
    val_share: FractionWithin = 0.1
    """Fraction at the end of the training text for validation if `val` is not given."""
    line_ends: Literal["keep", "eos"] = "keep"
    """Tokenization of line ends. keep: as they are, like all white space; eos: as the word <eos>,
    and (tokenizers bpe and word) other white space as single spaces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train is not None and self.built_in != "dates":
            raise ValueError(f"built_in must not be given with train, got {self.built_in}")


@settings
class TracksConfig:
    """Trajectories of pedestrians for training, validation and test."""

    train: tuple[str, ...] = ()
    """Training recordings: text files of lines frame, id, x, y. Synthetic crowds if not given."""
    val: tuple[str, ...] = ()
    """Validation recordings. The last part of each training recording if not given."""
    test: tuple[str, ...] = ()
    """Test recordings."""
    val_share: FractionWithin = 0.1
    """Fraction at the end of each training recording for validation, at least one window, if `val`
    is not given."""
    observed: Annotated[int, Range(2, 1_000)] = 8
    """Number of observed positions of each agent."""
    predicted: Annotated[int, Range(1, 1_000)] = 12
    """Number of predicted positions of each agent."""
    neighbors: Annotated[int, Range(0, 1_000)] = 16
    """Maximum number of neighbors that are input for each agent, the nearest ones."""
    min_agents: Annotated[int, Range(1, 1_000)] = 2
    """Minimum number of agents in a window."""
    on_bad: OnBad = "error"
    """Handling of lines that are not a position, as of other bad data."""

    def __post_init__(self) -> None:
        if self.val and not self.train:
            raise UserError("`train` must be given together with `val`.")


@settings
class TokenizerConfig:
    """Settings of a tokenizer."""

    kind: Literal["bpe", "word", "char", "pretrained"] = "bpe"
    """Kind of tokens. bpe: learned subwords; word: split at white space; char: characters;
    pretrained: those of an imported run, given as --init."""
    vocab_size: Annotated[int, Range(5, 1_000_000)] = 8000
    """Maximum size of a vocabulary, including the 4 special tokens."""
    lowercase: bool = False
    """Lowercase all texts."""
    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization of all texts; nfkc also folds characters such as full-width letters."""
    min_count: Count = 1
    """Minimum count in the training texts of a word (kind word) or character (char, bpe)."""


@settings
class TextTokenizerConfig(TokenizerConfig):
    """Settings of a tokenizer of texts that are only read."""

    split_punctuation: bool = False
    """Split words at punctuation, too (kind word): each mark is a word. bpe always does."""


@settings
class PairTokenizerConfig(TokenizerConfig):
    """Settings of the tokenizers of text pairs."""

    joint: bool = True
    """Learn one vocabulary from both sides (required for shared embeddings), not one for each."""


@settings
class ImageTables(Tables):
    """Tables that name images, and the folders of the images."""

    images: str | None = None
    """Folder or tar of the images of all splits."""
    train_images: str | None = None
    """Folder or tar of the training images. The folder of `train` if not given."""
    val_images: str | None = None
    """Folder or tar of the validation images. The folder of `val` if not given."""
    test_images: str | None = None
    """Folder or tar of the test images. The folder of `test` if not given."""
    width: Annotated[int, Range(1, 4_096)] = 320
    """Input width in pixels; images are scaled to fit, and padded with gray."""
    height: Annotated[int, Range(1, 4_096)] = 240
    """Input height in pixels."""


@settings
class BoxesConfig(ImageTables):
    """Data sets of images with boxes for training, validation and test."""

    train: Files = None
    """Training boxes: FILE.json (COCO, Label Studio), data.yaml (YOLO), FILE.xml (CVAT), a folder
    of XML (Pascal VOC), or FILE.csv, FILE.tsv (file, x, y, width, height, label) or FILE.jsonl.
    Synthetic images of shapes if not given."""
    format: Literal["auto", "coco", "yolo", "voc", "cvat", "label-studio"] = "auto"
    """File format. auto: by the name and the first characters."""


@settings
class CaptionsConfig(ImageTables):
    """Data sets of images with captions for training, validation and test."""

    train: Files = None
    """Training captions: FILE.tsv, FILE.csv, FILE.jsonl (image, caption) or FILE.json (COCO). Drawn
    scenes of shapes, with sentences, if not given."""
    width: Annotated[int, Range(1, 4_096)] = 224
    height: Annotated[int, Range(1, 4_096)] = 224
    max_length: Length = 64
    """Maximum length of a caption, in tokens; a longer one is a bad row."""
    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of drawn scenes in an epoch; new ones in every epoch."""
    test_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of drawn test scenes; validation uses half as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train is None and min(self.width, self.height) < 24:  # smaller shapes look alike
            raise UserError("`width` and `height` must be at least 24 for drawn scenes.")


def scenes_of_epoch(number: int, split: str, config: CaptionsConfig | ScenesConfig) -> range:
    """Return the indices of the drawn scenes of an epoch: new ones in each epoch of training."""
    if split == "train":
        return range(number * config.epoch_size, (number + 1) * config.epoch_size)
    return range(config.test_size if split == "test" else -(-config.test_size // 2))


@settings
class EventsConfig(Tables):
    """Data sets of sounds with events for training, validation and test."""

    train: Files = None
    """Training events: a table (.csv, .tsv, .jsonl) of file, onset, duration (or offset) and label,
    labels of Audacity or Raven (a file, or a folder with the sounds), or an npz of recordings that
    are mixed into scenes, of all splits if `val` and `test` are not given. Synthetic tones and
    noises if not given."""
    format: Literal["auto", "table", "audacity", "raven"] = "auto"
    """File format. auto: by the first line of .txt, else table."""
    label_column: str | None = None
    """Column of the label. Default: label or event_label; in tables of Raven Annotation."""
    seconds: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 4.0
    """Input length in seconds; longer files are split, shorter ones padded with silence."""
    sample_rate: Annotated[int, Range(1, 768_000)] = 8000
    """Sample rate in Hz; files of another rate are resampled."""
    bands: Annotated[int, Range(1, 1_024)] = 40
    """Number of mel bands of the spectrogram."""
    hop: Annotated[float, Range(0, 3_600, is_open_below=True, is_open_above=True)] = 0.01
    """Hop length of the spectrogram in seconds."""
    epoch_size: Annotated[int, Range(1, 10_000_000)] = 10000
    """Number of synthetic training scenes in an epoch."""
    val_size: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of synthetic validation scenes."""
    test_size: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of synthetic test scenes."""
    unit: Literal["seconds", "samples"] = "seconds"
    """Unit of onset and duration in tables; samples: of each file at its own rate. Audacity and
    Raven: seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 / self.sample_rate <= self.hop <= self.seconds / 4:
            raise UserError("`hop` must be from two samples to a quarter of `seconds`.")


@settings
class PointsConfig(Tables):
    """Data sets of point clouds with boxes for training, validation and test."""

    train: Files = None
    """Training boxes: a table of file, x, y, z, dx, dy, dz and label (.csv, .tsv, .jsonl), with the
    clouds beside it (.npz, .csv, .ply, .pcd). Synthetic rooms if not given."""
    features: tuple[str, ...] = ()
    """Names of the numbers of each point besides x, y and z, such as intensity."""
    points: Annotated[int, Range(16, 100_000)] = 2048
    """Maximum number of points of a cloud; in larger ones, points are replaced by means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({"x", "y", "z", *self.features}) < 3 + len(self.features):
            raise UserError("`features` must be different names other than x, y and z.")
        if self.train is None and self.features:
            raise UserError("`features` must be empty for synthetic rooms.")


@settings
class TaggedConfig(Tables):
    """Files of sentences with a tag for each token, for training, validation and test."""

    train: Files = None
    """Training sentences: columns of token and tag with a blank line between sentences, FILE.csv,
    FILE.jsonl or FILE.parquet, or texts with spans (`format`). Synthetic sentences if not given."""
    format: Literal["auto", "columns", "csv", "jsonl", "parquet", "spans", SpanFormat] = "auto"
    """File format. auto: by the suffix (.csv, .jsonl, .parquet), else columns. spans: a table with
    a row for each span of a text (text, start, end, label), as a .csv without tokens is anyway.
    prodigy, doccano, label-studio, spacy: JSON of texts with labeled spans of characters."""
    token_column: Count | str | None = None
    """Column of the tokens: number (from 1) or name. Default: token in CSV, tokens in JSONL, text
    with spans, the second in CoNLL-U, else the first."""
    tag_column: Count | str | None = None
    """Column of the tags, as `token_column`. Default: tag in CSV, tags in JSONL, the fourth in
    CoNLL-U, else the last."""
    max_length: Length = 256
    """Maximum length of a sentence, in subwords; a longer one is a bad sentence."""
