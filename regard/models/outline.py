"""Outline of a model as encoder, predictor and decoder: what is read, core, queries, what is
written, with shapes.

    h^Enc = encoder(x)              the reader, and the encoder of the core
    h^Dec = predictor(y, h^Enc)     queries (the target delayed by one, or learned), and the core's
    decoder or a pool y~    = decoder(h^Dec)          the writer

Axes whose size varies have names: batch, source, target. `regard look RUN --model` prints or draws
an outline.

Source: lectures, E.11 (encoder-predictor-decoder).
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from torch import nn

from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.cores.core import Core
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from regard.models.readers.reader import Reader
from regard.models.readers.series import SeriesReader
from regard.models.readers.sound import FrameReader
from regard.models.readers.tracks import TrackReader
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import TagWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import TrackWriter
from regard.models.writers.vector import VectorWriter
from regard.models.writers.writer import Writer

Shape = tuple[int | str, ...]
"""Sizes of a tensor, and names of axes whose size varies."""


class Stage(NamedTuple):
    """One step of a model, and its result."""

    part: Literal["input", "encoder", "predictor", "decoder"]
    name: str
    """Class of a module, or the name of the input."""
    detail: str
    """Number of layers and parameters."""
    symbol: str
    """Symbol of the result in the lectures; empty if it has none."""
    shape: Shape
    """Shape of the result."""


class Outline(NamedTuple):
    """Stages of a model: those from the source to h^Enc, and those from the queries to y~."""

    encoding: tuple[Stage, ...]
    """Empty for a model without a reader."""
    predicting: tuple[Stage, ...]
    """The first stage of part predictor that is the core's, or else the first stage, reads
    h^Enc."""

    @property
    def joint(self) -> int:
        """Index in `predicting` of the stage that reads h^Enc."""
        parts = [stage.part for stage in self.predicting]
        return max((i for i, part in enumerate(parts) if part == "predictor"), default=0)

    def lines(self) -> list[str]:
        """Return the stages as a table of text."""
        rows = [
            (stage.part, stage.name, stage.detail, stage.symbol, format_shape(stage.shape))
            for stage in (*self.encoding, *self.predicting)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def format_shape(shape: Shape) -> str:
    """Return a shape as text: (batch, source, 128)."""
    return f"({', '.join(map(str, shape))})"


def outline(model: nn.Module) -> Outline:
    """Return the outline of a model.

    Raises: TypeError for a module that is neither a Model nor an autoencoder.
    """
    if isinstance(model, Autoencoder | QuantizedAutoencoder):
        return _outline_autoencoder(model)
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a Model or an autoencoder, got {type(model).__name__}")
    reader, core, writer = model.reader, model.core, model.writer
    encoded: Shape = ()
    encoding: tuple[Stage, ...] = ()
    if reader is not None:
        source, items = _reader_shapes(reader)
        encoded = (*items[:-1], core.memory_dim)
        encoding = (
            Stage("input", "source", "", "x", source),
            Stage("encoder", type(reader).__name__, _parameters([reader]), "", items),
            Stage("encoder", type(core).__name__, _describe_encoder(core), "h^Enc", encoded),
        )
    hidden, answer = _writer_shapes(writer, encoded)
    predicting: list[Stage] = []
    counted: list[nn.Module] = []
    if isinstance(writer, TokenWriter):
        counted = [part for part in (writer.inputs, writer.positions) if part is not None]
        predicting += [
            Stage("input", "target, delayed by one", "", "y", ("batch", "target")),
            Stage("predictor", type(writer.inputs).__name__, _parameters(counted), "", hidden),
        ]
    elif writer.part == "decoder":
        predicting.append(Stage("input", "target, delayed by one", "", "y", ("batch", "target")))
    elif isinstance(writer, SetWriter):
        kind = "queries of the best proposals" if writer.proposes else "learned queries"
        predicting.append(Stage("input", kind, "", "", hidden))
    if writer.part != "encoder":
        predicting.append(
            Stage("predictor", type(core).__name__, _describe_decoder(core), "h^Dec", hidden)
        )
    elif isinstance(writer, VectorWriter):
        pool = writer.pool
        counted = [pool]
        predicting.append(
            Stage("predictor", type(pool).__name__, _parameters([pool]), "h^Dec", hidden)
        )
    size = _parameters([writer], without=counted) or "its table is that of the embedding"
    predicting.append(Stage("decoder", type(writer).__name__, size, "y~", answer))
    return Outline(encoding, tuple(predicting))


def _outline_autoencoder(model: Autoencoder | QuantizedAutoencoder) -> Outline:
    shape: Shape = ("batch", *model.shape)
    code: Shape = (
        ("batch", *model.grid)
        if isinstance(model, QuantizedAutoencoder)
        else ("batch", model.numbers)
    )
    name = "image" if len(model.shape) == 3 else "vector"
    encoding = [Stage("input", name, "", "y", shape)]
    if isinstance(model, QuantizedAutoencoder):
        entries = model.codebook.cluster_sums.shape
        vectors: Shape = ("batch", entries[1], *model.grid)
        encoding += [
            Stage("encoder", "convolutions", _parameters([model.encoder]), "z", vectors),
            Stage(
                "encoder",
                type(model.codebook).__name__,
                f"{entries[0]:,} entries of size {entries[1]}",
                "h",
                code,
            ),
        ]
    else:
        encoding.append(
            Stage("encoder", _layers_of(model.encoder), _parameters([model.encoder]), "h", code)
        )
    decoder = Stage("decoder", _layers_of(model.decoder), _parameters([model.decoder]), "y~", shape)
    return Outline(tuple(encoding), (decoder,))


def _layers_of(part: nn.Module) -> str:
    is_convolutional = any(
        isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in part.modules()
    )
    return "convolutions" if is_convolutional else "linear layers"


def _reader_shapes(reader: Reader) -> tuple[Shape, Shape]:
    """Return the shapes of the source and of the items."""
    width = "model" if reader.dim is None else reader.dim
    match reader:
        case ImageReader():
            return ("batch", *reader.shape), ("batch", reader.grid[0] * reader.grid[1], width)
        case FrameReader():
            return ("batch", reader.samples), ("batch", len(reader.get_buffer("centers")), width)
        case SeriesReader():
            return ("batch", "time", reader.channels), ("batch", "windows", width)
        case PointReader():
            return ("batch", "points", reader.numbers), ("batch", "groups", width)
        case TrackReader():
            return ("batch", "agents", reader.observed, 2), ("batch", "agents", width)
    return ("batch", "source"), ("batch", "source", width)


def _writer_shapes(writer: Writer, encoded: Shape) -> tuple[Shape, Shape]:
    """Return the shapes of h^Dec and of the answer, given that of h^Enc."""
    width = "model" if writer.dim is None else writer.dim
    match writer:
        case TokenWriter():
            return ("batch", "target", width), (
                "batch",
                "target",
                writer.output_table.num_embeddings,
            )
        case SetWriter():
            queries: Shape = ("batch", writer.num_queries)
            return (*queries, width), (*queries, f"{writer.num_classes} + {2 * writer.axes}")
        case TagWriter():
            return encoded, (*encoded[:-1], writer.output.out_features)
        case TrackWriter():
            return ("batch", width), ("batch", writer.predicted, 2)
        case VectorWriter():
            return ("batch", width), ("batch", writer.output.out_features)
    return ("batch", "...", width), ("batch", "...")


def _describe_encoder(core: Core) -> str:
    """Return the number of layers and of parameters of a core's encoder."""
    match core:
        case Transformer():
            layers = _count(len(core.encoder), "block")
        case RecurrentDecoderCore():
            layers = _count(getattr(core.encoder, "layers", 0), "layer")
        case _:
            layers = ""
    own = [
        value
        for name, value in core.named_parameters()
        if not core.decodes or name.startswith("encoder")
    ]
    return _join(layers, f"{sum(value.numel() for value in own):,} parameters")


def _describe_decoder(core: Core) -> str:
    """Return the number of layers and of parameters of a core's decoder."""
    match core:
        case Transformer():
            layers = _count(len(core.decoder), "block")
        case RecurrentDecoderCore():
            layers = _count(len(core.cells), "layer")
        case _:
            layers = ""
    own = [value for name, value in core.named_parameters() if not name.startswith("encoder")]
    return _join(layers, f"{sum(value.numel() for value in own):,} parameters")


def _parameters(modules: Iterable[nn.Module], *, without: Iterable[nn.Module] = ()) -> str:
    """Return the number of parameters of modules that are not in others; empty for none."""
    others = {id(value) for module in without for value in module.parameters()}
    unique = {id(value): value.numel() for module in modules for value in module.parameters()}
    count = sum(number for key, number in unique.items() if key not in others)
    return f"{count:,} parameters" if count else ""


def _count(number: int, noun: str) -> str:
    return "" if not number else f"{number} {noun}{'' if number == 1 else 's'}"


def _join(*parts: str) -> str:
    return ", ".join(filter(None, parts))
