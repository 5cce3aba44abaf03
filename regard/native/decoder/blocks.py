"""Transformer blocks over packed weights, for all items of some sentences or for one decoding step.

Equivalent to regard.layers.blocks and regard.models.cores.transformer, which are the reference.
Sentences are concatenated in `items`, without padding.

Source: vaswani2017, section 3; pre-norm: xiong2020.
"""

import math

import numpy as np

from regard.native.compile import jit, jit_entry
from regard.native.decoder import layout
from regard.native.decoder.layout import address, floats, table_of
from regard.native.decoder.matmul import ADD, OUT, PANELS, SET, product
from regard.native.decoder.reads import ALL, CAUSAL, PAST, SOURCE, read_all, read_one
from regard.native.decoder.simd import gelu, gelu_tanh, silu
from regard.native.decoder.tiles import PANEL
from regard.native.decoder.writes import begin_state, write_and_read

_NO_FLOOR = np.float32(-np.inf)
_ZERO = np.float32(0)
_INFINITY = np.float32(np.inf)
_FIRST = np.int64(0)


@jit
def embed(context, table, encodings, token, position, row):
    """Set items[row] to the sum of the token embedding and the positional encoding."""
    item, vector = floats(context, layout.ITEMS)[row], table[token]
    width = context[layout.WIDTH]
    for c in range(width):
        item[c] = vector[c]
    if encodings.shape[0] > 0:
        encoding = encodings[position]
        for c in range(width):
            item[c] += encoding[c]


@jit
def normalize(context, norm, rows, out):
    """Set out = scale (x - mean) / sqrt(variance + eps) + shift by rows, OVERFLOW if not finite.

    RMSNorm is the same with a mean and a shift of 0.
    """
    width = context[layout.WIDTH]
    norms, items = floats(context, layout.NORMS), floats(context, layout.ITEMS)
    scale, shift = norms[layout.NORM_ROWS * norm], norms[layout.NORM_ROWS * norm + 1]
    epsilon = norms[layout.NORM_ROWS * norm + 2, 0]
    share = np.float32(1) / np.float32(width)
    for row in range(rows):
        item, target = items[row], out[row]
        total = _ZERO
        if not context[layout.IS_RMS]:
            for c in range(width):
                total += item[c]
        mean = total * share
        total = _ZERO
        for c in range(width):
            deviation = item[c] - mean
            total += deviation * deviation
        variance = total * share + epsilon
        if not variance < _INFINITY:  # or NaN; 1 / sqrt would turn infinity into 0 and hide it
            context[layout.OVERFLOW] = 1
        inverse = np.float32(1) / np.float32(math.sqrt(variance))
        for c in range(width):
            target[c] = (item[c] - mean) * inverse * scale[c] + shift[c]


@jit
def _set_product(context, index, inputs, rows, out):
    """Set out = W inputs + b, of the product with this index."""
    product(context, index, inputs, rows, out, _NO_FLOOR, SET)


@jit
def _add_product(context, index, inputs, rows):
    """Add W inputs + b to the items."""
    product(context, index, inputs, rows, floats(context, layout.ITEMS), _NO_FLOOR, ADD)


@jit
def _sublayer_input(context, norm, rows):
    """Return the input of a sublayer: the items, normalized if blocks are pre-norm."""
    items, normed = floats(context, layout.ITEMS), floats(context, layout.NORMED)
    if context[layout.IS_PRE_NORM]:
        normalize(context, norm, rows, normed)
        return normed
    return items


@jit
def _post_norm(context, norm, rows):
    if not context[layout.IS_PRE_NORM]:
        normalize(context, norm, rows, floats(context, layout.ITEMS))


@jit
def _optional_norm(context, norm, rows):
    """Normalize the items in place, if there is this norm; return them."""
    items = floats(context, layout.ITEMS)
    if floats(context, layout.NORMS)[layout.NORM_ROWS * norm + 2, 0] >= 0:
        normalize(context, norm, rows, items)
    return items


