"""The whole of a run as plain data, one dataclass a recipe. (no torch: the help is made from these)"""

from dataclasses import dataclass, field, replace
from typing import Literal

from regard.data.config import OnBad, PairFormat, PairsConfig, TokeniserConfig
from regard.data.dates_config import DatesConfig
from regard.decode.config import DecodeConfig
from regard.models.config import ModelConfig, TransformerConfig
from regard.train.config import TrainConfig

__all__ = ["BleuConfig", "Dates", "OtherData", "Translate", "fitting"]


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

    val_sample: int = 1000
    """Validation examples that are decoded, greedily, at each validation; its loss is that of all."""
    max_length: int = 128
    """Longest input, in tokens."""
    data: DatesConfig = field(default_factory=DatesConfig)
    """Which dates are written, and in which languages, on the fly from the Unicode CLDR."""
    source_tokeniser: TokeniserConfig = field(
        default_factory=lambda: TokeniserConfig(
            kind="bpe", vocab_size=2000, joint=False, lowercase=True, normalise="nfkc"
        )
    )
    """How the dates as people write them are cut into numbered pieces."""
    target_tokeniser: TokeniserConfig = field(
        default_factory=lambda: TokeniserConfig(kind="char", vocab_size=32, joint=False)
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
        _at_least_one(self, "val_sample", "max_length")
        for name in ("source_tokeniser", "target_tokeniser"):
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

    val_sample: int = 500
    """Validation sentences that are decoded, greedily, at each validation; its loss is that of all."""
    data: PairsConfig = field(default_factory=PairsConfig)
    """Where the pairs of texts are: FILE.tsv, FILE.jsonl, the source side of two parallel text files (with
    the ..._target beside it), hf:NAME (Hugging Face), a folder that `datasets` saved; .gz is fine."""
    tokeniser: TokeniserConfig = field(default_factory=lambda: TokeniserConfig(kind="bpe", vocab_size=8000))
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
        _at_least_one(self, "val_sample")
        if self.model.tie == "all" and not self.tokeniser.joint:
            raise ValueError("model.tie=all needs one vocabulary for both sides: tokeniser.joint, or tie target")

    @property
    def input_limit(self) -> int:
        """Longest input in tokens, EOS not counted."""
        return _limit(self.data.max_length, self.model)


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
    source_column: int | str | None = None
    """Where the source text is: column number (from 1) or header name in TSV, field name otherwise."""
    target_column: int | str | None = None
    """Where the target text is."""
    on_bad: OnBad = "error"
    """What a bad line does (wrong columns, empty side, not UTF-8, too long): error stops, skip counts."""

    def __post_init__(self) -> None:
        if self.test_target and len(self.test_target) != len(self.test):
            raise ValueError(
                f"test_target must name a file for each of test, {len(self.test)}, but names {len(self.test_target)}"
            )


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


def _at_least_one(config: Dates | Translate, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, but is {getattr(config, name)}")
