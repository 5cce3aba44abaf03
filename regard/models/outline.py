"""Outline of a model as encoder, predictor and decoder: its stages, and the shapes of results.

Symbols are those of regard.models.model. Source: lectures, E.11 (encoder-predictor-decoder).
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from torch import Tensor, nn

from regard.layers.pool import AttentionPooling, ClassToken
from regard.layers.positions.base import PositionalEncoding
from regard.models.autoencoders.autoencoder import AutoencoderBase
from regard.models.autoencoders.latent import STEPS, LatentVariableModel
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.model import Model
from regard.models.parts import Block, Operation, core_blocks, positions_name
from regard.models.readers.reader import Shape


class Stage(NamedTuple):
    """One step of a model, and its result."""

    part: Literal["input", "encoder", "predictor", "decoder"]
    name: str
    """Class of a module, or the name of the input."""
    detail: str
    symbol: str
    """Symbol of the result in the lectures; empty if it has none."""
    shape: Shape
    blocks: tuple[Block, ...] = ()
    """Inside of a core; empty if it is not known."""
    reads: str = ""
    """h^Enc if the stage reads it, other than by a part of its blocks."""


class Outline(NamedTuple):
    """Stages of a model: those from the source to h^Enc, and those from the queries to y~."""

    encoding: tuple[Stage, ...]
    """Empty for a model without a reader."""
    predicting: tuple[Stage, ...]
    """With a decoder in order, the first two are its inputs: in training, and in inference."""

    def lines(self) -> list[str]:
        rows = []
        for stage in (*self.encoding, *self.predicting):
            shape = format_shape(stage.shape)
            rows.append((stage.part, stage.name, stage.detail, stage.symbol, shape))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for stage, row in zip((*self.encoding, *self.predicting), rows, strict=True):
            lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
            for block in stage.blocks:
                lines += (" " * (widths[0] + 4) + line for line in block.lines())
        return lines


def format_shape(shape: Shape) -> str:
    """Return a shape as text: (batch, source, 128)."""
    return f"({', '.join(map(str, shape))})"


def outline(model: nn.Module) -> Outline:
    """Return the outline of a Model or an autoencoder. Raises: TypeError for another module."""
    if isinstance(model, AutoencoderBase):
        return _outline_autoencoder(model)
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a Model or an autoencoder, got {type(model).__name__}")
    reader, core, writer = model.reader, model.core, model.writer
    encoder, decoder = [], []  # parameters of the core
    for name, value in core.named_parameters():
        is_encoder = name.startswith("encoder") or not core.decodes
        (encoder if is_encoder else decoder).append(value)
    encoded: Shape = ()
    encoding: tuple[Stage, ...] = ()
    if reader is not None:
        source, items = reader.shapes()
        before, blocks = items[:-1], core_blocks(core, "encoder")
        pool = getattr(writer, "pool", None)
        if isinstance(pool, ClassToken):
            count, own = before[-1], pool.count
            before = (*before[:-1], count + own if isinstance(count, int) else f"{own} + {count}")
            token = Operation("class token", "a learned item before the others", (0,))
            blocks = (Block("", 1, (token,)), *blocks)
        encoded = (*before, core.memory_dim)
        detail = _stack(core.num_layers("encoder"), encoder)
        encoding = (
            Stage("input", "source", "", "x", source),
            Stage("encoder", type(reader).__name__, _describe([reader]), "", items),
            Stage("encoder", type(core).__name__, detail, "h^Enc", encoded, blocks),
        )
    hidden, answer = writer.shapes(encoded)
    predicting: list[Stage] = []
    if writer.part == "decoder":
        shape = ("batch", "target")
        detail = "delayed by one (z^-1), in training"
        predicting.append(Stage("input", "targets", detail, "y", shape))
        detail = "fed back (z^-1), in inference"
        predicting.append(Stage("input", "predictions", detail, "y~", ("batch", 1)))
    elif writer.part == "set":
        source = "h^Enc" if getattr(writer, "proposes", False) else ""
        predicting.append(Stage("input", writer.queries_kind, "", "", hidden, reads=source))
    # The modules of the writer that belong to the predictor: an embedding of targets, or a pool.
    parts = writer.predictor_modules()
    counted = list(nn.ModuleList(parts).parameters())
    if parts:
        symbol = "h^Dec" if writer.part == "encoder" else ""
        source = "h^Enc" if writer.part == "encoder" else ""
        name, detail = type(parts[0]).__name__, _describe(parts)
        predicting.append(Stage("predictor", name, detail, symbol, hidden, reads=source))
    if writer.part != "encoder":
        detail = _stack(core.num_layers("decoder"), decoder)
        blocks = core_blocks(core, "decoder")
        source = "h^Enc" if core.encodes and not blocks else ""
        predicting.append(
            Stage("predictor", type(core).__name__, detail, "h^Dec", hidden, blocks, source)
        )
    size = _count(writer.parameters(), without=counted) or "its table is that of the embedding"
    predicting.append(Stage("decoder", type(writer).__name__, size, "y~", answer))
    return Outline(encoding, tuple(predicting))


def _outline_autoencoder(model: AutoencoderBase) -> Outline:
    shape: Shape = ("batch", *model.shape)
    decoding: list[Stage] = []
    encoding = [Stage("input", "image" if len(shape) == 4 else "vector", "", "y", shape)]
    if isinstance(model, LatentVariableModel):
        search = f"lowest energy of {STEPS} angles, refined"
        encoding.append(Stage("encoder", "minimization", search, "z", ("batch", 1)))
        if model.conditions:
            decoding.append(Stage("input", "condition", "", "x", ("batch", model.conditions)))
    elif isinstance(model, QuantizedAutoencoder):
        entries, size = model.codebook.cluster_sums.shape
        detail = f"{entries:,} entries of size {size}"
        code: Shape = ("batch", *model.grid)
        vectors: Shape = ("batch", size, *model.grid)
        count = _count(model.encoder.parameters())
        encoding.append(Stage("encoder", "convolutions", count, "z", vectors))
        encoding.append(Stage("encoder", type(model.codebook).__name__, detail, "h", code))
    else:
        code = ("batch", model.numbers)
        count = _count(model.encoder.parameters())
        encoding.append(Stage("encoder", _layers_of(model.encoder), count, "h", code))
    count = _count(model.decoder.parameters())
    name = _layers_of(model.decoder)
    decoding.append(Stage("decoder", name, count, "y~", shape, reads="z" if decoding else ""))
    return Outline(tuple(encoding), tuple(decoding))


def _describe(modules: list[nn.Module]) -> str:
    """Return positions and queries of readers or pools, and the number of parameters."""
    parts = nn.ModuleList(modules)
    details = []
    for part in parts.modules():
        if isinstance(part, PositionalEncoding):
            details.append(f"+ {positions_name(part)}")
        elif isinstance(part, AttentionPooling):
            details.append("a learned query")
    return ", ".join(filter(None, (*details, _count(parts.parameters()))))


def _layers_of(part: nn.Module) -> str:
    kinds = nn.Conv2d | nn.ConvTranspose2d
    is_convolutional = any(isinstance(layer, kinds) for layer in part.modules())
    return "convolutions" if is_convolutional else "linear layers"


def _count(parameters: Iterable[Tensor], *, without: Iterable[Tensor] = ()) -> str:
    """Return the number of different parameters that are not in others; empty for none."""
    count = sum(value.numel() for value in set(parameters) - set(without))
    return f"{count:,} parameters" if count else ""


def _stack(num_layers: int, parameters: Iterable[Tensor]) -> str:
    layers = f"{num_layers} layer" + ("s" if num_layers > 1 else "")
    return ", ".join(filter(None, (layers if num_layers else "", _count(parameters))))