@jit
def _activate(numbers, width, activation):
    """Apply the activation to the first `width` numbers, in place."""
    if activation == layout.GELU:
        gelu(address(numbers), width)
    elif activation == layout.GELU_TANH:
        gelu_tanh(address(numbers), width)
    elif activation == layout.SILU:
        silu(address(numbers), width)
    else:
        for c in range(width):
            numbers[c] = _ZERO if numbers[c] < _ZERO else numbers[c]  # in this order NaN stays NaN


@jit
def _normalize_heads(context, number, vectors, begin, end):
    """Normalize heads begin .. end - 1 of queries, then keys, if an attention has norms of them.

    vectors: row of numbers that begins with head `begin`.
    """
    norms, size = floats(context, layout.HEAD_NORMS), context[layout.SIZE]
    if norms.shape[1] > 0:
        factors = norms[number]
        for head in range(begin, end):
            total = factors[0 if head < context[layout.HEADS] else 1]
            if total < 0:
                return
            first, at = 3 + head * size, (head - begin) * size
            for c in range(size):
                total += vectors[at + c] * vectors[at + c]
            if not total < _INFINITY:
                context[layout.OVERFLOW] = 1
            inverse = np.float32(1) / np.float32(math.sqrt(total))
            for c in range(size):
                vectors[at + c] *= inverse * factors[first + c]


@jit
def _apply_gates(context, rows, column):
    """Multiply what the heads read by the sigmoids of `mapped` from a column on, if there are."""
    if context[layout.GATES] > 0:
        width = context[layout.HEADS] * context[layout.VALUE_SIZE]
        for row in range(rows):
            read, gates = floats(context, layout.READ)[row], floats(context, layout.MAPPED)[row]
            for c in range(width):
                read[c] /= np.float32(1) + np.float32(math.exp(-gates[column + c]))


@jit
def _rotate(context, block, row, position):
    """Rotate queries and keys of a row of `mapped` as a block (of all) does at a position (rotary).

    Of each head, number c is paired with number pairs + c.
    """
    rotations = floats(context, layout.ROTATIONS)
    pairs = rotations.shape[1] // 2
    if pairs > 0:
        first = context[layout.BLOCKS + layout.BLOCK_NUMBERS * block + 1]
        mapped, angles = floats(context, layout.MAPPED)[row], rotations[first + position]
        size = context[layout.SIZE]
        for head in range(context[layout.HEADS] + context[layout.KEY_HEADS]):
            at = head * size
            for c in range(pairs):
                first, second = mapped[at + c], mapped[at + pairs + c]
                mapped[at + c] = first * angles[c] - second * angles[pairs + c]
                mapped[at + pairs + c] = second * angles[c] + first * angles[pairs + c]


@jit
def _window(context, block):
    """Return the window of a block (of all), or 0."""
    return context[layout.BLOCKS + layout.BLOCK_NUMBERS * block]


@jit
def _is_written(context, block):
    """Return True if the self-attention of a block (of all) writes to a memory."""
    return context[layout.BLOCKS + layout.BLOCK_NUMBERS * block + 3] != layout.ATTENTION


@jit
def _feed_forward(context, products, norm, rows):
    inputs, hidden = _sublayer_input(context, norm, rows), floats(context, layout.HIDDEN)
    activation, is_gated = context[layout.ACTIVATION], context[layout.IS_GATED] != 0
    is_floor = activation == layout.RELU and not is_gated  # relu, as the lower bound of the product
    floor = _ZERO if is_floor else _NO_FLOOR
    product(context, products + layout.UP, inputs, rows, hidden, floor, SET)
    if not is_floor:
        width = table_of(context)[products + layout.UP, PANELS] * PANEL
        if is_gated:
            width //= 2
        for row in range(rows):
            _activate(hidden[row], width, activation)
            if is_gated:
                gate = hidden[row]
                for c in range(width):
                    gate[c] *= gate[width + c]
    _add_product(context, products + layout.DOWN, hidden, rows)
    _post_norm(context, norm, rows)


