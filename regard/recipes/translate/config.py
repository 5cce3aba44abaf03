"""Settings of the recipe `translate`: translation. Importing them needs no torch."""

from typing import Annotated

from regard.data.config import PairsConfig, PairTokenizerConfig
from regard.decode.config import TranslationDecodeConfig
from regard.models.config import ModelConfig
from regard.recipes.base.answers import GeneratedTexts
from regard.recipes.base.config import limit_input_length
from regard.recipes.base.entry import Entry
from regard.recipes.metrics.config import BleuConfig
from regard.settings.declare import settings
from regard.settings.ranges import Range
from regard.training.config import TrainConfig


@settings
class TranslateRunConfig:
    """Text to text (translation, summarization), from your own TSV, JSONL, parallel files ..."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of validation pairs decoded (greedily) at each validation; the loss is of all."""
    data: PairsConfig = PairsConfig()
    """Text pairs: FILE.tsv, FILE.jsonl, one side of two parallel text files (the other is in
    `train_target`), hf:NAME (Hugging Face), or a folder saved by `datasets`; also with .gz."""
    tokenizer: PairTokenizerConfig = PairTokenizerConfig(kind="bpe", vocab_size=8000)
    """Tokenizer of the texts."""
    model: ModelConfig = ModelConfig(dropout=0.3)
    """The model."""
    train: TrainConfig = TrainConfig(
        steps=6000, lr=2.5e-3, warmup=800, schedule="cosine", precision="auto", validate_every=250
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    decode: TranslationDecodeConfig = TranslationDecodeConfig()
    """Search for outputs, in `evaluate` and `predict`."""
    bleu: BleuConfig = BleuConfig()
    """Settings of BLEU (sacrebleu), which are part of its signature."""

    def __post_init__(self) -> None:
        if self.model.tie == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie must be target or none if tokenizer.joint is false")

    @property
    def input_limit(self) -> int:
        """Maximum input length in tokens, EOS not counted."""
        return limit_input_length(self.data.max_length, self.model)


ENTRY = Entry(
    name="translate",
    config=TranslateRunConfig,
    answers=("decode",),
    answer=GeneratedTexts,
    scores=("bleu",),
    needs_data=True,
    recipe="regard.recipes.translate.recipe:TranslateRecipe",
)
