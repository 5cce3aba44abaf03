"""The whole of a run of the recipe `tags` as plain data. (no torch)"""

from dataclasses import dataclass, field

from regard.data.config import TokenizerConfig
from regard.data.tagged_config import TaggedConfig
from regard.models.config import EncoderConfig, TransformerConfig
from regard.ranges import ShareBelowOne, check_ranges
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Tags:
    """A tag for each token of a sentence (names, parts of speech): data.train and data.val say where yours are."""

    data: TaggedConfig = field(default_factory=TaggedConfig)
    """Where the sentences are: columns of token and tag, or FILE.jsonl. Without any, made-up ones with dates."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="bpe", vocab_size=4000, joint=False, lowercase=False)
    )
    """How tokens are cut into numbered pieces, each token for itself; its tag is at its first piece."""
    model: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(
            core=TransformerConfig(layers=2, width=96, heads=4, feedforward=192, activation="gelu"), dropout=0.1
        )
    )
    """What the model is made of."""
    word_dropout: ShareBelowOne = 0.05
    """Share of the pieces of a sentence that training reads as unknown."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=600,
            batch_tokens=2048,
            lr=2e-3,
            warmup=100,
            schedule="cosine",
            label_smoothing=0.0,
            precision="auto",
            validate_every=100,
            average=3,
            patience=0,
        )
    )
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is one side")
        core = self.model.core
        if isinstance(core, TransformerConfig) and core.positions == "learned":
            most, least = core.max_positions, self.data.max_length
            if most < least:
                raise ValueError(f"model.core.max_positions must be at least data.max_length={least}, but is {most}")
