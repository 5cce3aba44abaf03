"""From sizes to a model."""

from torch import nn

from regard.layers.pool import Pool
from regard.models.autoencoder import Autoencoder
from regard.models.classifier import Classifier
from regard.models.config import (
    AutoencoderConfig,
    ClassifierConfig,
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from regard.models.cores.core import Core
from regard.models.cores.recurrent import RecurrentCore
from regard.models.cores.transformer import TransformerCore
from regard.models.forecaster import Forecaster
from regard.models.grid import GridModel
from regard.models.language import LanguageModel
from regard.models.model import Model
from regard.models.quantised import QuantisedAutoencoder
from regard.models.reads.images import ImageReader
from regard.models.reads.tokens import TokenReader, embedding_table
from regard.models.writes.classes import ClassWriter
from regard.models.writes.tokens import TokenWriter

__all__ = [
    "build",
    "build_autoencoder",
    "build_classifier",
    "build_core",
    "build_forecaster",
    "build_image_classifier",
    "build_language_model",
]


def build_core(
    config: TransformerConfig | RecurrentConfig, *, dropout: float = 0.0, encodes: bool = True, decodes: bool = True
) -> Core:
    """The core that the config names; its encoder alone, unless it decodes; its decoder alone, unless it encodes."""
    if isinstance(config, TransformerConfig):
        return TransformerCore(config, dropout=dropout, encodes=encodes, decodes=decodes)
    if isinstance(config, RecurrentConfig):
        return RecurrentCore(config, dropout=dropout, encodes=encodes, decodes=decodes)
    raise TypeError(f"core must be a TransformerConfig or a RecurrentConfig, but is {type(config).__name__}")


def build(
    config: ModelConfig,
    *,
    source_vocab: int,
    target_vocab: int,
    label_smoothing: float = 0.0,
    grid: tuple[int, int] | None = None,
) -> Model:
    """A text-to-text model for vocabularies of these sizes, with fresh weights from torch's generator.

    grid:   (rows, columns) if what is written is a grid, row by row, whose places the model should know.
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
    core = build_core(config.core, dropout=config.dropout)
    return Model(reads, core, writes) if grid is None else GridModel(reads, core, writes, grid)


def build_language_model(config: LanguageModelConfig, *, vocab: int) -> LanguageModel:
    """A language model for a vocabulary, with fresh weights from torch's generator."""
    core = build_core(config.core, dropout=config.dropout, encodes=False)
    table = embedding_table(vocab, config.core.width)
    return LanguageModel(TokenReader(table, dropout=config.dropout), core)


def build_forecaster(config: EncoderConfig, *, observed: int, predicted: int) -> Forecaster:
    """A forecaster of tracks, with fresh weights from torch's generator."""
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    return Forecaster(core, observed=observed, predicted=predicted, dropout=config.dropout)


def build_classifier(
    config: ClassifierConfig, *, num_classes: int, vocab: int, label_smoothing: float = 0.0
) -> Classifier:
    """A text classifier for a vocabulary and a number of classes, with fresh weights from torch's generator."""
    reads = TokenReader(embedding_table(vocab, config.core.width), dropout=config.dropout)
    return _classifier(config, reads, num_classes, label_smoothing)


def build_image_classifier(
    config: ClassifierConfig,
    *,
    shape: tuple[int, int, int],
    num_classes: int,
    patch: int | None = None,
    label_smoothing: float = 0.0,
) -> Classifier:
    """An image classifier for images of (channels, height, width), with fresh weights from torch's generator."""
    reads = ImageReader(shape, config.core.width, patch=patch, dropout=config.dropout)
    return _classifier(config, reads, num_classes, label_smoothing)


def build_autoencoder(config: AutoencoderConfig, shape: tuple[int, int, int]) -> Autoencoder | QuantisedAutoencoder:
    """An autoencoder of its kind for images of (channels, height, width), with fresh weights from torch's generator."""
    return QuantisedAutoencoder(config, shape) if config.kind == "quantised" else Autoencoder(config, shape)


def _classifier(config: ClassifierConfig, reads: nn.Module, num_classes: int, label_smoothing: float) -> Classifier:
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    pool = Pool(core.memory_dim, num_heads=config.pool_heads, kernel=config.core.kernel)
    writes = ClassWriter(core.memory_dim, num_classes, dropout=config.dropout, label_smoothing=label_smoothing)
    return Classifier(reads, core, pool, writes)
