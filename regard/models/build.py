"""From sizes to a model."""

from collections.abc import Callable
from functools import partial

from torch import nn

from regard.layers.pool import Pool
from regard.models.autoencoder import Autoencoder
from regard.models.classifier import Classifier
from regard.models.config import (
    AutoencoderConfig,
    ClassifierConfig,
    CoreConfig,
    DetectorConfig,
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.cores.core import Core
from regard.models.cores.recurrent import RecurrentCore
from regard.models.cores.self_attentive import SelfAttentiveCore
from regard.models.cores.transformer import TransformerCore
from regard.models.detector import Detector
from regard.models.forecaster import Forecaster
from regard.models.grid import GridModel
from regard.models.language import LanguageModel
from regard.models.model import Model
from regard.models.opinionated import Opinionated
from regard.models.quantized import QuantizedAutoencoder
from regard.models.reads.images import ImageReader
from regard.models.reads.tokens import TokenReader, embedding_table
from regard.models.reads.tracks import TrackReader
from regard.models.tagger import Tagger
from regard.models.writes.sets import SetWriter
from regard.models.writes.tags import TagWriter
from regard.models.writes.tokens import TokenWriter
from regard.models.writes.tracks import TrackWriter
from regard.models.writes.vector import VectorWriter


def build_core(
    config: CoreConfig,
    *,
    dropout: float = 0.0,
    encodes: bool = True,
    decodes: bool = True,
    in_order: bool = True,
) -> Core:
    """The core that the config names; its encoder alone, unless it decodes; its decoder alone, unless it encodes.

    in_order: whether it decodes targets in order, or sets of queries.
    """
    parts = {"dropout": dropout, "encodes": encodes, "decodes": decodes, "in_order": in_order}
    if isinstance(config, TransformerConfig):
        return TransformerCore(config, **parts)
    if isinstance(config, RecurrentConfig):
        return RecurrentCore(config, **parts)
    if isinstance(config, SelfAttentiveConfig):
        return SelfAttentiveCore(config, **parts)
    raise TypeError(f"core must be the configuration of a core, but is {type(config).__name__}")


def compose(
    reads: nn.Module, core: Core, writes: nn.Module, *, pool_heads: int = 1, kernel: str = "auto"
) -> Model | Classifier | Tagger | Forecaster | Detector:
    """One model of a reader, a core and a writer: what is written decides how the core is asked.

        a sequence       its decoder, token after token            (needs a core that decodes)
        tags             its encoder, for every item
        a set            its decoder, all queries at once          (needs a core built with in_order=False)
        a vector's       its encoder, by one learned query with `pool_heads` heads; for tracks that were read, by one's
                         own item

    The writer's dim is core.width for a sequence or a set, else core.memory_dim. Raises TypeError for another writer.
    """
    if isinstance(writes, TokenWriter):
        return Model(reads, core, writes)
    if isinstance(writes, TagWriter):
        return Tagger(reads, core, writes)
    if isinstance(writes, SetWriter):
        return Detector(reads, core, writes)
    if isinstance(writes, TrackWriter) and isinstance(reads, TrackReader):
        return Forecaster(reads, core, writes)
    if isinstance(writes, VectorWriter):
        return Classifier(reads, core, Pool(core.memory_dim, num_heads=pool_heads, kernel=kernel), writes)
    raise TypeError(f"writes must be a writer (regard.models.writes), but is {type(writes).__name__}")


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
    reads = TrackReader(observed, config.core.width)
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    return Forecaster(reads, core, TrackWriter(core.memory_dim, predicted, dropout=config.dropout))


def build_tagger(config: EncoderConfig, *, vocab: int, num_tags: int, label_smoothing: float = 0.0) -> Tagger:
    """A tagger of the tokens of a vocabulary, with fresh weights from torch's generator."""
    reads = TokenReader(embedding_table(vocab, config.core.width), dropout=config.dropout)
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    writes = TagWriter(core.memory_dim, num_tags, dropout=config.dropout, label_smoothing=label_smoothing)
    return Tagger(reads, core, writes)


def build_classifier(
    config: ClassifierConfig, *, vocab: int, writes: Callable[[int], VectorWriter], opinions: int = 0
) -> Classifier:
    """A model that answers each text of a vocabulary, with fresh weights from torch's generator.

    writes(dim): what it answers: the writer of vectors of this size; of classes, if
    texts come with opinions of so many kinds (regard.models.opinionated).
    """
    reads = TokenReader(embedding_table(vocab, config.core.width), dropout=config.dropout)
    return _classifier(config, reads, writes, partial(Opinionated, kinds=opinions) if opinions else Classifier)


def build_image_classifier(
    config: ClassifierConfig,
    *,
    shape: tuple[int, int, int],
    writes: Callable[[int], VectorWriter],
    patch: int | None = None,
) -> Classifier:
    """The same of images of (channels, height, width)."""
    return _classifier(config, ImageReader(shape, config.core.width, patch=patch, dropout=config.dropout), writes)


def build_autoencoder(config: AutoencoderConfig, shape: tuple[int, int, int]) -> Autoencoder | QuantizedAutoencoder:
    """An autoencoder of its kind for images of (channels, height, width), with fresh weights from torch's generator."""
    return QuantizedAutoencoder(config, shape) if config.kind == "quantized" else Autoencoder(config, shape)


def build_detector(config: DetectorConfig, reads: nn.Module, *, num_classes: int, axes: int) -> Detector:
    """A detector of regions of so many axes in what `reads` reads, with fresh weights from torch's generator."""
    core = build_core(config.core, dropout=config.dropout, in_order=False)
    blocks = 1
    if isinstance(config.core, TransformerConfig):
        blocks = config.core.layers if config.core.decoder_layers is None else config.core.decoder_layers
    writes = SetWriter(
        config.core.width,
        num_classes,
        axes=axes,
        num_queries=config.num_queries,
        blocks=blocks,
        proposing_dim=core.memory_dim if config.queries == "proposed" else None,
        overlap=config.overlap,
    )
    return Detector(reads, core, writes)


def _classifier(
    config: ClassifierConfig,
    reads: nn.Module,
    writes: Callable[[int], VectorWriter],
    kind: Callable[..., Classifier] = Classifier,
) -> Classifier:
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    pool = Pool(core.memory_dim, num_heads=config.pool_heads, kernel=config.core.kernel)
    return kind(reads, core, pool, writes(core.memory_dim))
