"""The blocks of a Transformer over packed weights, for all items of some sentences or for one more item a row.

The same as regard.layers.blocks and regard.models.cores.transformer, which are the reference. Sentences lie behind one
another in `items`, without padding.

Source: vaswani2017, section 3; pre-norm: xiong2020.
"""

import math

import numpy as np

from regard.engines.compiled.compiling import compiled
from regard.engines.compiled.lanes import gelu
from regard.engines.compiled.products import ADD, OUT, PANELS, SET, product
from regard.engines.compiled.reads import ALL, CAUSAL, PAST, SOURCE, read_all, read_one
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import (
    CROSS_KEYS,
    CROSS_OUT,
    CROSS_QUERY,
    DECODER_PRODUCTS,
    DECODERS,
    DOWN,
    ENCODER_PRODUCTS,
    ENCODERS,
    HEADS,
    HIDDEN,
    IS_GELU,
    IS_PRE,
    ITEMS,
    KEY_HEADS,
    MAPPED,
    NORM_ROWS,
    NORMED,
    NORMS,
    ORDER,
    OUT_OF_HEADS,
    OVERFLOW,
    POSITIONS,
    QUERY_KEY_VALUE,
    READ,
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

_NO_FLOOR = np.float32(-np.inf)
_ZERO = np.float32(0)
_INFINITY = np.float32(np.inf)


@compiled
def embed(work, table, token, place, row):
    """items[row] = the token's embedding and its position's."""
    item, vector, positions = floats(work, ITEMS)[row], table[token], floats(work, POSITIONS)
    width = work[WIDTH]
    if positions.shape[0] > 0:
        position = positions[place]
        for c in range(width):
            item[c] = vector[c] + position[c]
    else:
        for c in range(width):
            item[c] = vector[c]


@compiled
def normalize(work, which, rows, out):
    """out = scale (x - mean) / sqrt(variance + eps) + shift, of rows of items; sets OVERFLOW if it is not finite."""
    width = work[WIDTH]
    norms, items = floats(work, NORMS), floats(work, ITEMS)
    scale, shift = norms[NORM_ROWS * which], norms[NORM_ROWS * which + 1]
    epsilon = norms[NORM_ROWS * which + 2, 0]
    share = np.float32(1) / np.float32(width)
    for row in range(rows):
        item, to = items[row], out[row]
        total = _ZERO
        for c in range(width):
            total += item[c]
        mean = total * share
        total = _ZERO
        for c in range(width):
            away = item[c] - mean
            total += away * away
        variance = total * share + epsilon
        if not variance < _INFINITY:  # NaN, too; 1 / sqrt would turn infinity into 0 and hide it
            work[OVERFLOW] = 1
        inverse = np.float32(1) / np.float32(math.sqrt(variance))
        for c in range(width):
            to[c] = (item[c] - mean) * inverse * scale[c] + shift[c]


@compiled
def _before(work, norm, rows):
    """What a part of a block is given: items, normalized first if the block is pre-norm."""
    items, normed = floats(work, ITEMS), floats(work, NORMED)
    if work[IS_PRE]:
        normalize(work, norm, rows, normed)
        return normed
    return items


@compiled
def _after(work, norm, rows):
    if not work[IS_PRE]:
        normalize(work, norm, rows, floats(work, ITEMS))


@compiled
def _feed_forward(work, products, norm, rows):
    given, hidden = _before(work, norm, rows), floats(work, HIDDEN)
    is_gelu = work[IS_GELU] != 0
    product(work, products + UP, given, rows, hidden, _NO_FLOOR if is_gelu else _ZERO, SET)
    if is_gelu:
        width = table_of(work)[products + UP, PANELS] * PANEL
        for row in range(rows):
            gelu(address(hidden[row]), width)
    product(work, products + DOWN, hidden, rows, floats(work, ITEMS), _NO_FLOOR, ADD)
    _after(work, norm, rows)


@compiled
def encode(work, ids, starts, first, last, sources):
    """Encode the sentences first .. last - 1; sources[block, token] = keys and values of each decoder block."""
    begin, end = starts[first], starts[last]
    rows = end - begin
    for sentence in range(first, last):
        for token in range(starts[sentence], starts[sentence + 1]):
            embed(work, floats(work, SOURCES), ids[token], token - starts[sentence], token - begin)
    for block in range(work[ENCODERS]):
        products, norm = ENCODER_PRODUCTS * block, 2 * block
        product(work, products + QUERY_KEY_VALUE, _before(work, norm, rows), rows, floats(work, MAPPED), _NO_FLOOR, SET)
        for sentence in range(first, last):
            read_all(work, starts[sentence] - begin, starts[sentence + 1] - starts[sentence], ALL)
        product(work, products + OUT_OF_HEADS, floats(work, READ), rows, floats(work, ITEMS), _NO_FLOOR, ADD)
        _after(work, norm, rows)
        _feed_forward(work, products, norm + 1, rows)
    encoded = _before(work, 2 * work[ENCODERS], rows)
    for block in range(work[DECODERS]):
        products = ENCODER_PRODUCTS * work[ENCODERS] + DECODER_PRODUCTS * block
        product(work, products + CROSS_KEYS, encoded, rows, sources[block, begin:end], _NO_FLOOR, SET)


@compiled
def _keep(work, row, slot, block, keys, values):
    """Keys and values of a row of `mapped` become those of a slot."""
    mapped = floats(work, MAPPED)[row]
    at_keys = work[HEADS] * work[SIZE]
    at_values = at_keys + work[KEY_HEADS] * work[SIZE]
    for c in range(at_values - at_keys):
        keys[block, slot, c] = mapped[at_keys + c]
    for c in range(work[KEY_HEADS] * work[VALUE_SIZE]):
        values[block, slot, c] = mapped[at_values + c]


@compiled
def _last(work, rows):
    """The items of a decoder that has taken them in, as the output layer is given them."""
    return _before(work, 2 * work[ENCODERS] + 1 + 3 * work[DECODERS], rows)


@compiled
def prefill(work, tokens, slots, keys, values):
    """Take in all tokens of one text, from place 0 on, by a decoder that reads no source; returns its items.

    slots[place]: where keys and values of the token at each place are kept.
    """
    count = len(tokens)
    for place in range(count):
        embed(work, floats(work, TARGETS), tokens[place], place, place)
    for block in range(work[DECODERS]):
        products = ENCODER_PRODUCTS * work[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * work[ENCODERS] + 1 + 3 * block
        given = _before(work, norm, count)
        product(work, products + QUERY_KEY_VALUE, given, count, floats(work, MAPPED), _NO_FLOOR, SET)
        for place in range(count):
            _keep(work, place, slots[place], block, keys, values)
        read_all(work, np.int64(0), count, CAUSAL)
        product(work, products + OUT_OF_HEADS, floats(work, READ), count, floats(work, ITEMS), _NO_FLOOR, ADD)
        _after(work, norm, count)
        _feed_forward(work, products, norm + 2, count)
    return _last(work, count)


@compiled
def step(work, tokens, places, rows, slots, keys, values, sources, begins, ends):
    """Take in one token more a row; returns the rows that the output layer is given.

    places[row]: the token's place; slots[row, place]: where its keys and values are kept; begins, ends: the tokens of
    the row's source in `sources`.
    """
    mapped, read, order = floats(work, MAPPED), floats(work, READ), integers(work, ORDER)
    at_values = 4 * work[KEY_HEADS] * work[SIZE]
    for row in range(rows):
        embed(work, floats(work, TARGETS), tokens[row], places[row], row)
    for block in range(work[DECODERS]):
        products = ENCODER_PRODUCTS * work[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * work[ENCODERS] + 1 + 3 * block
        product(work, products + QUERY_KEY_VALUE, _before(work, norm, rows), rows, floats(work, MAPPED), _NO_FLOOR, SET)
        for row in range(rows):
            place = places[row]
            _keep(work, row, slots[row, place], block, keys, values)
            begin = max(0, place + 1 - work[WINDOW]) if work[WINDOW] > 0 else 0
            read_one(work, address(mapped[row]), address(keys[block]), keys.strides[1], address(values[block]),
                     values.strides[1], address(slots[row]), begin, place + 1, PAST, address(read[row]))  # fmt: skip
        product(work, products + OUT_OF_HEADS, floats(work, READ), rows, floats(work, ITEMS), _NO_FLOOR, ADD)
        _after(work, norm, rows)
        if table_of(work)[products + CROSS_QUERY, OUT] > 0:
            given = _before(work, norm + 1, rows)
            product(work, products + CROSS_QUERY, given, rows, mapped, _NO_FLOOR, SET)
            for row in range(rows):
                source = address(sources[block])
                read_one(work, address(mapped[row]), source, sources.strides[1], source + at_values, sources.strides[1],
                         address(order), begins[row], ends[row], SOURCE, address(read[row]))  # fmt: skip
            product(work, products + CROSS_OUT, floats(work, READ), rows, floats(work, ITEMS), _NO_FLOOR, ADD)
            _after(work, norm + 1, rows)
        _feed_forward(work, products, norm + 2, rows)
    return _last(work, rows)
