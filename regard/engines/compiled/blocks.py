"""The blocks of a Transformer over packed weights, for all items of some sentences or for one more item a row.

The same as regard.layers.blocks and regard.models.cores.transformer, which are the reference. Sentences lie behind one
another in `items`, without padding.

Source: vaswani2017, section 3; pre-norm: xiong2020.
"""

import math

import numpy as np

from regard.engines.compiled.compiling import compiled
from regard.engines.compiled.lanes import gelu
from regard.engines.compiled.products import ADD, OUT, PANELS, SET, address, product
from regard.engines.compiled.reads import ALL, AT_BEGIN, CAUSAL, PAST, SOURCE, read_all, read_one
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
    IS_GELU,
    IS_PRE,
    KEY_HEADS,
    OUT_OF_HEADS,
    QUERY_KEY_VALUE,
    SIZE,
    UP,
    VALUE_SIZE,
    WIDTH,
    WINDOW,
)

__all__ = ["encode", "prefill", "step"]

_NO_FLOOR = np.float32(-np.inf)
_ZERO = np.float32(0)
_EPSILON = np.float32(1e-5)


@compiled
def embed(work, table, token, place, row):
    """items[row] = the token's embedding and its position's."""
    item, vector, positions = work.items[row], table[token], work.positions
    width = work.sizes[WIDTH]
    if positions.shape[0] > 0:
        position = positions[place]
        for c in range(width):
            item[c] = vector[c] + position[c]
    else:
        for c in range(width):
            item[c] = vector[c]


@compiled
def normalise(work, which, first, rows, out):
    """out = scale (x - mean) / sqrt(variance + 1e-5) + shift, of rows of items."""
    width = work.sizes[WIDTH]
    scale, shift = work.norms[which, 0], work.norms[which, 1]
    share = np.float32(1) / np.float32(width)
    for row in range(first, first + rows):
        item, to = work.items[row], out[row]
        total = _ZERO
        for c in range(width):
            total += item[c]
        mean = total * share
        total = _ZERO
        for c in range(width):
            away = item[c] - mean
            total += away * away
        inverse = np.float32(1) / np.float32(math.sqrt(total * share + _EPSILON))
        for c in range(width):
            to[c] = (item[c] - mean) * inverse * scale[c] + shift[c]


@compiled
def _before(work, norm, rows):
    """What a part of a block is given: items, normalised first if the block is pre-norm."""
    if work.sizes[IS_PRE]:
        normalise(work, norm, 0, rows, work.normed)
        return work.normed
    return work.items


@compiled
def _after(work, norm, rows):
    if not work.sizes[IS_PRE]:
        normalise(work, norm, 0, rows, work.items)


@compiled
def _feed_forward(work, products, norm, rows):
    given = _before(work, norm, rows)
    is_gelu = work.sizes[IS_GELU] != 0
    product(work, products + UP, given, rows, work.hidden, _NO_FLOOR if is_gelu else _ZERO, SET)
    if is_gelu:
        width = work.table[products + UP, PANELS] * PANEL
        for row in range(rows):
            gelu(address(work.hidden[row]), width)
    product(work, products + DOWN, work.hidden, rows, work.items, _NO_FLOOR, ADD)
    _after(work, norm, rows)


@compiled
def encode(work, ids, starts, first, last, sources):
    """Encode the sentences first .. last - 1; sources[block, token] = keys and values of each decoder block."""
    begin, end = starts[first], starts[last]
    rows = end - begin
    for sentence in range(first, last):
        for token in range(starts[sentence], starts[sentence + 1]):
            embed(work, work.source, ids[token], token - starts[sentence], token - begin)
    sizes = work.sizes
    for block in range(sizes[ENCODERS]):
        products, norm = ENCODER_PRODUCTS * block, 2 * block
        product(work, products + QUERY_KEY_VALUE, _before(work, norm, rows), rows, work.mapped, _NO_FLOOR, SET)
        for sentence in range(first, last):
            read_all(work, starts[sentence] - begin, starts[sentence + 1] - starts[sentence], ALL)
        product(work, products + OUT_OF_HEADS, work.read, rows, work.items, _NO_FLOOR, ADD)
        _after(work, norm, rows)
        _feed_forward(work, products, norm + 1, rows)
    encoded = work.items
    if sizes[IS_PRE]:
        normalise(work, 2 * sizes[ENCODERS], 0, rows, work.normed)
        encoded = work.normed
    for block in range(sizes[DECODERS]):
        products = ENCODER_PRODUCTS * sizes[ENCODERS] + DECODER_PRODUCTS * block
        product(work, products + CROSS_KEYS, encoded, rows, sources[block, begin:end], _NO_FLOOR, SET)


