"""Settings of the recipe `language`: language modeling. Importing them needs no torch."""

from dataclasses import replace

from regard.data.config import TextConfig, TokenizerConfig
from regard.decode.config import SampleConfig
from regard.models.config import LanguageModelConfig
from regard.recipes.base.answers import ContinuedText
from regard.recipes.base.config import COSINE, check_positions
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_ENCODER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Length
from regard.training.config import TrainConfig


@settings
class LanguageRunConfig:
    """Causal language model (GPT, or recurrent) of your own text; of dates if no text is given."""

    data: TextConfig = TextConfig()
    """The text."""
    tokenizer: TokenizerConfig = TokenizerConfig(kind="char", vocab_size=4000, normalize="none")
    """Tokenizer of the text: char, bpe, or word."""
    context: Length = 64
    """Context length in tokens."""
    batch: Batch = 12
    """Windows of `context` tokens per batch."""
    model: LanguageModelConfig = LanguageModelConfig()
    """The model."""
    train: TrainConfig = replace(
        COSINE,
        steps=2000,
        optimizer="auto",
        lr=2e-3,
        betas=(0.9, 0.99),
        warmup=100,
        validate_every=250,
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    sample: SampleConfig = SampleConfig()
    """Sampling of continuations, in `predict`."""

    def __post_init__(self) -> None:
        check_positions(self.model.core, self.context, f"context={self.context}")


ENTRY = Entry(
    name="language",
    config=LanguageRunConfig,
    answers=("sample",),
    answer=ContinuedText,
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING, *NO_ENCODER),
    recipe="regard.recipes.language.recipe:LanguageRecipe",
)
