"""The whole of a run as plain data, one dataclass a recipe. (no torch: the help is made from these)"""

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
from regard.ranges import Batch, Length, Range, ShareBelowOne, check_ranges
from regard.recipes.draw_config import Draw
from regard.recipes.sets_config import Boxes, Events
from regard.recipes.tags_config import Tags
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class BleuConfig:
    """How BLEU compares outputs with references. (sacrebleu; the signature tells these)"""

    tokenize: Literal["13a", "none", "intl", "char"] = "13a"
    """Tokens compared: 13a, the usual one; none, if the texts are tokens already; intl; char, for languages
    that write no spaces."""
    lowercase: bool = False
    """Lower-case both sides first."""


@dataclass(frozen=True, kw_only=True)
class Dates:
    """Dates as people write them in many languages, to ISO: "3 maart 2019" is 2019-03-03; data embedded."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 1000
    """Validation examples that are decoded, greedily, at each validation; its loss is that of all."""
    max_length: Length = 128
    """Longest input, in tokens."""
    data: DatesConfig = field(default_factory=DatesConfig)
    """Which dates are written, and in which languages, on the fly from the Unicode CLDR."""
    source_tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(
            kind="bpe", vocab_size=2000, joint=False, lowercase=True, normalize="nfkc"
        )
    )
    """How the dates as people write them are cut into numbered pieces."""
    target_tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="char", vocab_size=32, joint=False)
    )
    """How the ISO dates are cut into numbered pieces."""
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            core=TransformerConfig(layers=3, decoder_layers=2, width=128, feedforward=512),
            tie="target",
        )
    )
    """What the model is made of."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""
    decode: DecodeConfig = field(default_factory=lambda: DecodeConfig(beam=1, max_extra=12, max_ratio=0.0))
    """How outputs are searched for, in `evaluate` and `predict`."""

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
class Translate:
    """Texts to texts, learned from your own pairs: data.train and data.val say where they are."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 500
    """Validation sentences that are decoded, greedily, at each validation; its loss is that of all."""
    data: PairsConfig = field(default_factory=PairsConfig)
    """Where the pairs of texts are: FILE.tsv, FILE.jsonl, the source side of two parallel text files (with
    the ..._target beside it), hf:NAME (Hugging Face), a folder that `datasets` saved; .gz is fine."""
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(kind="bpe", vocab_size=8000))
    """How texts are cut into numbered pieces."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(dropout=0.3))
    """What the model is made of."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """How outputs are searched for, in `evaluate` and `predict`."""
    bleu: BleuConfig = field(default_factory=BleuConfig)
    """How BLEU compares outputs with references. (sacrebleu; its signature tells these)"""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.model.tie == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie=all needs one vocabulary for both sides: tokenizer.joint, or tie target")

    @property
    def input_limit(self) -> int:
        """Longest input in tokens, EOS not counted."""
        return _limit(self.data.max_length, self.model)


@dataclass(frozen=True, kw_only=True)
class Reviews:
    """Texts to classes, such as reviews to positive or negative: data.train and data.val say where yours are."""

    data: LabeledConfig = field(default_factory=LabeledConfig)
    """Where the texts and their labels are: FILE.tsv, FILE.jsonl, hf:NAME, a folder that `datasets` saved; .gz is
    fine. Without any, made-up reviews."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="word", vocab_size=30000, joint=False, lowercase=True, min_count=2)
    )
    """How texts are cut into numbered pieces."""
    model: ClassifierConfig = field(
        default_factory=lambda: ClassifierConfig(core=RecurrentConfig(width=128, hidden=256), dropout=0.5)
    )
    """What the model is made of."""
    word_dropout: ShareBelowOne = 0.3
    """Share of the pieces of a text that training reads as unknown."""
    opinions: Literal["none", "words", "pairs", "beginnings"] = "beginnings"
    """What is counted beforehand, so that the model begins with the classes it speaks for: none: nothing; words (the
    tokenizer's pieces); pairs: also those of neighbors; beginnings: words, their first five letters, and pairs of
    these. For classes alone: nothing is counted for other targets. (wang2012)
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is one side")


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images to classes: a folder of images per class, or IDX files; handwritten digits if you have none."""

    data: ImagesConfig = field(default_factory=ImagesConfig)
    """Where the images are."""
    patch: Annotated[int, Range(1, 4_096)] | None = None
    """Side of the patches that become items; a stem of three small convolutions if not given."""
    model: ClassifierConfig = field(
        default_factory=lambda: ClassifierConfig(
            core=TransformerConfig(layers=3, width=96, heads=4, feedforward=288, activation="gelu", positions="none")
        )
    )
    """What the model is made of. Places have learned vectors of their own: core.positions is none."""
    augment: Literal["none", "shift", "shift-flip"] = "shift"
    """What training does to images: nothing; moves them by up to an eighth; also mirrors every other one."""
    batch: Batch = 128
    """Images in a batch."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience; `batch` images a step."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language model of your own text: it predicts every next character (or word) and goes on with what you begin."""

    data: TextConfig = field(default_factory=TextConfig)
    """Where the text is."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="char", vocab_size=4000, joint=False, normalize="none")
    )
    """How the text is cut into numbered pieces: char or bpe, or word for text in words."""
    context: Length = 64
    """Tokens that the model sees at most."""
    batch: Batch = 12
    """Windows of so many tokens in a batch."""
    model: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    """What the model is made of."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""
    sample: SampleConfig = field(default_factory=SampleConfig)
    """How texts are gone on with, in `predict`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is one side")
        core = self.model.core
        if isinstance(core, TransformerConfig) and core.positions == "learned" and core.max_positions < self.context:
            raise ValueError(
                f"model.core.max_positions must be at least context={self.context}, but is {core.max_positions}"
            )


@dataclass(frozen=True, kw_only=True)
class Tracks:
    """Where people will be who walk among each other; made-up crowds if you have no recordings."""

    data: TracksConfig = field(default_factory=TracksConfig)
    """Where the recordings are: text files of frame, id, x, y."""
    batch: Batch = 256
    """People in a batch."""
    model: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(
            core=TransformerConfig(layers=2, width=64, heads=4, feedforward=128, activation="gelu", positions="none"),
            dropout=0.3,
        )
    )
    """What the model is made of. A set has no order: core.positions is none."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """Images through a narrow code and back (an autoencoder); handwritten digits if you have none."""

    data: ImagesConfig = field(default_factory=ImagesConfig)
    """Where the images are; their classes play no part."""
    model: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    """What the model is made of."""
    batch: Batch = 128
    """Images in a batch."""
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
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""

    def __post_init__(self) -> None:
        check_ranges(self)


AnyConfig = Dates | Translate | Reviews | Tags | Images | Language | Tracks | Rebuild | Draw | Boxes | Events


def fitting(decode: DecodeConfig, model: ModelConfig) -> DecodeConfig:
    """The search with outputs no longer than learned positions go."""
    if isinstance(model.core, TransformerConfig) and model.core.positions == "learned":
        return replace(decode, max_length=min(decode.max_length, model.core.max_positions))
    return decode


def _limit(max_length: int, model: ModelConfig) -> int:
    """The longest input, or what learned positions serve beside EOS."""
    if isinstance(model.core, TransformerConfig) and model.core.positions == "learned":
        return min(max_length, model.core.max_positions - 1)
    return max_length
