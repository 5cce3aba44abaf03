"""Construction of cores and models from their configs, with weights drawn from torch's generator.

Weights are drawn in the order of construction, so that the order of the lines of each function is
part of its results.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from torch import nn

from regard.attention.scores import ScaledDot
from regard.errors import UserError
from regard.layers.pool import AttentionPooling, ClassToken, FirstItem, LastItem, MeanPooling
from regard.layers.positions.grid import GridPositions
from regard.layers.positions.rotary import GridRotary
from regard.models.config import (
    ClassifierConfig,
    DetectorConfig,
    ForecasterConfig,
    LanguageModelConfig,
    ModelConfig,
    TaggerConfig,
    TokenModelConfig,
)
from regard.models.cores.config import (
    CoreConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
    directions_of,
)
from regard.models.cores.core import Core, create_choice
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from regard.models.readers.reader import Reader
from regard.models.readers.tokens import TokenReader, embedding_projection, embedding_table
from regard.models.readers.tracks import SceneTrackReader, TrackReader
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import TagWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import SceneTrackWriter, TrackWriter
from regard.models.writers.vector import VectorWriter

CORES: dict[type, Callable[..., Core]] = {
    TransformerConfig: Transformer,
    RecurrentConfig: Recurrent,
    SelfAttentiveConfig: SelfAttentive,
}
"""The core of each config."""
_UNSCALED_STD = 0.02
"""Standard deviation of embeddings that are not scaled: radford2018, section 4.1."""
ReaderT = TypeVar("ReaderT", bound=TokenReader)
Parts = Mapping[str, Any]
"""Parts of one's own by name, in place of those of the config: of a core, those that Transformer
takes; writer, called as the writer of the model."""
NO_PARTS: Parts = {}
_OF_TRANSFORMERS = ("score", "choice", "norm", "positions", "feedforward", "attention")


def build_core(config: CoreConfig, parts: Parts = NO_PARTS, **options: Any) -> Core:
    """Build the core of a config. options: dropout, encodes, decodes and in_order of Core.

    Raises: UserError for parts of another name, or of a core that is no Transformer.
    """
    own = {name: part for name, part in parts.items() if name != "writer"}
    for name in own:
        if name not in _OF_TRANSFORMERS:
            known = ", ".join((*_OF_TRANSFORMERS, "writer"))
            raise UserError(f"`parts` of a recipe must be among {known}, got {name!r}")
    if own and not isinstance(config, TransformerConfig):
        needed = f"--model.core must be transformer for the parts {', '.join(own)} of this recipe"
        raise UserError(f"{needed}, got {config.name}")
    return CORES[type(config)](config, **options, **own)


def build(
    config: ModelConfig,
    *,
    source_vocab: int,
    target_vocab: int,
    label_smoothing: float = 0.0,
    grid: tuple[int, int] | None = None,
    parts: Parts = NO_PARTS,
) -> Model:
    """Build an encoder-decoder model for vocabularies of these sizes.

    grid:   (rows, columns) if the targets are a grid of tokens, row by row (GridPositions).
    Raises: ValueError if tie is all and the vocabularies differ in size.
    """
    reader = build_token_reader(config, source_vocab)
    if config.tie != "all":
        inputs = build_token_reader(config, target_vocab)
    elif source_vocab == target_vocab:
        inputs = TokenReader(
            reader.table, scale=_scale(config), projection=reader.projection, dropout=config.dropout
        )
    else:
        raise ValueError(
            f"source_vocab and target_vocab must be equal with tie=all, got {source_vocab} and "
            f"{target_vocab}"
        )
    options = {"label_smoothing": label_smoothing, "grid": grid, "parts": parts}
    return _with_token_writer(config, reader, inputs, **options)


def build_captioner(
    config: ModelConfig,
    reader: Reader,
    *,
    vocab: int,
    label_smoothing: float = 0.0,
    parts: Parts = NO_PARTS,
) -> Model:
    """Build a model that writes tokens about another input. Raises: ValueError if tie is all."""
    if config.tie == "all":
        raise ValueError("tie must be target or none for a source without tokens, got all")
    inputs = build_token_reader(config, vocab)
    options = {"label_smoothing": label_smoothing, "parts": parts}
    return _with_token_writer(config, reader, inputs, **options)


def build_language_model(
    config: LanguageModelConfig, *, vocab: int, parts: Parts = NO_PARTS
) -> Model:
    """Build a causal language model."""
    core = build_core(config.core, parts, dropout=config.dropout, encodes=False)
    inputs = build_token_reader(config, vocab)
    output = inputs if config.tie == "target" else build_token_reader(config, vocab)
    writer = parts.get("writer", TokenWriter)(
        inputs, output.table, output_projection=output.projection, output_bias=config.output_bias
    )
    return Model(reader=None, core=core, writer=writer)


def _with_token_writer(
    config: ModelConfig,
    reader: Reader,
    inputs: TokenReader,
    *,
    label_smoothing: float,
    grid: tuple[int, int] | None = None,
    parts: Parts,
) -> Model:
    output = inputs
    if config.tie == "none":
        output = build_token_reader(config, inputs.table.num_embeddings)
    core = build_core(config.core, parts, dropout=config.dropout)
    positions = None if grid is None else GridPositions(grid, config.core.width)
    writer = parts.get("writer", TokenWriter)(
        inputs,
        output.table,
        output_projection=output.projection,
        output_bias=config.output_bias,
        positions=positions,
        label_smoothing=label_smoothing,
    )
    return Model(reader=reader, core=core, writer=writer)


def build_forecaster(
    config: ForecasterConfig, *, observed: int, predicted: int, parts: Parts = NO_PARTS
) -> Model:
    """Build a forecaster of tracks, of one agent at a time or jointly (ForecasterConfig.joint)."""
    read, write = TrackReader, TrackWriter
    if config.joint:
        read, write = SceneTrackReader, SceneTrackWriter
    reader = read(observed, config.core.width, changes=config.changes)
    core = build_core(config.core, parts, dropout=config.dropout, decodes=False)
    write = parts.get("writer", write)
    writer = write(core.memory_dim, predicted, dropout=config.dropout, paths=config.paths)
    return Model(reader=reader, core=core, writer=writer)


def build_tagger(
    config: TaggerConfig,
    *,
    vocab: int,
    num_tags: int,
    label_smoothing: float = 0.0,
    parts: Parts = NO_PARTS,
) -> Model:
    """Build a tagger of tokens."""
    reader = build_token_reader(config, vocab)
    core = build_core(config.core, parts, dropout=config.dropout, decodes=False)
    writer = parts.get("writer", TagWriter)(
        core.memory_dim,
        num_tags,
        norm=config.head_norm,
        head=config.head,
        bias=config.head_bias,
        dropout=config.dropout,
        label_smoothing=label_smoothing,
    )
    return Model(reader=reader, core=core, writer=writer)


def build_classifier(
    config: ClassifierConfig,
    reader: Reader,
    writer: Callable[[int, nn.Module], VectorWriter],
    *,
    parts: Parts = NO_PARTS,
) -> Model:
    """Build a classifier or regressor; writer: creates it from the size of vectors and the pool."""
    core = build_core(config.core, parts, dropout=config.dropout, decodes=False)
    dim, pool = core.memory_dim, config.pool
    if pool == "attention":
        heads = config.pool_heads or 4
        pooling: nn.Module = AttentionPooling(
            dim,
            num_heads=heads,
            choice=create_choice(config.pool_query, ScaledDot(), heads),
            kernel=config.core.kernel,
        )
    elif pool == "first":
        pooling = ClassToken(core.width, distillation=config.distillation_token)
    elif pool in ("first-mean", "first-distillation"):
        also: Any = pool.removeprefix("first-")
        pooling = ClassToken(core.width, distillation=config.distillation_token, also=also)
    elif pool == "cls":
        pooling = FirstItem()
    elif pool == "mean":
        pooling = MeanPooling()
    else:
        pooling = LastItem(directions=directions_of(config.core) or 1)
    _set_grid(core, reader, first=pooling.count if isinstance(pooling, ClassToken) else 0)
    writer = parts.get("writer", writer)
    return Model(reader=reader, core=core, writer=writer(dim, pooling))


def build_detector(
    config: DetectorConfig,
    reader: Reader,
    *,
    num_classes: int,
    axes: int,
    parts: Parts = NO_PARTS,
) -> Model:
    """Build a detector of regions of `axes` axes in the input of `reader`.

    Proposals need the places of the items: `centers` of the reader, or of each row (PointReader).
    """
    core = build_core(config.core, parts, dropout=config.dropout, in_order=False)
    _set_grid(core, reader)
    points = reader if isinstance(reader, PointReader) else None
    proposals: dict[str, Any] = {}
    if config.queries == "proposed":
        proposals = {
            "centers": reader.centers if points is None else "items",
            "memory_dim": core.memory_dim,
            "nms_threshold": config.nms_threshold,
            "margin": None if points is None else points.margin,
        }
    writer = parts.get("writer", SetWriter)(
        core.width,
        num_classes,
        axes=axes,
        num_queries=config.num_queries,
        blocks=core.set_outputs,
        **proposals,
    )
    return Model(reader=reader, core=core, writer=writer)


def _set_grid(core: Core, reader: Reader, *, first: int = 0) -> None:
    """Set the grid of positions that need one, behind the first items.

    Raises: UserError for a reader of other items.
    """
    positions = getattr(core, "positions", None)
    if isinstance(positions, GridRotary):
        grid = reader.grid if isinstance(reader, ImageReader) else None
        if grid is None:
            raise UserError("--model.core.positions must not be rotary-2d but for images")
        positions.grid, positions.first = grid, first


def build_token_reader(
    config: TokenModelConfig, vocab: int, kind: type[ReaderT] = TokenReader
) -> ReaderT:
    """Build a reader of token ids with embeddings of its own."""
    width, scale = config.core.width, _scale(config)
    dim = config.embedding_dim or width
    table = embedding_table(vocab, dim, std=_UNSCALED_STD if scale == "one" else None)
    projection = None if dim == width else embedding_projection(dim, width)
    return kind(table, scale=scale, projection=projection, dropout=config.dropout)


def _scale(config: TokenModelConfig) -> Literal["root", "one"]:
    """Return the scale of the embeddings; if it is not given, that of the source of the model."""
    is_gpt = isinstance(config, LanguageModelConfig) and isinstance(config.core, TransformerConfig)
    return config.embedding_scale or ("one" if is_gpt else "root")
