"""Transformer blocks over packed weights, for all items of some sentences or for one decoding step.

Equivalent to regard.layers.blocks and regard.models.cores.transformer, which are the reference.
Sentences are concatenated in `items`, without padding.

Source: vaswani2017, section 3; pre-norm: xiong2020.
"""

import math

import numpy as np

from regard.native.compile import jit
from regard.native.decoder.layout import (
    ACTIVATION,
    CROSS_KEYS,
    CROSS_OUT,
    CROSS_QUERY,
    DECODER_PRODUCTS,
    DECODERS,
    DOWN,
    ENCODER_PRODUCTS,
    ENCODERS,
    GELU,
    GELU_TANH,
    HEADS,
    HIDDEN,
    IDENTITY,
    IS_GATED,
    IS_PRE_NORM,
    IS_RMS,
    ITEMS,
    KEY_HEADS,
    MAPPED,
    NORM_ROWS,
    NORMED,
    NORMS,
    OUT_PROJECTION,
    OVERFLOW,
    POSITIONS,
    QUERY_KEY_VALUE,
    READ,
    RELU,
    ROTATIONS,
    SILU,
    SIZE,
    SOURCES,
    TARGETS,
    UP,
    VALUE_SIZE,
    WIDTH,
    WINDOW,
    address,
    floats,
    integers,
    table_of,
)
from regard.native.decoder.matmul import ADD, OUT, PANELS, SET, product
from regard.native.decoder.reads import ALL, CAUSAL, PAST, SOURCE, read_all, read_one
from regard.native.decoder.simd import gelu, gelu_tanh, silu
from regard.native.decoder.tiles import PANEL

_NO_FLOOR = np.float32(-np.inf)
_ZERO = np.float32(0)
_INFINITY = np.float32(np.inf)


@jit
def embed(context, table, token, position, row):
    """Set items[row] to the sum of the token embedding and the positional encoding."""
    item, vector, encodings = floats(context, ITEMS)[row], table[token], floats(context, POSITIONS)
    width = context[WIDTH]
    if encodings.shape[0] > 0:
        encoding = encodings[position]
        for c in range(width):
            item[c] = vector[c] + encoding[c]
    else:
        for c in range(width):
            item[c] = vector[c]


@jit
def normalize(context, norm, rows, out):
    """Set out = scale (x - mean) / sqrt(variance + eps) + shift for rows of items; set OVERFLOW if
    not finite.

    RMSNorm is the same with a mean and a shift of 0.
    """
    width = context[WIDTH]
    norms, items = floats(context, NORMS), floats(context, ITEMS)
    scale, shift = norms[NORM_ROWS * norm], norms[NORM_ROWS * norm + 1]
    epsilon = norms[NORM_ROWS * norm + 2, 0]
    share = np.float32(1) / np.float32(width)
    for row in range(rows):
        item, target = items[row], out[row]
        total = _ZERO
        if not context[IS_RMS]:
            for c in range(width):
                total += item[c]
        mean = total * share
        total = _ZERO
        for c in range(width):
            deviation = item[c] - mean
            total += deviation * deviation
        variance = total * share + epsilon
        if not variance < _INFINITY:  # or NaN; 1 / sqrt would turn infinity into 0 and hide it
            context[OVERFLOW] = 1
        inverse = np.float32(1) / np.float32(math.sqrt(variance))
        for c in range(width):
            target[c] = (item[c] - mean) * inverse * scale[c] + shift[c]


@jit
def _sublayer_input(context, norm, rows):
    """Return the input of a sublayer: the items, normalized if blocks are pre-norm."""
    items, normed = floats(context, ITEMS), floats(context, NORMED)
    if context[IS_PRE_NORM]:
        normalize(context, norm, rows, normed)
        return normed
    return items


@jit
def _post_norm(context, norm, rows):
    if not context[IS_PRE_NORM]:
        normalize(context, norm, rows, floats(context, ITEMS))


