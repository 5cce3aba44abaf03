"""Settings of the recipe `tags`: token tagging. Importing them needs no torch."""

from dataclasses import replace

from regard.data.config import TaggedConfig, TokenizerConfig
from regard.layers.positions.config import RotaryConfig
from regard.models.config import TaggerConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import TagsAnswer
from regard.recipes.base.config import COSINE, check_positions
from regard.recipes.base.entry import NO_DECODER, Entry
from regard.settings.declare import settings
from regard.settings.ranges import FractionBelowOne
from regard.training.config import TrainConfig


@settings
class TagsRunConfig:
    """Token tagging (NER, parts of speech), from columns, JSON or spans; synthetic without data."""

    data: TaggedConfig = TaggedConfig()
    """Sentences: columns of token and tag, or FILE.jsonl. Synthetic sentences if not given."""
    tokenizer: TokenizerConfig = TokenizerConfig(vocab_size=4000)
    """Tokenizer of single words into subwords; the tag is predicted at the first subword."""
    model: TaggerConfig = TaggerConfig(
        core=TransformerConfig(
            layers=2,
            width=96,
            heads=4,
            feedforward=192,
            activation="gelu",
            positions=RotaryConfig(),
        ),
        dropout=0.1,
    )
    """The model."""
    word_dropout: FractionBelowOne = 0.05
    """Fraction of the subwords of a sentence that are replaced by <unk> in training."""
    train: TrainConfig = replace(
        COSINE, steps=600, batch_tokens=2048, lr=2e-3, warmup=100, validate_every=100, average=3
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        least = self.data.max_length
        check_positions(self.model.core, least, f"data.max_length={least}")


ENTRY = Entry(
    name="tags",
    config=TagsRunConfig,
    answer=TagsAnswer,
    unused=NO_DECODER,
    recipe="regard.recipes.tags.recipe:TagsRecipe",
)
