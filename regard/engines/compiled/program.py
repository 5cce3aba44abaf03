"""Packed Transformers for compiled code, and workspaces.

Each worker has a workspace, whose buffers are reused between batches and grow on demand: fresh
memory costs more than the computation in it, as the operating system zeroes each page.

Source: vaswani2017, section 3.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.attention.biases import DistanceBias
from regard.attention.scores import InnerProduct
from regard.engines.engine import Limits
from regard.engines.lowering import count_registers, head_sizes, parts_of
from regard.layers import forms
from regard.layers.positions.sinusoidal import sinusoids
from regard.native.decoder import layout
from regard.native.decoder.matmul import FIELDS, PANELS, multiplier
from regard.native.decoder.packed_weights import (
    KINDS,
    Heads,
    ProductTable,
    aligned_zeros,
    round_up_to_panel,
)
from regard.native.decoder.tiles import FLOAT32, PANEL

_ACTIVATIONS = {
    "relu": layout.RELU,
    "gelu": layout.GELU,
    "gelu-tanh": layout.GELU_TANH,
    "silu": layout.SILU,
}
_LOGIT_ROWS = 48
"""Rows of logits computed at a time: they fit the cache and amortize loading the weights."""

_ONE = 100.0
"""Logit whose sigmoid is 1 in float32."""


class PackedTransformer:
    """Sizes, products, norms and embeddings of a supported form."""

    def __init__(self, form: forms.TextForm, compute_type: str):
        core, attentions = form.core, parts_of(form, forms.AttentionForm)
        scored = [attention for attention in attentions if attention.written is None]
        attention = scored[0] if scored else attentions[0]
        self.positions = core.encoder_positions, core.decoder_positions
        self.encoder_bias, self.decoder_bias = _bias(core.encoder), _bias(core.decoder)
        output = form.writer.output.matrix
        self.width = output.shape[1]
        source, inputs = form.source, form.writer.inputs
        self.target = self.source = _array(inputs.matrix.detach() * inputs.scale)
        reason = None
        if core.decoder_positions is not None:
            reason = "its positions are added to the items, and would run beyond the context"
        ids = len(output) if source is None else len(source.weight)
        self.limits = Limits(source is not None, ids, len(output), form.max_positions, reason)
        if source is not None:
            is_tied = source.weight is inputs.weight and source.projection is inputs.projection
            if not is_tied or source.scale != inputs.scale:
                self.source = _array(source.matrix.detach() * source.scale)
        self.products, self.norms = ProductTable(KINDS[compute_type]), []
        self.widest_mapped = self.widest_hidden = 0
        size, value_size = head_sizes(attention)
        self.heads = Heads(attention.num_heads, size)
        self.key_heads = Heads(attention.key_heads, size)
        self.value_heads = Heads(attention.key_heads, value_size)
        self._norms(core.encoder_embedding_norm, core.decoder_embedding_norm)
        blocks = (*core.encoder, *core.decoder)
        self._rotations, self._blocks = _number_blocks(blocks)
        self.num_registers = count_registers(attention)
        self._pack_attentions(blocks, core.decoder)
        for block in core.encoder:
            self._attention(block.attention)
            self._feedforward(block.feedforward)
            self._norms(block.add_attention.norm, block.add_feedforward.norm)
        self._norms(core.encoder_norm)
        for block in core.decoder:
            self._attention(block.attention)
            self._feedforward(block.feedforward)
            self._cross(block.cross)
            between = None if block.add_cross is None else block.add_cross.norm
            self._norms(block.add_attention.norm, between, block.add_feedforward.norm)
        self._norms(core.decoder_norm)
        self.products.add(output, form.writer.bias, padding_bias=-math.inf)
        self.table = self.products.build_table()
        size, value_size = self.heads.padded_size, self.value_heads.padded_size
        mapped = self.heads.count * size + self.key_heads.count * (size + value_size)
        self.gates = 0 if attention.gate is None else mapped
        has_state = len(scored) < len(attentions)
        self.state_size = has_state * self.heads.count * size * round_up_to_panel(value_size)
        self.sizes = self._sizes(core, len(output), is_sigmoid=attention.read.is_sigmoid)

    def _sizes(self, core: forms.TransformerForm, vocab: int, *, is_sigmoid: bool) -> np.ndarray:
        block = core.decoder[0]
        sizes = {
            layout.ENCODERS: len(core.encoder),
            layout.DECODERS: len(core.decoder),
            layout.WIDTH: self.width,
            layout.HEADS: self.heads.count,
            layout.KEY_HEADS: self.key_heads.count,
            layout.SIZE: self.heads.padded_size,
            layout.VALUE_SIZE: self.value_heads.padded_size,
            layout.VOCAB: vocab,
            layout.IS_PRE_NORM: block.add_attention.order == "pre",
            layout.IS_RMS: block.add_attention.norm.is_rms,
            layout.ACTIVATION: _ACTIVATIONS[block.feedforward.activation],
            layout.IS_GATED: block.feedforward.gate is not None,
            layout.FLOAT_CODE: multiplier[FLOAT32](),
            layout.OVERFLOW: 0,
            layout.IS_SIGMOID: is_sigmoid,
            layout.GATES: self.gates,
            layout.REGISTERS: self.num_registers,
        }
        return np.array([sizes[index] for index in range(layout.SIZES)], np.int64)

    def positional_encodings(
        self, positions: forms.SinusoidsForm | forms.LearnedForm | None, count: int
    ) -> np.ndarray:
        """Return the encodings of the first `count` positions; all of them if they are learned."""
        match positions:
            case forms.SinusoidsForm(dim):
                return sinusoids(0, count, dim).float().numpy()
            case forms.LearnedForm(weight):
                return _array(weight)
            case None:
                return np.zeros((0, self.width), np.float32)

    def rotations(self, count: int) -> np.ndarray:
        """Return cosines and sines at the first `count` positions: (bases * count, 2 pairs)."""
        rotations = torch.tensor(self._rotations, dtype=torch.float64)
        rates, factors = rotations[:, None, :-1], rotations[:, None, -1:]
        angles = torch.arange(count)[:, None] * rates
        turns = torch.cat((angles.cos(), angles.sin()), -1) * factors
        return _array(turns.flatten(0, 1).float())

    def block_numbers(self, count: int) -> np.ndarray:
        """Return the numbers of all blocks (layout.BLOCKS), for `rotations(count)`."""
        return (self._blocks * (1, count, 1, 1)).astype(np.int64).ravel()

    def bias_at(self, bias: DistanceBias | None, distance: Tensor) -> np.ndarray:
        """Return the bias (heads, distances) by key minus query position."""
        if bias is None:
            return np.zeros((self.heads.count, 0), np.float32)
        return _array(bias.at(distance, torch.float32).expand(self.heads.count, -1))

    def _query(self, attention: forms.AttentionForm) -> tuple[Tensor, Tensor]:
        score = attention.read.score
        assert isinstance(score, InnerProduct)
        query = _pair_halves(attention.query, attention.rotary, self.heads)
        scale = 1.0 if attention.query_norm is not None else score.scale
        return _pad_heads(query, self.heads, scale)

    def _head_norms(self, attention: forms.AttentionForm) -> np.ndarray:
        """Return the row of layout.HEAD_NORMS: eps and factors f of f x / sqrt(sum x^2 + eps)."""
        score, factors = attention.read.score, []
        assert isinstance(score, InnerProduct)
        row = np.full(3 + 2 * self.heads.count * self.heads.padded_size, layout.NO_NORM, np.float32)
        if attention.written is not None:
            row[2] = _divisor(attention.written.norm)[1]
        norms, scales = (attention.query_norm, attention.key_norm), (score.scale, 1.0)
        counts = attention.num_heads, attention.key_heads
        for index, (norm, scale, count) in enumerate(zip(norms, scales, counts, strict=True)):
            each, factor = Heads(count, self.heads.size), torch.zeros(self.heads.size)
            if norm is not None:
                factor, row[index] = _divisor(norm)
            rows = forms.LinearForm(factor.repeat(each.count)[:, None], None)
            rows = _pair_halves(rows, attention.rotary, each)
            factors.append(_pad_heads(rows, each, scale)[0].flatten())
        every = _array(torch.cat(factors))
        row[3 : 3 + len(every)] = every
        return row

    def _pack_attentions(
        self, blocks: Sequence[forms.BlockForm], decoder: Sequence[forms.BlockForm]
    ) -> None:
        """Set the norms, sinks and registers of all attentions, in the order of the layout."""
        attentions = [block.attention for block in blocks]
        every = [*attentions, *(block.cross for block in decoder if block.cross is not None)]
        self.sinks = np.full((len(every), self.heads.count), -np.inf, np.float32)
        for number, attention in enumerate(every):
            if attention.read.sink is not None:
                self.sinks[number] = _array(torch.as_tensor(attention.read.sink).flatten())
        self.head_norms = np.zeros((len(every), 0), np.float32)
        if any(attention.query_norm for attention in every):
            self.head_norms = np.stack([self._head_norms(attention) for attention in every])
        self.registers = np.concatenate([self._register_pairs(own) for own in attentions])

    def _register_pairs(self, attention: forms.AttentionForm) -> np.ndarray:
        """Return keys and values of registers, a row each; zeros for a memory that is written."""
        keys, values = attention.register_keys, attention.register_values
        if keys is None or values is None:
            sizes = self.key_heads.padded_size, self.value_heads.padded_size
            return np.zeros((self.num_registers, self.key_heads.count * sum(sizes)), np.float32)
        if attention.key_norm is not None:
            factor, eps = _divisor(attention.key_norm)
            keys = keys * factor / (keys.square().sum(-1, keepdim=True) + eps).sqrt()
        keys, values = (forms.LinearForm(x.mT.flatten(0, 1), None) for x in (keys, values))
        keys = _pad_heads(_pair_halves(keys, attention.rotary, self.key_heads), self.key_heads)[0]
        return _array(torch.cat((keys.T, _pad_heads(values, self.value_heads)[0].T), 1))

    def _gate(self, attention: forms.AttentionForm) -> list[tuple[Tensor, Tensor]]:
        """Return padded weights and biases of the gates, one for each number, if there are any."""
        gate, heads = attention.gate, Heads(self.heads.count, self.value_heads.size)
        if gate is None:
            return []
        times = heads.count * heads.size // len(gate.weight)
        bias = None if gate.bias is None else gate.bias.repeat_interleave(times)
        rows = forms.LinearForm(gate.weight.repeat_interleave(times, 0), bias)
        return [_pad_heads(rows, heads)]

    def _attention(self, attention: forms.AttentionForm) -> None:
        keys, values = (Heads(attention.key_heads, x.size) for x in (self.heads, self.value_heads))
        key = _pair_halves(attention.key, attention.rotary, keys)
        parts = [self._query(attention), _pad_heads(key, keys)]
        parts += [_pad_heads(attention.value, values), *self._gate(attention)]
        if attention.written is not None:
            parts += self._decay_and_strength(attention.written)
        weights, biases = zip(*parts, strict=True)
        self.products.add(torch.cat(weights), torch.cat(biases))
        self.widest_mapped = max(self.widest_mapped, self.products.last_width)
        self._output(attention)

    def _decay_and_strength(self, written: forms.WrittenForm) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases to the logits of a and b, each 1 if there is none."""
        count = self.heads.count
        one = forms.LinearForm(torch.zeros(count, self.width), torch.full((count,), _ONE))
        none, gates = torch.zeros(count), (written.decay or one, written.strength or one)
        return [(gate.weight, none if gate.bias is None else gate.bias) for gate in gates]

    def _output(self, attention: forms.AttentionForm) -> None:
        heads, output = Heads(self.heads.count, self.value_heads.size), attention.output
        weight = output.weight.detach()
        if attention.written is not None:  # the factors of the norm
            weight = weight * _divisor(attention.written.norm)[0].repeat(heads.count)
        self.products.add(heads.pad_inputs(weight), output.bias)

    def _feedforward(self, feedforward: forms.FeedForwardForm) -> None:
        expand, gate, contract = feedforward.expand, feedforward.gate, feedforward.contract
        if gate is None:
            self.products.add(expand.weight, expand.bias)
        else:
            weights, biases = zip(_pad_to_panels(gate), _pad_to_panels(expand), strict=True)
            self.products.add(torch.cat(weights), torch.cat(biases))
        self.widest_hidden = max(self.widest_hidden, self.products.last_width)
        self.products.add(contract.weight, contract.bias)

    def _cross(self, cross: forms.AttentionForm | None) -> None:
        if cross is None:
            self.products.rows += [[0] * FIELDS] * 3  # no such products
            return
        weights, biases = zip(self._query(cross), *self._gate(cross), strict=True)
        self.products.add(torch.cat(weights), torch.cat(biases))
        key = _pad_heads(cross.key, self.key_heads)
        weights, biases = zip(key, _pad_heads(cross.value, self.value_heads), strict=True)
        self.products.add(torch.cat(weights), torch.cat(biases))
        self._output(cross)

    def _norms(self, *norms: forms.NormForm | None) -> None:
        for norm in norms:
            rows = np.full((layout.NORM_ROWS, self.width), layout.NO_NORM, np.float32)
            if norm is not None:
                rows[0] = 1 if norm.scale is None else _array(norm.scale)
                rows[1] = 0 if norm.shift is None else _array(norm.shift)
                rows[2] = norm.eps
            self.norms.append(rows)


