"""Settings of the recipe `reviews`: text classification and regression. Importing them needs no
torch."""

from dataclasses import field
from typing import Literal

from regard.data.config import LabeledConfig, OnBad, TokenizerConfig
from regard.models.config import TextClassifierConfig
from regard.models.cores.config import RecurrentConfig
from regard.recipes.base.config import OtherData, RankedPrediction, TextsReading
from regard.recipes.base.entry import NO_DECODER, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Count, FractionBelowOne
from regard.training.config import TrainConfig


@settings
class ReviewsRunConfig:
    """Text classification, such as sentiment of reviews, from your own texts: set data.train."""

    data: LabeledConfig = field(default_factory=LabeledConfig)
    """Texts with labels: FILE.tsv, FILE.jsonl, hf:NAME, or a folder saved by `datasets`; also with
    .gz. Synthetic reviews if not given."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(
            kind="word", vocab_size=30000, joint=False, lowercase=True, min_count=2
        )
    )
    """Tokenizer of the texts."""
    model: TextClassifierConfig = field(
        default_factory=lambda: TextClassifierConfig(
            core=RecurrentConfig(width=128, hidden=256), dropout=0.5
        )
    )
    """The model."""
    word_dropout: FractionBelowOne = 0.3
    """Fraction of the tokens of a text that are replaced by <unk> in training."""
    naive_bayes: Literal["none", "words", "bigrams", "prefixes"] = "none"
    """Features whose naive-Bayes log-count ratios the model adds to its inputs: none; words (the
    tokenizer's tokens); bigrams: also bigrams; prefixes: words, prefixes of five letters, and
    bigrams of both. For classes only. (wang2012)
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
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there are no target texts")
        if self.naive_bayes != "none" and self.data.target != "class":
            raise ValueError(
                f"naive_bayes must be none for data.target {self.data.target}, got "
                f"{self.naive_bayes}"
            )
        if self.naive_bayes != "none" and self.model.pool == "first":
            raise ValueError(
                f"naive_bayes must be none with model.pool=first, whose item has no ratios, got "
                f"{self.naive_bayes}"
            )


@settings
class LabeledReading(TextsReading):
    """Options for reading files of texts, with or without labels."""

    text_column: Count | str | None = None
    """Column of the text: number (from 1) or header name in TSV and CSV, else field name. Default:
    as in training."""


@settings
class OtherLabeled(LabeledReading, OtherData):
    """Other texts to evaluate a classifier on, in the format of its training data."""

    test: tuple[str, ...] = ()
    """Texts and labels: FILE.tsv, FILE.jsonl, hf:NAME; also with .gz. Several are evaluated one by
    one. Default: the run's test data."""
    format: Literal["auto", "tsv", "csv", "jsonl", "huggingface"] = "auto"
    """File format. auto: by the file suffix or `hf:`."""
    label_column: tuple[Count | str, ...] = ()
    """Column of the label, or columns of labels or numbers. Default: as in training."""
    separator: str = ","
    """Separator of several labels or numbers in one cell. Default: as in training."""
    on_bad: OnBad = "error"
    """Handling of bad lines (wrong columns, empty text, not UTF-8, unknown label): error stops;
    skip leaves them out and counts them."""


@settings
class ReviewsEvaluation:
    """Test data."""

    data: OtherLabeled = field(default_factory=OtherLabeled)
    """Texts to evaluate on instead of the run's own test data."""


ENTRY = Entry(
    name="reviews",
    summary="text classification (sentiment of reviews), from your own texts; synthetic reviews if "
    "not given",
    config=ReviewsRunConfig,
    options=RankedPrediction,
    evaluation=ReviewsEvaluation,
    reading=LabeledReading,
    unused=NO_DECODER,
    recipe="regard.recipes.reviews.recipe:ReviewsRecipe",
)
