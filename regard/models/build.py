"""From sizes to a model."""

from regard.models.config import ModelConfig, RecurrentConfig, TransformerConfig
from regard.models.cores.core import Core
from regard.models.cores.recurrent import RecurrentCore
from regard.models.cores.transformer import TransformerCore
from regard.models.model import Model
from regard.models.reads.tokens import TokenReader, embedding_table
from regard.models.writes.tokens import TokenWriter

__all__ = ["build", "build_core"]


def build_core(config: TransformerConfig | RecurrentConfig, *, dropout: float = 0.0) -> Core:
    """The core that the config names."""
    if isinstance(config, TransformerConfig):
        return TransformerCore(config, dropout=dropout)
    if isinstance(config, RecurrentConfig):
        return RecurrentCore(config, dropout=dropout)
    raise TypeError(f"core must be a TransformerConfig or a RecurrentConfig, but is {type(config).__name__}")


def build(config: ModelConfig, *, source_vocab: int, target_vocab: int, label_smoothing: float = 0.0) -> Model:
    """A text-to-text model for vocabularies of these sizes, with fresh weights from torch's generator.

    Raises: ValueError if one table is to serve two vocabularies of different sizes.
    """
    if config.tie == "all" and source_vocab != target_vocab:
        raise ValueError(
            f"tie=all needs one joint vocabulary, but source has {source_vocab} and target {target_vocab} tokens"
        )
    width = config.core.width
    source = embedding_table(source_vocab, width)
    target = source if config.tie == "all" else embedding_table(target_vocab, width)
    output = embedding_table(target_vocab, width) if config.tie == "none" else target
    reads = TokenReader(source, dropout=config.dropout)
    writes = TokenWriter(TokenReader(target, dropout=config.dropout), output, label_smoothing=label_smoothing)
    return Model(reads, build_core(config.core, dropout=config.dropout), writes)