@jit
def _activate(numbers, width, activation):
    """Apply the activation to the first `width` numbers, in place."""
    if activation == GELU:
        gelu(address(numbers), width)
    elif activation == GELU_TANH:
        gelu_tanh(address(numbers), width)
    elif activation == SILU:
        silu(address(numbers), width)
    else:
        for c in range(width):
            numbers[c] = _ZERO if numbers[c] < _ZERO else numbers[c]  # in this order NaN stays NaN


@jit
def _rotate(context, row, position):
    """Rotate the queries and keys of a row of `mapped` as at a position (rotary positional
    encoding).

    Of each head, number c is paired with number pairs + c.
    """
    rotations = floats(context, ROTATIONS)
    pairs = rotations.shape[1] // 2
    if pairs > 0:
        mapped, angles, size = floats(context, MAPPED)[row], rotations[position], context[SIZE]
        for head in range(context[HEADS] + context[KEY_HEADS]):
            at = head * size
            for c in range(pairs):
                first, second = mapped[at + c], mapped[at + pairs + c]
                mapped[at + c] = first * angles[c] - second * angles[pairs + c]
                mapped[at + pairs + c] = second * angles[c] + first * angles[pairs + c]


@jit
def _feed_forward(context, products, norm, rows):
    inputs, hidden = _sublayer_input(context, norm, rows), floats(context, HIDDEN)
    activation, is_gated = context[ACTIVATION], context[IS_GATED] != 0
    is_floor = activation == RELU and not is_gated  # relu, as the lower bound of the product
    product(context, products + UP, inputs, rows, hidden, _ZERO if is_floor else _NO_FLOOR, SET)
    if not is_floor:
        width = table_of(context)[products + UP, PANELS] * PANEL
        if is_gated:
            width //= 2
        for row in range(rows):
            _activate(hidden[row], width, activation)
            if is_gated:
                gate = hidden[row]
                for c in range(width):
                    gate[c] *= gate[width + c]
    product(context, products + DOWN, hidden, rows, floats(context, ITEMS), _NO_FLOOR, ADD)
    _post_norm(context, norm, rows)


@jit
def encode(context, ids, starts, first, last, sources):
    """Encode the sentences first .. last - 1 into sources[block, token], the keys and values of
    each decoder block."""
    begin, end = starts[first], starts[last]
    rows = end - begin
    for sentence in range(first, last):
        for token in range(starts[sentence], starts[sentence + 1]):
            embed(
                context,
                floats(context, SOURCES),
                ids[token],
                token - starts[sentence],
                token - begin,
            )
    for block in range(context[ENCODERS]):
        products, norm = ENCODER_PRODUCTS * block, 2 * block
        inputs = _sublayer_input(context, norm, rows)
        product(
            context,
            products + QUERY_KEY_VALUE,
            inputs,
            rows,
            floats(context, MAPPED),
            _NO_FLOOR,
            SET,
        )
        for sentence in range(first, last):
            for token in range(starts[sentence], starts[sentence + 1]):
                _rotate(context, token - begin, token - starts[sentence])
            read_all(
                context, starts[sentence] - begin, starts[sentence + 1] - starts[sentence], ALL
            )
        product(
            context,
            products + OUT_PROJECTION,
            floats(context, READ),
            rows,
            floats(context, ITEMS),
            _NO_FLOOR,
            ADD,
        )
        _post_norm(context, norm, rows)
        _feed_forward(context, products, norm + 1, rows)
    encoded = _sublayer_input(context, 2 * context[ENCODERS], rows)
    for block in range(context[DECODERS]):
        products = ENCODER_PRODUCTS * context[ENCODERS] + DECODER_PRODUCTS * block
        product(
            context, products + CROSS_KEYS, encoded, rows, sources[block, begin:end], _NO_FLOOR, SET
        )


@jit
def _store_key_values(context, row, slot, block, keys, values):
    """Store the keys and values of a row of `mapped` in a slot."""
    mapped = floats(context, MAPPED)[row]
    at_keys = context[HEADS] * context[SIZE]
    at_values = at_keys + context[KEY_HEADS] * context[SIZE]
    for c in range(at_values - at_keys):
        keys[block, slot, c] = mapped[at_keys + c]
    for c in range(context[KEY_HEADS] * context[VALUE_SIZE]):
        values[block, slot, c] = mapped[at_values + c]