class Context(NamedTuple):
    """Sizes and addresses for compiled code (regard.native.decoder.layout), and their owners."""

    numbers: np.ndarray
    arrays: Sequence[np.ndarray]


class Workspace:
    """Buffers for batches of at most `rows` rows and `positions` positions, and `slots` slots."""

    def __init__(self, model: PackedTransformer):
        self.model = model
        self.rows = self.positions = self.num_sources = self.slots = 0
        self._context: Context | None = None
        self._memory = np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)
        self._states = np.zeros(0, np.float32)

    def context(self, *, rows: int, positions: int, sources: int = 0) -> Context:
        """Return a context for `rows` items, of up to `positions` and `sources` source items."""
        is_small = rows > self.rows or positions > self.positions or sources > self.num_sources
        if self._context is None or is_small:
            self.rows = max(self.rows, rows + rows // 4)
            self.positions = max(self.positions, positions + positions // 4)
            self.num_sources = max(self.num_sources, sources + sources // 4)
            with torch.device("cpu"):  # independent of the default device of the caller
                self._context = self._allocate()
        return self._context

    def memory(self, slots: int, *, rows: int, copies: int) -> tuple[np.ndarray, ...]:
        """Return buffers for keys, values and states of all blocks; untouched pages cost nothing.

        States are of the memories that are written: (blocks, copies, rows, numbers).
        """
        if slots > self.slots:
            sizes, self.slots = self.model.sizes, slots
            blocks, heads = sizes[layout.DECODERS], sizes[layout.KEY_HEADS]
            keys = np.empty((blocks, slots, heads * sizes[layout.SIZE]), np.float32)
            values = np.empty((blocks, slots, heads * sizes[layout.VALUE_SIZE]), np.float32)
            self._memory = keys, values
        shape = int(self.model.sizes[layout.DECODERS]), copies, rows, self.model.state_size
        if math.prod(shape) > len(self._states):
            self._states = np.empty(math.prod(shape), np.float32)
        return *self._memory, self._states[: math.prod(shape)].reshape(shape)

    def _allocate(self) -> Context:
        model, rows, most = self.model, self.rows, self.positions
        positions = round_up_to_panel(most + int(model.sizes[layout.REGISTERS]))
        sizes, products = model.sizes, model.products
        items, value_size = round_up_to_panel(model.width), int(sizes[layout.VALUE_SIZE])
        read = round_up_to_panel(int(sizes[layout.HEADS]) * value_size) + PANEL
        columns = max(positions, round_up_to_panel(value_size))
        packed_size = positions * max(int(sizes[layout.SIZE]), round_up_to_panel(value_size))
        logit_rows, logits = min(rows, _LOGIT_ROWS), int(model.table[-1, PANELS]) * PANEL
        arrays = {
            layout.TABLE: model.table,
            layout.NORMS: np.concatenate(model.norms),
            layout.SOURCES: model.source,
            layout.TARGETS: model.target,
            layout.SOURCE_POSITIONS: model.positional_encodings(model.positions[0], most),
            layout.TARGET_POSITIONS: model.positional_encodings(model.positions[1], most),
            layout.ENCODER_BIAS: model.bias_at(model.encoder_bias, torch.arange(-most, most + 1)),
            layout.DECODER_BIAS: model.bias_at(model.decoder_bias, -torch.arange(most + 1)),
            layout.ROTATIONS: model.rotations(most),
            layout.HEAD_NORMS: model.head_norms,
            layout.SINKS: model.sinks,
            layout.REGISTER_PAIRS: model.registers,
            layout.IDENTITY: np.arange(self.num_sources, dtype=np.int32)[None],
            layout.ZEROS: aligned_zeros((1, max(products.widest, read, positions))),
            layout.ITEMS: aligned_zeros((rows, items)),
            layout.NORMED: aligned_zeros((rows, items)),
            layout.MAPPED: aligned_zeros((rows, model.widest_mapped)),
            layout.READ: aligned_zeros((rows, read)),
            layout.HIDDEN: aligned_zeros((rows, model.widest_hidden)),
            layout.LOGITS: aligned_zeros((logit_rows, logits)),
            layout.SCORES: aligned_zeros((max(_LOGIT_ROWS, int(sizes[layout.HEADS])), columns)),
            layout.PACKED: aligned_zeros((2, packed_size)),
            layout.KEY_MASK: aligned_zeros((1, positions)),
            layout.CODES: aligned_zeros((rows, 2 * round_up_to_panel(products.deepest)), np.uint8),
            layout.ROW_SCALES: aligned_zeros((1, rows)),
        }
        described = [arrays[index] for index in range(layout.ARRAYS)]
        descriptors = [(array.ctypes.data, *array.shape) for array in described]
        blocks = model.block_numbers(most)
        numbers = np.concatenate((sizes, np.array(descriptors, np.int64).ravel(), blocks))
        return Context(numbers, (*described, products.memory))  # the table has addresses, too


def _divisor(norm: forms.NormForm) -> tuple[Tensor, float]:
    """Return f and eps of a norm f x / sqrt(sum x^2 + eps) of queries or keys."""
    gain = torch.ones(norm.size) if norm.scale is None else norm.scale.detach()
    if norm.is_l2:
        return gain, norm.eps
    return gain * math.sqrt(norm.size), norm.eps * norm.size


def _number_blocks(blocks: Sequence[forms.BlockForm]) -> tuple[list[tuple[float, ...]], np.ndarray]:
    """Return the different rotations of blocks, and the numbers of each block (layout.BLOCKS)."""
    rotary = [block.attention.rotary for block in blocks]
    pairs = max(0 if form is None else len(form.rates) for form in rotary)
    tables, rows = dict[tuple[float, ...], int](), []  # rates, and the factor
    for block, form in zip(blocks, rotary, strict=True):
        # Blocks without positions rotate by angles of 0.
        rates = (*(0.0,) * pairs, 1.0)
        if form is not None:
            rates = (*form.rates.tolist(), form.factor)
        table = tables.setdefault(rates, len(tables))
        written, kind = block.attention.written, layout.ATTENTION
        if written is not None:
            kind = layout.FADING if written.strength is None else layout.DELTA
        rows.append((block.window or 0, table, block.attention.read.bias is not None, kind))
    return [*tables], np.array(rows)


def _bias(stack: tuple[forms.BlockForm, ...]) -> DistanceBias | None:
    """Return the bias of those blocks of a stack that have one."""
    return next((x for x in (block.attention.read.bias for block in stack) if x is not None), None)


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy())


def _pad_heads(linear: forms.LinearForm, heads: Heads, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return padded weights and biases of a projection to heads, times `scale`."""
    bias = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
    weight, bias = heads.pad_outputs(linear.weight.detach()), heads.pad_outputs(bias.detach())
    return weight * scale, bias * scale


def _pad_to_panels(linear: forms.LinearForm) -> tuple[Tensor, Tensor]:
    """Return weights and biases with zeros after the last output, up to a whole panel."""
    outputs = len(linear.weight)
    after = round_up_to_panel(outputs) - outputs
    bias = linear.weight.new_zeros(outputs) if linear.bias is None else linear.bias
    return functional.pad(linear.weight, (0, 0, 0, after)), functional.pad(bias, (0, after))


def _pair_halves(
    linear: forms.LinearForm, rotary: forms.RotaryForm | None, heads: Heads
) -> forms.LinearForm:
    """Return the projection with each head's numbers reordered: pair j is j and j + len(rates).

    Inner products of queries and keys do not depend on the order.
    """
    if rotary is None or not rotary.interleaved:
        return linear
    count = 2 * len(rotary.rates)
    even, odd = torch.arange(0, count, 2), torch.arange(1, count, 2)
    order = torch.cat((even, odd, torch.arange(count, heads.size)))
    rows = (torch.arange(heads.count)[:, None] * heads.size + order).flatten()
    return forms.LinearForm(linear.weight[rows], None if linear.bias is None else linear.bias[rows])
