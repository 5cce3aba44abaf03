"""Run configurations, one dataclass for each recipe. (no torch: the command line's help is generated from these)"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from regard.data.config import (
    ImagesConfig,
    LabeledConfig,
    PairsConfig,
    TextConfig,
    TokenizerConfig,
    TracksConfig,
)
from regard.data.dates_config import DatesConfig
from regard.decode.config import DecodeConfig, SampleConfig
from regard.models.config import (
    AutoencoderConfig,
    ClassifierConfig,
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from regard.ranges import Batch, FractionBelowOne, Length, Range, check_ranges
from regard.recipes.draw_config import DrawRunConfig
from regard.recipes.sets_config import BoxesRunConfig, EventsRunConfig
from regard.recipes.tags_config import TagsRunConfig
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class BleuConfig:
    """Settings of BLEU (sacrebleu), which are part of its signature."""

    tokenize: Literal["13a", "none", "intl", "char"] = "13a"
    """Tokenization: 13a, the standard one; none, for texts that are tokenized already; intl; char, for languages
    without spaces."""
    lowercase: bool = False
    """Lowercase both sides first."""


@dataclass(frozen=True, kw_only=True)
class DatesRunConfig:
    """Dates written in many languages, to ISO 8601: "3 maart 2019" is 2019-03-03; the data is built in."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 1000
    """Validation examples decoded (greedily) at each validation; the loss is computed over all of them."""
    max_length: Length = 128
    """Longest input, in tokens."""
    data: DatesConfig = field(default_factory=DatesConfig)
    """Dates and languages of the examples, generated on the fly from the Unicode CLDR."""
    source_tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(
            kind="bpe", vocab_size=2000, joint=False, lowercase=True, normalize="nfkc"
        )
    )
    """Tokenizer of the written dates."""
    target_tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="char", vocab_size=32, joint=False)
    )
    """Tokenizer of the ISO dates."""
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            core=TransformerConfig(layers=3, decoder_layers=2, width=128, feedforward=512),
            tie="target",
        )
    )
    """The model."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1200,
            batch_tokens=4096,
            lr=2e-3,
            warmup=200,
            schedule="cosine",
            label_smoothing=0.0,
            precision="auto",
            validate_every=250,
            average=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    decode: DecodeConfig = field(default_factory=lambda: DecodeConfig(beam=1, max_extra=12, max_ratio=0.0))
    """Search for outputs, in `evaluate` and `predict`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("source_tokenizer", "target_tokenizer"):
            if getattr(self, name).joint:
                raise ValueError(f"{name}.joint must be false: each side of dates has a vocabulary of its own")
        if self.model.tie == "all":
            raise ValueError("model.tie must be target or none: each side of dates has a vocabulary of its own")

    @property
    def input_limit(self) -> int:
        """Longest input in tokens, EOS not counted."""
        return _limit(self.max_length, self.model)


@dataclass(frozen=True, kw_only=True)
class TranslateRunConfig:
    """Text to text (translation, summarization), from your own pairs: set data.train and data.val."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 500
    """Validation sentences decoded (greedily) at each validation; the loss is computed over all of them."""
    data: PairsConfig = field(default_factory=PairsConfig)
    """Text pairs: FILE.tsv, FILE.jsonl, the source side of two parallel text files (with ..._target for the other
    side), hf:NAME (Hugging Face), or a folder saved by `datasets`; also with .gz."""
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(kind="bpe", vocab_size=8000))
    """Tokenizer of the texts."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(dropout=0.3))
    """The model."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=6000,
            lr=2.5e-3,
            warmup=800,
            schedule="cosine",
            precision="auto",
            validate_every=250,
            average=5,
            patience=10,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Search for outputs, in `evaluate` and `predict`."""
    bleu: BleuConfig = field(default_factory=BleuConfig)
    """Settings of BLEU (sacrebleu), which are part of its signature."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.model.tie == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie=all needs one vocabulary for both sides: tokenizer.joint, or tie target")

    @property
    def input_limit(self) -> int:
        """Longest input in tokens, EOS not counted."""
        return _limit(self.data.max_length, self.model)


@dataclass(frozen=True, kw_only=True)
class ReviewsRunConfig:
    """Text classification, such as sentiment of reviews, from your own texts: set data.train and data.val."""

    data: LabeledConfig = field(default_factory=LabeledConfig)
    """Texts with labels: FILE.tsv, FILE.jsonl, hf:NAME, or a folder saved by `datasets`; also with .gz. Synthetic
    reviews if not given."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="word", vocab_size=30000, joint=False, lowercase=True, min_count=2)
    )
    """Tokenizer of the texts."""
    model: ClassifierConfig = field(
        default_factory=lambda: ClassifierConfig(core=RecurrentConfig(width=128, hidden=256), dropout=0.5)
    )
    """The model."""
    word_dropout: FractionBelowOne = 0.3
    """Share of the tokens of a text replaced by <unk> in training (word dropout)."""
    opinions: Literal["none", "words", "pairs", "beginnings"] = "beginnings"
    """Features whose naive-Bayes log-count ratios the model adds to its inputs: none; words (the tokenizer's tokens);
    pairs: also bigrams; beginnings: words, prefixes of five letters, and bigrams of both. Used for classes only, not
    for other targets. (wang2012)
    """
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1500,
            batch_tokens=2048,
            lr=1e-3,
            warmup=100,
            schedule="cosine",
            label_smoothing=0.1,
            precision="auto",
            validate_every=100,
            average=5,
            patience=10,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is only one side")


