"""The reads: every query of a sentence at once, and one query of a growing memory.

    out = softmax(q K^T + bias) V       the scale is in the queries' weights already

Source: vaswani2017, section 3.2.
"""

import numpy as np

from regard.engines.compiled.compiling import LANES, compiled
from regard.engines.compiled.lanes import add_scaled, dot, peak, soften
from regard.engines.compiled.products import SET, multiply
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import (
    AROUND,
    BEHIND,
    EDGE,
    FLOAT_CODE,
    HEADS,
    KEY_HEADS,
    MAPPED,
    PANELED,
    READ,
    SCORES,
    SIZE,
    VALUE_SIZE,
    WINDOW,
    ZEROS,
    address,
    floats,
    floats_at,
    slots_at,
)

_NONE = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)
# As numpy's numbers: numba compiles a function anew for each of Python's.
ALL, CAUSAL = np.int64(0), np.int64(1)
"""What a query sees: everything, or what is not behind it."""
SOURCE, PAST = np.int64(0), np.int64(1)
"""What is read: a source, or what came before, whose distance counts."""


@compiled
def _pack(mapped, first, count, key_column, size, value_column, value_size, keys, values):
    """keys[panel, d, c] = key panel * PANEL + c at d; values[panel, key, c] = value of the key at panel * PANEL + c.

    Zero behind the last key, and behind the last number of a value.
    """
    for at in range((count + PANEL - 1) // PANEL * size * PANEL):
        keys[at] = 0
    for key in range(count):
        row, begin = mapped[first + key], (key // PANEL) * size * PANEL + key % PANEL
        for d in range(size):
            keys[begin + d * PANEL] = row[key_column + d]
        for panel in range((value_size + PANEL - 1) // PANEL):
            begin, filled = (panel * count + key) * PANEL, min(PANEL, value_size - panel * PANEL)
            for c in range(PANEL):
                values[begin + c] = row[value_column + panel * PANEL + c] if c < filled else _ZERO


@compiled
def _soften(work, line, place, count, width, head, is_causal):
    """Scores of the query at a place become weights; keys it does not see have none."""
    bias = floats(work, BEHIND if is_causal else AROUND)
    first, last = 0, count
    if is_causal:
        last = place + 1
        first = max(0, last - work[WINDOW]) if work[WINDOW] > 0 else 0
    if bias.shape[1] > 0:
        reach = bias.shape[1] // 2
        for key in range(first, last):
            line[key] += bias[head, place - key if is_causal else key - place + reach]
    for key in range(first):
        line[key] = _NONE
    for key in range(last, width):
        line[key] = _NONE
    at = address(line)
    inverse = _ONE / soften(at, peak(at, width), width)
    for key in range(first, last):
        line[key] *= inverse


@compiled
def read_all(work, first, count, is_causal):
    """What rows first .. first + count of `mapped` (queries, keys, values side by side) read of one another."""
    mapped, scores, read = floats(work, MAPPED), floats(work, SCORES), floats(work, READ)
    heads, key_heads, size, value_size = work[HEADS], work[KEY_HEADS], work[SIZE], work[VALUE_SIZE]
    panels, group = (count + PANEL - 1) // PANEL, heads // key_heads
    edge, zeros, code = floats(work, EDGE)[0], floats(work, ZEROS), work[FLOAT_CODE]
    for key in range(panels * PANEL):
        edge[key] = _ZERO if key < count else _NONE
    packed = floats(work, PANELED)
    for head in range(heads):
        kept = head // group
        if head % group == 0:
            _pack(mapped, first, count, heads * size + kept * size, size,
                  (heads + key_heads) * size + kept * value_size, value_size, packed[0], packed[1])  # fmt: skip
        for begin in range(0, count, scores.shape[0]):
            some = min(scores.shape[0], count - begin)
            asked = address(mapped) + (first + begin) * mapped.strides[0] + 4 * head * size
            multiply(code, asked, mapped.strides[0], some, address(packed[0]), size, panels, address(edge),
                     address(scores), scores.strides[0], _NONE, SET, 0, 0, 0)  # fmt: skip
            for row in range(some):
                _soften(work, scores[row], begin + row, count, panels * PANEL, head, is_causal)
            out = address(read) + (first + begin) * read.strides[0] + 4 * head * value_size
            multiply(code, address(scores), scores.strides[0], some, address(packed[1]), count,
                     (value_size + PANEL - 1) // PANEL, address(zeros), out, read.strides[0], _NONE, SET,
                     0, 0, 0)  # fmt: skip


@compiled
def read_one(work, query, keys, key_stride, values, value_stride, slots, begin, end, is_past, out):
    """What one query (all its heads side by side) reads of the rows slots[begin : end] of keys and values.

    All by addresses, strides in bytes.
    """
    scores, bias = floats(work, SCORES), floats(work, BEHIND)
    heads, size, value_size = work[HEADS], work[SIZE], work[VALUE_SIZE]
    group, count = heads // work[KEY_HEADS], end - begin
    width, slot = (count + LANES - 1) // LANES * LANES, slots_at(slots, end)
    for place in range(count):
        key = keys + slot[begin + place] * key_stride
        for head in range(heads):
            scores[head, place] = dot(query + 4 * head * size, key + 4 * (head // group) * size, size)
    for head in range(heads):
        line = scores[head]
        if is_past and bias.shape[1] > 0:
            for place in range(count):
                line[place] += bias[head, count - 1 - place]
        for place in range(count, width):
            line[place] = _NONE
        at = address(line)
        inverse = _ONE / soften(at, peak(at, width), width)
        for place in range(count):
            line[place] *= inverse
    result = floats_at(out, heads * value_size)
    for c in range(heads * value_size):
        result[c] = 0
    for place in range(count):
        value = values + slot[begin + place] * value_stride
        for head in range(heads):
            add_scaled(out + 4 * head * value_size, value + 4 * (head // group) * value_size, scores[head, place],
                       value_size)  # fmt: skip