@jit
def encode(context, ids, starts, first, last, sources):
    """Encode sentences first .. last - 1 into sources[block, token]: keys, values per block."""
    begin, end, mapped = starts[first], starts[last], floats(context, layout.MAPPED)
    rows, heads = end - begin, context[layout.HEADS] + context[layout.KEY_HEADS]
    table, encodings = floats(context, layout.SOURCES), floats(context, layout.SOURCE_POSITIONS)
    for sentence in range(first, last):
        for token in range(starts[sentence], starts[sentence + 1]):
            position = token - starts[sentence]
            embed(context, table, encodings, ids[token], position, token - begin)
    _optional_norm(context, layout.SOURCE_NORM, rows)
    for block in range(context[layout.ENCODERS]):
        products, norm = layout.ENCODER_PRODUCTS * block, layout.ENCODER_NORMS + 2 * block
        inputs = _sublayer_input(context, norm, rows)
        _set_product(context, products + layout.QUERY_KEY_VALUE, inputs, rows, mapped)
        for sentence in range(first, last):
            for token in range(starts[sentence], starts[sentence + 1]):
                _normalize_heads(context, block, mapped[token - begin], _FIRST, heads)
                _rotate(context, block, token - begin, token - starts[sentence])
            count, window = starts[sentence + 1] - starts[sentence], _window(context, block)
            read_all(context, block, starts[sentence] - begin, count, ALL, window)
        _apply_gates(context, rows, context[layout.GATES])
        _add_product(context, products + layout.OUT_PROJECTION, floats(context, layout.READ), rows)
        _post_norm(context, norm, rows)
        _feed_forward(context, products, norm + 1, rows)
    norm = layout.ENCODER_NORMS + 2 * context[layout.ENCODERS]
    encoded = _optional_norm(context, norm, rows)
    for block in range(context[layout.DECODERS]):
        cross_keys = _decoder_products(context, block) + layout.CROSS_KEYS
        _set_product(context, cross_keys, encoded, rows, sources[block, begin:end])
        number = context[layout.ENCODERS] + context[layout.DECODERS] + block
        for token in range(begin, end):
            _normalize_heads(context, number, sources[block, token], context[layout.HEADS], heads)


@jit
def _decoder_products(context, block):
    """Return the index of the first product of a decoder block."""
    return layout.ENCODER_PRODUCTS * context[layout.ENCODERS] + layout.DECODER_PRODUCTS * block


@jit
def _decoder_norm(context, block):
    """Return the index of the first norm of a decoder block; after the last, that of the stack."""
    return layout.ENCODER_NORMS + 2 * context[layout.ENCODERS] + 1 + 3 * block


@jit
def _store_key_values(context, row, slot, block, keys, values):
    mapped = floats(context, layout.MAPPED)[row]
    at_keys = context[layout.HEADS] * context[layout.SIZE]
    at_values = at_keys + context[layout.KEY_HEADS] * context[layout.SIZE]
    for c in range(at_values - at_keys):
        keys[block, slot, c] = mapped[at_keys + c]
    for c in range(context[layout.KEY_HEADS] * context[layout.VALUE_SIZE]):
        values[block, slot, c] = mapped[at_values + c]


@jit_entry
def prefill(context, tokens, slots, keys, values, states, text):
    """Process a text from position 0 on in a decoder-only model.

    slots[position]: slot of the keys and values of the token at each position; states, text: its
    row of them, see begin_state.
    """
    count, mapped = len(tokens), floats(context, layout.MAPPED)
    num_queries, heads = context[layout.HEADS], context[layout.HEADS] + context[layout.KEY_HEADS]
    table, encodings = floats(context, layout.TARGETS), floats(context, layout.TARGET_POSITIONS)
    for position in range(count):
        embed(context, table, encodings, tokens[position], position, position)
    _optional_norm(context, layout.TARGET_NORM, count)
    for block in range(context[layout.DECODERS]):
        products, norm = _decoder_products(context, block), _decoder_norm(context, block)
        inputs = _sublayer_input(context, norm, count)
        _set_product(context, products + layout.QUERY_KEY_VALUE, inputs, count, mapped)
        number = context[layout.ENCODERS] + block
        if _is_written(context, number):
            for position in range(count):
                _normalize_heads(context, number, mapped[position], _FIRST, 2 * num_queries)
            state = begin_state(states, block, _FIRST, text, text)
            write_and_read(context, number, _FIRST, count, state)
        else:
            for position in range(count):
                _normalize_heads(context, number, mapped[position], _FIRST, heads)
                _rotate(context, number, position, position)
                _store_key_values(context, position, slots[position], block, keys, values)
            read_all(context, number, _FIRST, count, CAUSAL, _window(context, number))
            _apply_gates(context, count, context[layout.GATES])
        _add_product(context, products + layout.OUT_PROJECTION, floats(context, layout.READ), count)
        _post_norm(context, norm, count)
        _feed_forward(context, products, norm + 2, count)


