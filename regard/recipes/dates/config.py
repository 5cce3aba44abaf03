"""Settings of the recipe `dates`: date normalization. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import TokenizerConfig
from regard.data.embedded.dates_config import DatesConfig
from regard.decode.config import DecodeConfig
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import GeneratedTexts
from regard.recipes.base.config import COSINE, limit_input_length
from regard.recipes.base.entry import Entry
from regard.settings.declare import settings
from regard.settings.ranges import Length, Range
from regard.training.config import TrainConfig


@settings
class DatesData(DatesConfig):
    """Dates and languages of the examples, and other test data."""

    test: str | None = None
    """Test pairs: FILE.tsv, FILE.csv, FILE.jsonl; generated ones if not given."""


@settings
class DatesRunConfig:
    """Dates in many languages to ISO 8601: "3 maart 2019" is 2019-03-03; the data is built in."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 1000
    """Number of validation examples decoded (greedily) at each validation; the loss is of all."""
    max_length: Length = 128
    """Maximum input length in tokens."""
    data: DatesData = DatesData()
    """Dates and languages of the examples, generated on the fly from the Unicode CLDR."""
    source_tokenizer: TokenizerConfig = TokenizerConfig(
        kind="bpe", vocab_size=2000, lowercase=True, normalize="nfkc"
    )
    """Tokenizer of the written dates."""
    target_tokenizer: TokenizerConfig = TokenizerConfig(kind="char", vocab_size=32)
    """Tokenizer of the ISO dates."""
    model: ModelConfig = ModelConfig(
        core=TransformerConfig(layers=3, decoder_layers=2, width=128, feedforward=512), tie="target"
    )
    """The model."""
    train: TrainConfig = replace(
        COSINE, steps=1200, lr=2e-3, warmup=200, validate_every=250, patience=10
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    decode: DecodeConfig = DecodeConfig(beam=1, max_extra=12, max_ratio=0.0)
    """Search for outputs, in `evaluate` and `predict`."""

    def __post_init__(self) -> None:
        if self.model.tie == "all":
            raise ValueError("model.tie must be target or none: each side has its own vocabulary")

    @property
    def input_limit(self) -> int:
        """Maximum input length in tokens, EOS not counted."""
        return limit_input_length(self.max_length, self.model)


ENTRY = Entry(
    name="dates",
    config=DatesRunConfig,
    answers=("decode",),
    answer=GeneratedTexts,
    recipe="regard.recipes.dates.recipe:DatesRecipe",
)