@dataclass(frozen=True, kw_only=True)
class ImagesRunConfig:
    """Image classification: a folder of images per class, or IDX files; handwritten digits if not given."""

    data: ImagesConfig = field(default_factory=ImagesConfig)
    """The images."""
    patch: Annotated[int, Range(1, 4_096)] | None = None
    """Side of the patches in pixels (ViT); a stem of three small convolutions if not given."""
    model: ClassifierConfig = field(
        default_factory=lambda: ClassifierConfig(
            core=TransformerConfig(layers=3, width=96, heads=4, feedforward=288, activation="gelu", positions="none")
        )
    )
    """The model. Patches have learned position embeddings, so core.positions is none."""
    augment: Literal["none", "shift", "shift-flip"] = "shift"
    """Augmentation: none; shift by up to an eighth of the sides; also flip horizontally with probability 1/2."""
    batch: Batch = 128
    """Images per batch."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=600,
            lr=2e-3,
            warmup=100,
            schedule="cosine",
            label_smoothing=0.1,
            precision="auto",
            validate_every=100,
            average=3,
            patience=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached; `batch` images per step."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class LanguageRunConfig:
    """Causal language model (GPT, or recurrent) of your own text: next-token prediction and text generation."""

    data: TextConfig = field(default_factory=TextConfig)
    """The text."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="char", vocab_size=4000, joint=False, normalize="none")
    )
    """Tokenizer of the text: char, bpe, or word."""
    context: Length = 64
    """Context length in tokens."""
    batch: Batch = 12
    """Windows of `context` tokens per batch."""
    model: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    """The model."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=2000,
            lr=2e-3,
            betas=(0.9, 0.99),
            warmup=100,
            schedule="cosine",
            label_smoothing=0.0,
            precision="auto",
            validate_every=250,
            average=0,
            patience=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    sample: SampleConfig = field(default_factory=SampleConfig)
    """Sampling of continuations, in `predict`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is only one side")
        core = self.model.core
        if isinstance(core, TransformerConfig) and core.positions == "learned" and core.max_positions < self.context:
            raise ValueError(
                f"model.core.max_positions must be at least context={self.context}, got {core.max_positions}"
            )


@dataclass(frozen=True, kw_only=True)
class TracksRunConfig:
    """Trajectory forecasting of pedestrians among each other; synthetic crowds if no recordings are given."""

    data: TracksConfig = field(default_factory=TracksConfig)
    """Recordings: text files of frame, id, x, y."""
    batch: Batch = 256
    """People per batch."""
    model: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(
            core=TransformerConfig(layers=2, width=64, heads=4, feedforward=128, activation="gelu", positions="none"),
            dropout=0.3,
        )
    )
    """The model. A set has no order, so core.positions is none."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=800,
            lr=1e-3,
            warmup=100,
            schedule="cosine",
            weight_decay=0.1,
            label_smoothing=0.0,
            precision="float32",
            validate_every=200,
            ema=0.99,
            average=0,
            patience=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class RebuildRunConfig:
    """Autoencoder of images; handwritten digits if not given."""

    data: ImagesConfig = field(default_factory=ImagesConfig)
    """The images; their classes are not used."""
    model: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    """The model."""
    batch: Batch = 128
    """Images per batch."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1500,
            lr=1e-3,
            warmup=100,
            schedule="cosine",
            label_smoothing=0.0,
            precision="float32",
            validate_every=250,
            average=0,
            patience=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        check_ranges(self)


AnyConfig = (
    DatesRunConfig
    | TranslateRunConfig
    | ReviewsRunConfig
    | TagsRunConfig
    | ImagesRunConfig
    | LanguageRunConfig
    | TracksRunConfig
    | RebuildRunConfig
    | DrawRunConfig
    | BoxesRunConfig
    | EventsRunConfig
)


def clamp_max_length(decode: DecodeConfig, model: ModelConfig) -> DecodeConfig:
    """Return the search settings with max_length limited to the learned positions."""
    if isinstance(model.core, TransformerConfig) and model.core.positions == "learned":
        return replace(decode, max_length=min(decode.max_length, model.core.max_positions))
    return decode


def _limit(max_length: int, model: ModelConfig) -> int:
    """Return max_length, limited to the learned positions without EOS."""
    if isinstance(model.core, TransformerConfig) and model.core.positions == "learned":
        return min(max_length, model.core.max_positions - 1)
    return max_length
