"""Construction of cores and models from their configs."""

from collections.abc import Callable
from functools import partial

from torch import nn

from regard.layers.pool import AttentionPooling
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.quantized import QuantizedAutoencoder
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
from regard.models.naive_bayes import NaiveBayesClassifier
from regard.models.readers.images import ImageReader
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.readers.tracks import TrackReader
from regard.models.tagger import Tagger
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import TagWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import TrackWriter
from regard.models.writers.vector import VectorWriter


def build_core(
    config: CoreConfig,
    *,
    dropout: float = 0.0,
    encodes: bool = True,
    decodes: bool = True,
    in_order: bool = True,
) -> Core:
    """Build the core of a config.

    encodes, decodes: False omits the encoder or the decoder.
    in_order: True to decode targets in order, False to decode sets of queries.
    """
    parts = {"dropout": dropout, "encodes": encodes, "decodes": decodes, "in_order": in_order}
    if isinstance(config, TransformerConfig):
        return TransformerCore(config, **parts)
    if isinstance(config, RecurrentConfig):
        return RecurrentCore(config, **parts)
    if isinstance(config, SelfAttentiveConfig):
        return SelfAttentiveCore(config, **parts)
    raise TypeError(f"config must be that of a core (regard.models.config), got {type(config).__name__}")


def compose(
    reads: nn.Module, core: Core, writes: nn.Module, *, pool_heads: int = 1, kernel: str = "auto"
) -> Model | Classifier | Tagger | Forecaster | Detector:
    """Compose a model of a reader, a core and a writer. The class of the writer determines the model:

        TokenWriter      Model: the decoder, autoregressively                (needs a core that decodes)
        TagWriter        Tagger: the encoder, with a prediction for every item
        SetWriter        Detector: the decoder, all queries in parallel      (needs a core built with in_order=False)
        TrackWriter      Forecaster, with a TrackReader: the encoder, with a prediction for the ego agent
        VectorWriter     Classifier: the encoder, pooled by a learned query with `pool_heads` heads

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
        return Classifier(reads, core, AttentionPooling(core.memory_dim, num_heads=pool_heads, kernel=kernel), writes)
    raise TypeError(f"writes must be a writer (regard.models.writers), got {type(writes).__name__}")


def build(
    config: ModelConfig,
    *,
    source_vocab: int,
    target_vocab: int,
    label_smoothing: float = 0.0,
    grid: tuple[int, int] | None = None,
) -> Model:
    """Build an encoder-decoder model for vocabularies of these sizes, with weights drawn from torch's generator.

    grid:   (rows, columns) if the targets are a grid of tokens, row by row (GridModel).
    Raises: ValueError if tie is all and the vocabularies differ in size.
    """
    if config.tie == "all" and source_vocab != target_vocab:
        raise ValueError(
            f"source_vocab and target_vocab must be equal with tie=all, got {source_vocab} and {target_vocab}"
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
    """Build a causal language model, with weights drawn from torch's generator."""
    core = build_core(config.core, dropout=config.dropout, encodes=False)
    table = embedding_table(vocab, config.core.width)
    return LanguageModel(TokenReader(table, dropout=config.dropout), core)


def build_forecaster(config: EncoderConfig, *, observed: int, predicted: int) -> Forecaster:
    """Build a forecaster of tracks, with weights drawn from torch's generator."""
    reads = TrackReader(observed, config.core.width)
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    return Forecaster(reads, core, TrackWriter(core.memory_dim, predicted, dropout=config.dropout))


def build_tagger(config: EncoderConfig, *, vocab: int, num_tags: int, label_smoothing: float = 0.0) -> Tagger:
    """Build a tagger of tokens, with weights drawn from torch's generator."""
    reads = TokenReader(embedding_table(vocab, config.core.width), dropout=config.dropout)
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    writes = TagWriter(core.memory_dim, num_tags, dropout=config.dropout, label_smoothing=label_smoothing)
    return Tagger(reads, core, writes)


def build_classifier(
    config: ClassifierConfig, *, vocab: int, writes: Callable[[int], VectorWriter], ratio_kinds: int = 0
) -> Classifier:
    """Build a classifier or regressor of texts, with weights drawn from torch's generator.

    writes:      returns the writer for vectors of a given size; must be a ClassWriter with ratio_kinds.
    ratio_kinds: number of kinds of log-count ratios that come with the texts (NaiveBayesClassifier); 0: none.
    """
    reads = TokenReader(embedding_table(vocab, config.core.width), dropout=config.dropout)
    kind = partial(NaiveBayesClassifier, kinds=ratio_kinds) if ratio_kinds else Classifier
    return _classifier(config, reads, writes, kind)


def build_image_classifier(
    config: ClassifierConfig,
    *,
    shape: tuple[int, int, int],
    writes: Callable[[int], VectorWriter],
    patch: int | None = None,
) -> Classifier:
    """Build a classifier or regressor of images of shape (channels, height, width); see `build_classifier`."""
    return _classifier(config, ImageReader(shape, config.core.width, patch=patch, dropout=config.dropout), writes)


def build_autoencoder(config: AutoencoderConfig, shape: tuple[int, int, int]) -> Autoencoder | QuantizedAutoencoder:
    """Build the autoencoder of a config for images of (channels, height, width)."""
    return QuantizedAutoencoder(config, shape) if config.kind == "quantized" else Autoencoder(config, shape)


def build_detector(config: DetectorConfig, reads: nn.Module, *, num_classes: int, axes: int) -> Detector:
    """Build a detector of regions of `axes` axes in the input of `reads`, with weights drawn from torch's generator."""
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
        nms_threshold=config.nms_threshold,
    )
    return Detector(reads, core, writes)


def _classifier(
    config: ClassifierConfig,
    reads: nn.Module,
    writes: Callable[[int], VectorWriter],
    kind: Callable[..., Classifier] = Classifier,
) -> Classifier:
    core = build_core(config.core, dropout=config.dropout, decodes=False)
    pool = AttentionPooling(core.memory_dim, num_heads=config.pool_heads, kernel=config.core.kernel)
    return kind(reads, core, pool, writes(core.memory_dim))
