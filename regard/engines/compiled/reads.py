"""The reads: every query of a sentence at once, and one query of a growing memory.

    out = softmax(q K^T + bias) V       the scale is in the queries' weights already

Source: vaswani2017, section 3.2.
"""

import numpy as np

from regard.engines.compiled.compiling import LANES, compiled
from regard.engines.compiled.lanes import add_scaled, dot, peak, soften
from regard.engines.compiled.products import address, multiply
from regard.engines.compiled.tiles import PANEL
from regard.engines.compiled.work import HEADS, KEY_HEADS, SIZE, VALUE_SIZE, WINDOW

__all__ = ["ALL", "AT_BEGIN", "CAUSAL", "PAST", "SOURCE", "read_all", "read_one"]

_NONE = np.float32(-np.inf)
_ZERO = np.float32(0)
ALL, CAUSAL = np.int64(0), np.int64(1)
"""What a query sees: everything, or what is not behind it."""
SOURCE, PAST = np.int64(0), np.int64(1)
"""What is read: a source, or what came before, its distance counted."""
AT_BEGIN = np.int64(0)


@compiled
def _pack_keys(keys, first, count, column, size, out):
    """out[panel, d, c] = keys[first + panel * PANEL + c, column + d]; zero behind the last."""
    panels = (count + PANEL - 1) // PANEL
    for at in range(panels * size * PANEL):
        out[at] = 0
    for key in range(count):
        begin = (key // PANEL) * size * PANEL + key % PANEL
        for d in range(size):
            out[begin + d * PANEL] = keys[first + key, column + d]


@compiled
def _pack_values(values, first, count, column, size, out):
    """out[panel, key, c] = values[first + key, column + panel * PANEL + c]; zero behind the head's last."""
    for panel in range((size + PANEL - 1) // PANEL):
        begin, width = panel * count * PANEL, min(PANEL, size - panel * PANEL)
        for key in range(count):
            at = begin + key * PANEL
            for c in range(PANEL):
                out[at + c] = values[first + key, column + panel * PANEL + c] if c < width else _ZERO


@compiled
def read_all(work, first, count, is_causal):
    """What rows first .. first + count of `mapped` (queries, keys, values side by side) read of one another."""
    sizes, mapped, scores, read = work.sizes, work.mapped, work.scores, work.read
    heads, key_heads, size, value_size = sizes[HEADS], sizes[KEY_HEADS], sizes[SIZE], sizes[VALUE_SIZE]
    bias = work.behind if is_causal else work.around
    reach = bias.shape[1] - 1 if is_causal else bias.shape[1] // 2
    panels = (count + PANEL - 1) // PANEL
    edge, code = work.edge, work.codes_of[0]
    for key in range(panels * PANEL):
        edge[key] = _ZERO if key < count else _NONE
    keys, values = work.panels[: panels * size * PANEL], work.panels[panels * size * PANEL :]
    at_keys, at_values = heads * size, (heads + key_heads) * size
    for head in range(heads):
        group = heads // key_heads
        if head % group == 0:
            kept = head // group
            _pack_keys(mapped, first, count, at_keys + kept * size, size, keys)
            _pack_values(mapped, first, count, at_values + kept * value_size, value_size, values)
        for begin in range(0, count, scores.shape[0]):
            some = min(scores.shape[0], count - begin)
            multiply(code, address(mapped) + (first + begin) * mapped.strides[0] + 4 * head * size, mapped.strides[0],
                     some, address(keys), size, panels, address(edge), address(scores), scores.strides[0], _NONE,
                     0, 0, 0, 0)  # fmt: skip
            for row in range(some):
                line, place = scores[row], begin + row
                if reach > 0:
                    for key in range(place + 1 if is_causal else count):
                        line[key] += bias[head, place - key if is_causal else key - place + reach]
                if is_causal:
                    for key in range(place + 1, panels * PANEL):
                        line[key] = _NONE
                    for key in range(place + 1 - sizes[WINDOW] if sizes[WINDOW] > 0 else 0):
                        line[key] = _NONE
                width = panels * PANEL
                at = address(line)
                total = soften(at, peak(at, width), width)
                inverse = np.float32(1) / total
                for key in range(count):
                    line[key] *= inverse
            multiply(code, address(scores), scores.strides[0], some, address(values), count,
                     (value_size + PANEL - 1) // PANEL, address(work.zeros),
                     address(read) + (first + begin) * read.strides[0] + 4 * head * value_size, read.strides[0],
                     _NONE, 0, 0, 0, 0)  # fmt: skip


@compiled
def read_one(work, query, keys, values, key_column, value_column, slots, begin, end, is_past, out):
    """What one query (all its heads side by side) reads of the rows slots[begin : end] of keys and values."""
    sizes, scores = work.sizes, work.scores
    heads, key_heads, size, value_size = sizes[HEADS], sizes[KEY_HEADS], sizes[SIZE], sizes[VALUE_SIZE]
    group, count = heads // key_heads, end - begin
    width = (count + LANES - 1) // LANES * LANES
    bias = work.behind
    asked, at_keys, at_values = address(query), address(keys) + 4 * key_column, address(values) + 4 * value_column
    for place in range(count):
        key = at_keys + slots[begin + place] * keys.strides[0]
        for head in range(heads):
            scores[head, place] = dot(asked + 4 * head * size, key + 4 * (head // group) * size, size)
    for head in range(heads):
        line = scores[head]
        if is_past and bias.shape[1] > 0:
            for place in range(count):
                line[place] += bias[head, count - 1 - place]
        for place in range(count, width):
            line[place] = _NONE
        at = address(line)
        inverse = np.float32(1) / soften(at, peak(at, width), width)
        for place in range(count):
            line[place] *= inverse
    for c in range(heads * value_size):
        out[c] = 0
    into = address(out)
    for place in range(count):
        value = at_values + slots[begin + place] * values.strides[0]
        for head in range(heads):
            add_scaled(into + 4 * head * value_size, value + 4 * (head // group) * value_size, scores[head, place],
                       value_size)  # fmt: skip