@compiled
def _keep(work, row, slot, block, keys, values):
    """Keys and values of a row of `mapped` become those of a slot."""
    sizes, mapped = work.sizes, work.mapped[row]
    at_keys = sizes[HEADS] * sizes[SIZE]
    at_values = at_keys + sizes[KEY_HEADS] * sizes[SIZE]
    for c in range(at_values - at_keys):
        keys[block, slot, c] = mapped[at_keys + c]
    for c in range(sizes[KEY_HEADS] * sizes[VALUE_SIZE]):
        values[block, slot, c] = mapped[at_values + c]


@compiled
def _last(work, rows):
    """The items of a decoder that has taken them in, as the output layer is given them."""
    sizes = work.sizes
    if sizes[IS_PRE]:
        normalise(work, 2 * sizes[ENCODERS] + 1 + 3 * sizes[DECODERS], 0, rows, work.normed)
        return work.normed
    return work.items


@compiled
def prefill(work, tokens, first, slots, keys, values):
    """Take in all tokens of one text, from the first on, by a decoder that reads no source; returns its items.

    slots[place]: where keys and values of the token at each place are kept.
    """
    count, sizes = len(tokens), work.sizes
    for place in range(count):
        embed(work, work.target, tokens[place], first + place, place)
    for block in range(sizes[DECODERS]):
        products = ENCODER_PRODUCTS * sizes[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * sizes[ENCODERS] + 1 + 3 * block
        product(work, products + QUERY_KEY_VALUE, _before(work, norm, count), count, work.mapped, _NO_FLOOR, SET)
        for place in range(count):
            _keep(work, place, slots[place], block, keys, values)
        read_all(work, AT_BEGIN, count, CAUSAL)
        product(work, products + OUT_OF_HEADS, work.read, count, work.items, _NO_FLOOR, ADD)
        _after(work, norm, count)
        _feed_forward(work, products, norm + 2, count)
    return _last(work, count)


@compiled
def step(work, tokens, places, rows, slots, keys, values, sources, begins, ends):
    """Take in one token more a row; returns the rows that the output layer is given.

    places[row]: the token's place; slots[row, place]: where its keys and values are kept; begins, ends: the tokens of
    the row's source in `sources`.
    """
    sizes = work.sizes
    for row in range(rows):
        embed(work, work.target, tokens[row], places[row], row)
    for block in range(sizes[DECODERS]):
        products = ENCODER_PRODUCTS * sizes[ENCODERS] + DECODER_PRODUCTS * block
        norm = 2 * sizes[ENCODERS] + 1 + 3 * block
        product(work, products + QUERY_KEY_VALUE, _before(work, norm, rows), rows, work.mapped, _NO_FLOOR, SET)
        for row in range(rows):
            place = places[row]
            _keep(work, row, slots[row, place], block, keys, values)
            begin = max(0, place + 1 - sizes[WINDOW]) if sizes[WINDOW] > 0 else 0
            read_one(work, work.mapped[row], keys[block], values[block], AT_BEGIN, AT_BEGIN, slots[row], begin, place + 1, PAST,
                     work.read[row])  # fmt: skip
        product(work, products + OUT_OF_HEADS, work.read, rows, work.items, _NO_FLOOR, ADD)
        _after(work, norm, rows)
        if work.table[products + CROSS_QUERY, OUT] > 0:
            product(work, products + CROSS_QUERY, _before(work, norm + 1, rows), rows, work.mapped, _NO_FLOOR, SET)
            for row in range(rows):
                read_one(work, work.mapped[row], sources[block], sources[block], AT_BEGIN, sizes[KEY_HEADS] * sizes[SIZE],
                         work.order, begins[row], ends[row], SOURCE, work.read[row])  # fmt: skip
            product(work, products + CROSS_OUT, work.read, rows, work.items, _NO_FLOOR, ADD)
            _after(work, norm + 1, rows)
        _feed_forward(work, products, norm + 2, rows)
    return _last(work, rows)
