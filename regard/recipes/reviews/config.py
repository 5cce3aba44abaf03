"""Settings of the recipe `reviews`: text classification and regression. Imports no torch."""

from dataclasses import replace
from typing import Literal

from regard.data.config import LabeledConfig, TextTokenizerConfig
from regard.models.config import TextClassifierConfig
from regard.models.cores.config import RecurrentConfig
from regard.recipes.base.answers import target_answer
from regard.recipes.base.config import COSINE, NBest, Threshold
from regard.recipes.base.entry import NO_DECODER, Entry
from regard.settings.declare import settings
from regard.settings.ranges import FractionBelowOne
from regard.training.config import TrainConfig


@settings
class ReviewsRunConfig:
    """Text classification (sentiment of reviews) of your own texts; synthetic ones without data."""

    data: LabeledConfig = LabeledConfig()
    """Texts with labels: FILE.tsv, FILE.jsonl, hf:NAME, or a folder saved by `datasets`; also with
    .gz. Synthetic reviews if not given."""
    tokenizer: TextTokenizerConfig = TextTokenizerConfig(
        kind="word", vocab_size=30000, lowercase=True, min_count=2, split_punctuation=True
    )
    """Tokenizer of the texts."""
    model: TextClassifierConfig = TextClassifierConfig(core=RecurrentConfig(), dropout=0.5)
    """The model."""
    word_dropout: FractionBelowOne = 0.3
    """Fraction of the tokens of a text that are replaced by <unk> in training."""
    naive_bayes: Literal["none", "words", "bigrams", "prefixes"] = "none"
    """Features whose naive-Bayes log-count ratios the model adds to its inputs: none; words (the
    tokenizer's tokens); bigrams: also bigrams; prefixes: words, prefixes of five letters, and
    bigrams of both. For classes only. (wang2012)"""
    n_best: NBest = 1
    """Number of classes that `predict` prints for each input, most probable first."""
    threshold: Threshold = None
    """Lowest probability of an answer: an input whose most probable class has less has the answer
    <reject>. Of several labels, those with at least this are predicted; by default 0.5."""
    train: TrainConfig = replace(
        COSINE,
        steps=1500,
        batch_tokens=2048,
        lr=1e-3,
        warmup=100,
        label_smoothing=0.1,
        validate_every=100,
        average=5,
        patience=10,
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
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


ENTRY = Entry(
    name="reviews",
    config=ReviewsRunConfig,
    answers=("n_best", "threshold"),
    answer=target_answer,
    unused=NO_DECODER,
    recipe="regard.recipes.reviews.recipe:ReviewsRecipe",
)
