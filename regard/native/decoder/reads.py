"""Attention reads: all queries of a sentence at once, and one query of a growing memory.

    out = softmax(q K^T + bias) V       the scale is folded into the query weights

The softmax may have a sink, a score without a key; or the weights are sigmoids of the scores minus
the logarithm of the number of keys. Registers are keys behind the others, without bias.

Source: vaswani2017, section 3.2.
"""

import math

import numpy as np
from numba import carray

from regard.native.compile import jit
from regard.native.decoder import layout
from regard.native.decoder.layout import address, floats
from regard.native.decoder.matmul import SET, multiply
from regard.native.decoder.simd import add_scaled, dot, exp_and_sum, row_max
from regard.native.decoder.tiles import PANEL
from regard.native.jobs import as_address
from regard.native.processor import LANES

_NONE = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)
# numpy integers: numba compiles a function for each Python literal.
ALL, CAUSAL = np.int64(0), np.int64(1)
"""Mask of the queries: none, or causal."""
SOURCE, PAST = np.int64(0), np.int64(1)
"""Memory of a query: the source, or its past, with biases by distance."""


@jit
def _pack_keys_values(
    mapped, first, count, key_column, size, value_column, value_size, registers, last, keys, values
):
    """Set keys[panel, d, c] to key[panel PANEL + c, d], values[panel, key, c] to value[key, ...].

    Both are padded with zeros after the last key and the last element of a value. `registers` are
    rows of keys and values behind those of `mapped`; `last` is the column of their first head.
    """
    total = count + len(registers)
    for at in range((total + PANEL - 1) // PANEL * size * PANEL):
        keys[at] = 0
    for key in range(total):
        begin, shift = (key // PANEL) * size * PANEL + key % PANEL, last if key >= count else 0
        row = registers[key - count] if key >= count else mapped[first + key]
        for d in range(size):
            keys[begin + d * PANEL] = row[key_column - shift + d]
        for panel in range((value_size + PANEL - 1) // PANEL):
            begin, remaining = (panel * total + key) * PANEL, min(PANEL, value_size - panel * PANEL)
            at = value_column - shift + panel * PANEL
            for c in range(PANEL):
                values[begin + c] = row[at + c] if c < remaining else _ZERO


@jit
def _has_bias(context, block):
    """Return True if a block (of all) has the bias of its stack."""
    return context[layout.BLOCKS + layout.BLOCK_NUMBERS * block + 2] != 0


@jit
def _choose(context, number, head, weights, width, num_keys):
    """Replace scores, -inf for masked keys, by the weights of an attention's choice.

    num_keys: number of keys that are not masked. The first `width` numbers are whole registers.
    """
    if context[layout.IS_SIGMOID]:
        share = np.float32(num_keys)
        for key in range(width):
            weights[key] = _ONE / (_ONE + share * np.float32(math.exp(-weights[key])))
        return
    at, sink = address(weights), floats(context, layout.SINKS)[number, head]
    top = max(row_max(at, width), sink)
    inverse = _ONE / (exp_and_sum(at, top, width) + np.float32(math.exp(sink - top)))
    for key in range(width):
        weights[key] *= inverse


@jit
def _registers(context, block):
    """Return the registers of a block (of all), as rows of keys and values."""
    count = context[layout.REGISTERS]
    return floats(context, layout.REGISTER_PAIRS)[block * count : (block + 1) * count]


@jit
def _weigh(context, block, weights, index, count, width, head, is_causal, window):
    """Replace the scores of the query at a position by weights, zero for masked keys."""
    bias = floats(context, layout.DECODER_BIAS if is_causal else layout.ENCODER_BIAS)
    first, last = 0, count
    if is_causal:
        last = index + 1
        first = max(0, last - window) if window > 0 else 0
    elif window > 0:
        first, last = max(0, index - window // 2), min(count, index + window // 2 + 1)
    if bias.shape[1] > 0 and _has_bias(context, block):
        max_distance = bias.shape[1] // 2
        for key in range(first, last):
            weights[key] += bias[head, index - key if is_causal else key - index + max_distance]
    for key in range(first):
        weights[key] = _NONE
    for key in range(last, count):
        weights[key] = _NONE
    end = count + context[layout.REGISTERS]
    for key in range(end, width):
        weights[key] = _NONE
    _choose(context, block, head, weights, width, last - first + end - count)


@jit
def read_all(context, block, first, count, is_causal, window):
    """Compute self-attention of rows first .. first + count of queries, keys, values `mapped`.

    block: its number of all. window: as in regard.layers.blocks; 0: none.
    """
    mapped, scores = floats(context, layout.MAPPED), floats(context, layout.SCORES)
    read, zeros = floats(context, layout.READ), floats(context, layout.ZEROS)
    heads, key_heads = context[layout.HEADS], context[layout.KEY_HEADS]
    size, value_size = context[layout.SIZE], context[layout.VALUE_SIZE]
    registers = _registers(context, block)
    total, group = count + len(registers), heads // key_heads
    panels = (total + PANEL - 1) // PANEL
    key_mask, code = floats(context, layout.KEY_MASK)[0], context[layout.FLOAT_CODE]
    for key in range(panels * PANEL):
        key_mask[key] = _ZERO if key < total else _NONE
    packed = floats(context, layout.PACKED)
    for head in range(heads):
        key_head = head // group
        if head % group == 0:
            at_keys = heads * size + key_head * size
            at_values = (heads + key_heads) * size + key_head * value_size
            _pack_keys_values(mapped, first, count, at_keys, size, at_values, value_size, registers,
                              heads * size, packed[0], packed[1])  # fmt: skip
        for begin in range(0, count, scores.shape[0]):
            num_rows = min(scores.shape[0], count - begin)
            queries = address(mapped) + (first + begin) * mapped.strides[0] + 4 * head * size
            multiply(code, queries, mapped.strides[0], num_rows, address(packed[0]), size, panels,
                     address(key_mask), address(scores), scores.strides[0], _NONE, SET, 0, 0,
                     0)  # fmt: skip
            for row in range(num_rows):
                _weigh(context, block, scores[row], begin + row, count, panels * PANEL, head,
                       is_causal, window)  # fmt: skip
            out = address(read) + (first + begin) * read.strides[0] + 4 * head * value_size
            multiply(code, address(scores), scores.strides[0], num_rows, address(packed[1]), total,
                     (value_size + PANEL - 1) // PANEL, address(zeros), out, read.strides[0],
                     _NONE, SET, 0, 0, 0)  # fmt: skip


@jit
def read_one(
    context, number, query, keys, key_stride, values, value_stride, slots, begin, end, is_past, out
):
    """Compute the read of one query (all heads) of the rows slots[begin : end] of keys and values.

    number: of the attention (layout.HEAD_NORMS). Further arguments are addresses, with strides in
    bytes.
    """
    scores, bias = floats(context, layout.SCORES), floats(context, layout.DECODER_BIAS)
    heads, size = context[layout.HEADS], context[layout.SIZE]
    value_size, count = context[layout.VALUE_SIZE], end - begin
    group = heads // context[layout.KEY_HEADS]
    more = context[layout.REGISTERS] if is_past else 0
    width = (count + more + LANES - 1) // LANES * LANES
    slot = carray(as_address(slots), (end,), np.int32)
    for index in range(count):
        key = keys + slot[begin + index] * key_stride
        for head in range(heads):
            at_head = key + 4 * (head // group) * size
            scores[head, index] = dot(query + 4 * head * size, at_head, size)
    for register in range(more):
        key = address(_registers(context, number)[register])
        for head in range(heads):
            at_head = key + 4 * (head // group) * size
            scores[head, count + register] = dot(query + 4 * head * size, at_head, size)
    for head in range(heads):
        weights = scores[head]
        if is_past and bias.shape[1] > 0 and _has_bias(context, number):
            for index in range(count):
                weights[index] += bias[head, count - 1 - index]
        for index in range(count + more, width):
            weights[index] = _NONE
        _choose(context, number, head, weights, width, count + more)
    result = carray(as_address(out), (heads * value_size,), np.float32)
    result[:] = 0
    for index in range(count):
        value = values + slot[begin + index] * value_stride
        for head in range(heads):
            add_scaled(out + 4 * head * value_size, value + 4 * (head // group) * value_size,
                       scores[head, index], value_size)  # fmt: skip
    at_values = 4 * context[layout.KEY_HEADS] * size
    for register in range(more):
        value = address(_registers(context, number)[register]) + at_values
        for head in range(heads):
            add_scaled(out + 4 * head * value_size, value + 4 * (head // group) * value_size,
                       scores[head, count + register], value_size)  # fmt: skip