@jit
def step(context, tokens, positions, rows, slots, keys, values, states, parents, sources, begins,
         ends):  # fmt: skip
    """Process one more token per row; return the decoder output.

    positions[row]: position of the token; slots[row, position]: slot of its keys and values;
    states, parents[row]: see begin_state; begins, ends: range of the row's tokens in `sources`.
    """
    mapped, read = floats(context, layout.MAPPED), floats(context, layout.READ)
    identity = context[layout.SIZES + 3 * layout.IDENTITY]
    at_values = 4 * context[layout.KEY_HEADS] * context[layout.SIZE]
    num_queries, heads = context[layout.HEADS], context[layout.HEADS] + context[layout.KEY_HEADS]
    table, encodings = floats(context, layout.TARGETS), floats(context, layout.TARGET_POSITIONS)
    for row in range(rows):
        embed(context, table, encodings, tokens[row], positions[row], row)
    _optional_norm(context, layout.TARGET_NORM, rows)
    for block in range(context[layout.DECODERS]):
        products, norm = _decoder_products(context, block), _decoder_norm(context, block)
        inputs = _sublayer_input(context, norm, rows)
        _set_product(context, products + layout.QUERY_KEY_VALUE, inputs, rows, mapped)
        number = context[layout.ENCODERS] + block
        window, is_written = _window(context, number), _is_written(context, number)
        for row in range(rows):
            position = positions[row]
            if is_written:
                _normalize_heads(context, number, mapped[row], _FIRST, 2 * num_queries)
                state = begin_state(states, block, position, parents[row], row)
                write_and_read(context, number, row, np.int64(1), state)
                continue
            _normalize_heads(context, number, mapped[row], _FIRST, heads)
            _rotate(context, number, row, position)
            _store_key_values(context, row, slots[row, position], block, keys, values)
            begin = max(0, position + 1 - window) if window > 0 else 0
            read_one(context, number, address(mapped[row]), address(keys[block]), keys.strides[1],
                     address(values[block]), values.strides[1], address(slots[row]), begin,
                     position + 1, PAST, address(read[row]))  # fmt: skip
        if not is_written:
            _apply_gates(context, rows, context[layout.GATES])
        _add_product(context, products + layout.OUT_PROJECTION, read, rows)
        _post_norm(context, norm, rows)
        if table_of(context)[products + layout.CROSS_QUERY, OUT] > 0:
            inputs = _sublayer_input(context, norm + 1, rows)
            _set_product(context, products + layout.CROSS_QUERY, inputs, rows, mapped)
            number += context[layout.DECODERS]
            for row in range(rows):
                _normalize_heads(context, number, mapped[row], _FIRST, num_queries)
                source = address(sources[block])
                read_one(context, number, address(mapped[row]), source, sources.strides[1],
                         source + at_values, sources.strides[1], identity, begins[row],
                         ends[row], SOURCE, address(read[row]))  # fmt: skip
            _apply_gates(context, rows, num_queries * context[layout.SIZE])
            _add_product(context, products + layout.CROSS_OUT, read, rows)
            _post_norm(context, norm + 1, rows)
        _feed_forward(context, products, norm + 2, rows)
    return _optional_norm(context, _decoder_norm(context, context[layout.DECODERS]), rows)