@jit
def _decoder_output(context, rows):
    """Return the decoder output, the input of the output layer."""
    return _sublayer_input(context, 2 * context[ENCODERS] + 1 + 3 * context[DECODERS], rows)


@jit
def prefill(context, tokens, slots, keys, values):
    """Process all tokens of one text from position 0 on in a decoder-only model; return the decoder
    output.

    slots[position]: slot of the keys and values of the token at each position.
    """
    count = len(tokens)
    for position in range(count):
        embed(context, floats(context, TARGETS), tokens[position], position, position)
    for block in range(context[DECODERS]):
        products = ENCODER_PRODUCTS * context[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * context[ENCODERS] + 1 + 3 * block
        inputs = _sublayer_input(context, norm, count)
        product(
            context,
            products + QUERY_KEY_VALUE,
            inputs,
            count,
            floats(context, MAPPED),
            _NO_FLOOR,
            SET,
        )
        for position in range(count):
            _rotate(context, position, position)
            _store_key_values(context, position, slots[position], block, keys, values)
        read_all(context, np.int64(0), count, CAUSAL)
        product(
            context,
            products + OUT_PROJECTION,
            floats(context, READ),
            count,
            floats(context, ITEMS),
            _NO_FLOOR,
            ADD,
        )
        _post_norm(context, norm, count)
        _feed_forward(context, products, norm + 2, count)
    return _decoder_output(context, count)


@jit
def step(context, tokens, positions, rows, slots, keys, values, sources, begins, ends):
    """Process one more token per row; return the decoder output.

    positions[row]: position of the token; slots[row, position]: slot of its keys and values;
    begins, ends: range of the source tokens of the row in `sources`.
    """
    mapped = floats(context, MAPPED)
    read = floats(context, READ)
    identity = integers(context, IDENTITY)
    at_values = 4 * context[KEY_HEADS] * context[SIZE]
    for row in range(rows):
        embed(context, floats(context, TARGETS), tokens[row], positions[row], row)
    for block in range(context[DECODERS]):
        products = ENCODER_PRODUCTS * context[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * context[ENCODERS] + 1 + 3 * block
        inputs = _sublayer_input(context, norm, rows)
        product(
            context,
            products + QUERY_KEY_VALUE,
            inputs,
            rows,
            floats(context, MAPPED),
            _NO_FLOOR,
            SET,
        )
        for row in range(rows):
            position = positions[row]
            _rotate(context, row, position)
            _store_key_values(context, row, slots[row, position], block, keys, values)
            begin = max(0, position + 1 - context[WINDOW]) if context[WINDOW] > 0 else 0
            read_one(
                context,
                address(mapped[row]),
                address(keys[block]),
                keys.strides[1],
                address(values[block]),
                values.strides[1],
                address(slots[row]),
                begin,
                position + 1,
                PAST,
                address(read[row]),
            )
        product(
            context,
            products + OUT_PROJECTION,
            floats(context, READ),
            rows,
            floats(context, ITEMS),
            _NO_FLOOR,
            ADD,
        )
        _post_norm(context, norm, rows)
        if table_of(context)[products + CROSS_QUERY, OUT] > 0:
            inputs = _sublayer_input(context, norm + 1, rows)
            product(context, products + CROSS_QUERY, inputs, rows, mapped, _NO_FLOOR, SET)
            for row in range(rows):
                source = address(sources[block])
                read_one(context, address(mapped[row]), source, sources.strides[1], source + at_values,
                         sources.strides[1], address(identity), begins[row], ends[row], SOURCE,
                         address(read[row]))  # fmt: skip
            product(
                context,
                products + CROSS_OUT,
                floats(context, READ),
                rows,
                floats(context, ITEMS),
                _NO_FLOOR,
                ADD,
            )
            _post_norm(context, norm + 1, rows)
        _feed_forward(context, products, norm + 2, rows)
    return _decoder_output(context, rows)
