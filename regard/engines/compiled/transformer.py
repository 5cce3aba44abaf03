"""A Transformer of this library as compiled code reads it, and which ones it can be.

Source: vaswani2017, section 3.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.choices import Soft
from regard.attention.positional import ByDistance
from regard.attention.scores import InnerProduct
from regard.engines.compiled.packed import KINDS, Heads, Products, in_panels
from regard.engines.compiled.products import multiplier
from regard.engines.compiled.tiles import FLOAT32
from regard.engines.compiled.work import (
    DECODERS,
    ENCODERS,
    FLOAT_CODE,
    HEADS,
    IS_GELU,
    IS_PRE,
    KEY_HEADS,
    SIZE,
    SIZES,
    VALUE_SIZE,
    VOCAB,
    WIDTH,
    WINDOW,
)
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.multihead import MultiHead
from regard.layers.positions import Learned, Sinusoidal, sinusoids
from regard.models.cores.transformer import TransformerCore
from regard.models.grid import GridModel
from regard.models.language import LanguageModel
from regard.models.model import Model
from regard.models.reads.tokens import TokenReader

__all__ = ["PackedTransformer", "refusal"]


def refusal(model: nn.Module) -> str | None:
    """Why compiled code cannot run a model, as the end of a sentence; None if it can."""
    if isinstance(model, GridModel) or not isinstance(model, Model | LanguageModel):
        return f"it is a {type(model).__name__}, not a model that writes a text"
    core, device = model.core, next(model.parameters()).device
    if device.type != "cpu":
        return f"its weights are on {device}, not on the CPU"
    if not isinstance(core, TransformerCore):
        return f"its core is a {type(core).__name__}, not a Transformer"
    if not isinstance(model.reads, TokenReader):
        return f"it reads by a {type(model.reads).__name__}, not tokens"
    attentions = [module for module in core.modules() if isinstance(module, MultiHead)]
    reasons = [*map(_of_block, core.encoder.children()), *map(_of_attention, attentions)]
    return next((reason for reason in reasons if reason is not None), None)


def _of_block(block: nn.Module) -> str | None:
    return None if isinstance(block, EncoderBlock) else f"its encoder has a {type(block).__name__}"


def _of_attention(attention: MultiHead) -> str | None:
    read = attention.read
    form = read.score.form(attention.query.out_features // attention.num_heads)
    if not isinstance(form, InnerProduct) or form.cap is not None:
        return f"its score is {type(read.score).__name__}, not a plain inner product"
    if not isinstance(read.choose, Soft) or not isinstance(read.choose.beta, float) or read.choose.beta != 1.0:
        return f"its choice is {read.choose}, not a plain softmax"
    if read.bias is not None and not isinstance(read.bias, ByDistance):
        return f"its scores have a {type(read.bias).__name__}"
    return None


class PackedTransformer:
    """Sizes, products, norms and embeddings of a model that is not refused."""

    def __init__(self, model: Model | LanguageModel, compute_type: str):
        core = cast("TransformerCore", model.core)
        self.core = core
        self.reads_source = isinstance(model, Model)
        inputs = model.writes.inputs if isinstance(model, Model) else model.reads
        output = model.writes.output_table.weight if isinstance(model, Model) else model.reads.table.weight
        reads = cast("TokenReader", model.reads)
        self.target = _embeddings(cast("TokenReader", inputs))
        self.source = self.target if reads.table is cast("TokenReader", inputs).table else _embeddings(reads)
        self.products, self.norms = Products(KINDS[compute_type]), []
        encoder = cast("list[EncoderBlock]", list(core.encoder.children()))
        decoder = cast("list[DecoderBlock]", list(core.decoder.children()))
        attention = decoder[0].attention
        self.heads = Heads(attention.num_heads, attention.query.out_features // attention.num_heads)
        self.key_heads = Heads(attention.key_heads, self.heads.size)
        self.value_heads = Heads(attention.key_heads, attention.value.out_features // attention.key_heads)
        for block in encoder:
            self._attention(block.attention)
            self._feedforward(block)
            self._norms(block.add_attention.norm, block.add_feedforward.norm)
        self._norms(core.encoder_norm)
        for block in decoder:
            self._attention(block.attention)
            self._feedforward(block)
            self._cross(block.cross)
            between = block.add_attention.norm if block.add_cross is None else block.add_cross.norm
            self._norms(block.add_attention.norm, between, block.add_feedforward.norm)
        self._norms(core.decoder_norm)
        self.products.add(output, None, behind=-math.inf)
        self.table = self.products.table()
        self.sizes = self._sizes(encoder, decoder, len(output))
        mapped = self.heads.count * self.heads.padded
        mapped += self.key_heads.count * (self.key_heads.padded + self.value_heads.padded)
        self.widest_mapped = in_panels(mapped)
        self.widest_hidden = in_panels(decoder[0].feedforward.expand.out_features)

    def _sizes(self, encoder: list[EncoderBlock], decoder: list[DecoderBlock], vocab: int) -> np.ndarray:
        sizes = np.zeros(SIZES, np.int64)
        block = decoder[0]
        sizes[[ENCODERS, DECODERS, WIDTH, VOCAB]] = len(encoder), len(decoder), self.core.width, vocab
        sizes[[HEADS, KEY_HEADS]] = self.heads.count, self.key_heads.count
        sizes[[SIZE, VALUE_SIZE]] = self.heads.padded, self.value_heads.padded
        sizes[IS_PRE] = block.add_attention.order == "pre"
        sizes[IS_GELU] = block.feedforward.activation == "gelu"
        sizes[WINDOW] = block.window or 0
        sizes[FLOAT_CODE] = multiplier[FLOAT32]()
        return sizes

    @property
    def most_places(self) -> int | None:
        """Learned positions that there are; None where any number of items has a position."""
        module = self.core.positions
        return len(module.weight) if isinstance(module, Learned) else None

    def check_ids(self, ids: Sequence[int], what: str, *, are_sources: bool) -> None:
        """Compiled code looks at no bounds.

        Raises: ValueError for an id that is not in the vocabulary.
        """
        vocab = len(self.source if are_sources else self.target)
        outside = next((index for index in ids if not 0 <= index < vocab), None)
        if outside is not None:
            raise ValueError(f"ids must lie in 0 .. {vocab - 1}, got {outside} in {what}")

    def check_places(self, count: int) -> None:
        """Nor at these.

        Raises: ValueError for more places than there are learned positions.
        """
        if self.most_places is not None and count > self.most_places:
            raise ValueError(f"there are {self.most_places} learned positions, but position {count} was asked for")

    def positions(self, count: int) -> np.ndarray:
        """What is added to embeddings at the first `count` places; learned ones are all there are."""
        module, width = self.core.positions, self.core.width
        if isinstance(module, Sinusoidal):
            return sinusoids(0, count, width).numpy()
        if isinstance(module, Learned):
            return _array(module.weight)
        return np.zeros((0, width), np.float32)

    def around(self, reach: int) -> np.ndarray:
        """(heads, 2 reach + 1): what the encoder's scores get, by place of key less place of query."""
        blocks = cast("list[EncoderBlock]", list(self.core.encoder.children()))
        return self._bias(blocks[0].attention if blocks else None, torch.arange(-reach, reach + 1))

    def behind(self, reach: int) -> np.ndarray:
        """(heads, reach + 1): what the decoder's scores get, by how far back the key is."""
        blocks = cast("list[DecoderBlock]", list(self.core.decoder.children()))
        return self._bias(blocks[0].attention, -torch.arange(reach + 1))

    def _bias(self, attention: MultiHead | None, distance: Tensor) -> np.ndarray:
        bias = None if attention is None else attention.read.bias
        if bias is None:
            return np.zeros((self.heads.count, 0), np.float32)
        device = next((tensor.device for tensor in (*bias.parameters(), *bias.buffers())), distance.device)
        with torch.no_grad():
            found = cast("Any", bias).at(distance.to(device), torch.float32)
        return _array(found.expand(self.heads.count, -1))

    def _query(self, attention: MultiHead) -> tuple[Tensor, Tensor]:
        form = attention.read.score.form(self.heads.size)
        assert isinstance(form, InnerProduct)
        return _both(attention.query, self.heads, form.scale)

    def _attention(self, attention: MultiHead) -> None:
        parts = [self._query(attention), _both(attention.key, self.key_heads)]
        weights, biases = zip(*parts, _both(attention.value, self.value_heads), strict=True)
        self.products.add(torch.cat(weights), torch.cat(biases))
        self._output(attention)

    def _output(self, attention: MultiHead) -> None:
        per_head = Heads(self.heads.count, self.value_heads.size)
        self.products.add(per_head.of_inputs(attention.output.weight.detach()), attention.output.bias)

    def _feedforward(self, block: EncoderBlock | DecoderBlock) -> None:
        self.products.linear(block.feedforward.expand)
        self.products.linear(block.feedforward.contract)

    def _cross(self, cross: MultiHead | None) -> None:
        if cross is None:
            for _ in range(3):
                self.products.nothing()
            return
        self.products.add(*self._query(cross))
        weights, biases = zip(_both(cross.key, self.key_heads), _both(cross.value, self.value_heads), strict=True)
        self.products.add(torch.cat(weights), torch.cat(biases))
        self._output(cross)

    def _norms(self, *norms: nn.Module) -> None:
        for norm in norms:
            if isinstance(norm, nn.LayerNorm):
                self.norms.append(np.stack((_array(norm.weight), _array(norm.bias))))
            else:
                self.norms.append(np.zeros((2, self.core.width), np.float32))


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _embeddings(reads: TokenReader) -> np.ndarray:
    """As they are read."""
    return _array(reads.table.weight.detach() * math.sqrt(reads.table.embedding_dim))


def _both(linear: nn.Linear, heads: Heads, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Weights and biases of a projection to heads, times `scale`."""
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    return heads.of_outputs(linear.weight.detach()) * scale, heads.of_outputs(bias.detach()) * scale
