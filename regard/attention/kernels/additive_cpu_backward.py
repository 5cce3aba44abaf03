"""Additive attention on a CPU, backward: weights are computed again, tile by tile, from the log-sum-exp.

    p = e^{s - lse},    ds = p (grad . values_j - delta),    delta = grad . out

    grad values_j = sum_i p grad_i                  grad bias = ds
    grad query_d  = 4 v_d sum_j ds r (1 - r)        grad keys_d = 4 v_d sum_i ds r (1 - r)
    grad v_d      = sum_ij ds (1 - 2 r)             r = 1 / (1 + e^{2 query_d} e^{2 key_d})

A task is one key head of one batch entry, or part of its query rows, and writes gradients of keys and values of its
own, which are summed afterwards in a fixed order.

Source: rabe2021 and dao2022, section 3.1 (weights again from their normalizer); bahdanau2015 (the score).
"""

from collections import namedtuple

import numpy as np

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_forward import is_direct, padded, score_tile, unit
from regard.attention.kernels.additive_cpu_jobs import begin, gradients, more
from regard.attention.kernels.additive_cpu_loops import (
    KEYS,
    ROWS,
    add_gradients,
    add_products,
    decay,
    direct_gradients,
    reach,
    table,
    transpose,
)
from regard.attention.kernels.additive_cpu_rules import add_bias, columns, limits, settle

Memory = namedtuple(
    "Memory", "keys values natural turned turned_values known to_keys to_values"
)  # numba knows this form
Block = namedtuple("Block", "rows scores ds weights grad delta to_rows to_v v top_v total_v lo hi begin end")


@compiled
def _memory(given, b, g, wants_values):
    """What a task holds of its keys and values: tables, filled as tiles are met, and sums of gradients."""
    keys, values = given.keys[b, g], given.values[b, g]
    num_keys, wide = keys.shape[0], padded(keys.shape[1])
    tiles, dtype = (num_keys + KEYS - 1) // KEYS, keys.dtype
    natural = np.empty((tiles * KEYS, wide), dtype)
    turned, turned_values = np.empty((tiles, wide, KEYS), dtype), np.empty((tiles, values.shape[1], KEYS), dtype)
    to_values = np.zeros((tiles * KEYS if wants_values else 0, values.shape[1]), dtype)
    known = np.zeros(tiles, np.bool_)
    to_keys = np.zeros((tiles * KEYS, wide), dtype)
    return Memory(keys, values, natural, turned, turned_values, known, to_keys, to_values)


@compiled
def _block(size, wide, value_dim, dtype):
    """Scratch for a block of rows."""
    return Block(
        rows=np.empty((size, wide), dtype),
        scores=np.empty((size, KEYS), dtype),
        ds=np.empty((size, KEYS), dtype),
        weights=np.empty((KEYS, size), dtype),
        grad=np.empty((size, value_dim), dtype),
        delta=np.empty(size, dtype),
        to_rows=np.empty((size, wide), dtype),
        to_v=np.empty(wide, dtype),
        v=np.empty(wide, dtype),
        top_v=np.empty(1, dtype),
        total_v=np.empty(1, dtype),
        lo=np.empty(size, np.int64),
        hi=np.empty(size, np.int64),
        begin=np.empty(size // 4, np.int64),
        end=np.empty(size // 4, np.int64),
    )


@compiled
def _know(memory, tile, width, const):
    """Fill the tables of a tile that is met for the first time."""
    at = tile // KEYS
    if memory.known[at]:
        return
    memory.known[at] = True
    num_keys = memory.keys.shape[0]
    transpose(memory.values, tile, min(num_keys, tile + KEYS), memory.turned_values[at])
    natural = memory.natural[tile : tile + KEYS]
    table(memory.keys, tile, num_keys, const, natural)
    transpose(natural, 0, width, memory.turned[at])


@compiled
def _take_rows(given, block, b, h, first, last):
    """Copy a block's gradients, zero beyond the last row, and sum grad . out of each row."""
    block.grad[:], block.delta[:], block.to_rows[:] = 0, 0, 0
    for r in range(last - first):
        grad, out, to = given.grad[b, h, first + r], given.out[b, h, first + r], block.grad[r]
        total = given.const[5]
        for c in range(grad.shape[0]):
            to[c] = grad[c]
            total += grad[c] * out[c]
        block.delta[r] = total


@compiled
def _slopes(scores, ds, delta, lse, const):
    """Turn scores into weights p, and gradients of weights in ds into those of scores; returns their sum."""
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        p = decay(scores[j] - lse, half, zero, clamp)
        slope = p * (ds[j] - delta)
        scores[j] = p
        ds[j] = slope
        total += slope
    return total


@compiled
def _tile(rules, given, wanted, memory, block, slot, b, h, first, tile, width, direct):
    """Everything that a block of rows and a tile of keys send back."""
    const, value_dim = given.const, memory.values.shape[1]
    begin, end, lo, hi, ds = block.begin, block.end, block.lo, block.hi, block.ds
    at = tile // KEYS
    turned = memory.turned[at]
    asked = given.query[b, h]
    score_tile(
        asked, memory.keys, block.v, block.rows, turned, direct, tile, first, lo, hi, begin, end, const, block.scores
    )
    total = const[5]
    for four in range(begin.shape[0]):
        left, right = begin[four], end[four]
        if left == right:
            block.scores[4 * four : 4 * four + 4] = 0
            continue
        ds[4 * four : 4 * four + 4] = 0
        add_products(block.grad, 4 * four, memory.turned_values[at], 0, 0, value_dim, left, right, ds, 4 * four)
        for r in range(4 * four, 4 * four + 4):
            low, high, i = lo[r] - tile, hi[r] - tile, first + r
            row = block.scores[r]
            settle(rules, b, h, i, tile, low, high, left, right, block.total_v[0], -2 * block.top_v[0], row)
            row[:left], row[right:] = 0, 0
            lse = given.lse[b, h, i] if low < high else const[5]
            lse = const[5] if lse == -np.inf else lse
            total += _slopes(row[left:right], ds[r, left:right], block.delta[r], lse, const)
            add_bias(rules, wanted, slot, b, h, i, tile, max(low, left), min(high, right), ds[r])
            if direct and low < high:
                low, high = max(low, left), min(high, right)
                direct_gradients(
                    asked[i], memory.keys, tile, ds[r], low, high, const, block.to_rows[r], memory.to_keys, block.to_v
                )
        if not direct:
            for i in range(4 * four, 4 * four + 4, 2):
                add_gradients(
                    block.rows, memory.natural, tile, ds, i, left, right, const, block.to_rows, memory.to_keys,
                    block.to_v,
                )  # fmt: skip
    if memory.to_values.shape[0] > 0:
        transpose(block.scores, 0, block.scores.shape[0], block.weights)
        for j in range(0, width, 4):
            add_products(
                block.weights, j, block.grad, 0, 0, block.grad.shape[0], 0, value_dim, memory.to_values, tile + j
            )
    return total


@compiled
def _head(rules, given, wanted, memory, block, slot, b, h, part, parts):
    """The blocks of rows of one query head; returns the sum of all ds."""
    num_queries, num_keys = given.query.shape[2], memory.keys.shape[0]
    size, asked, const = block.rows.shape[0], given.query[b, h], given.const
    keys_reach = reach(memory.keys.ravel())
    v = given.v[h if given.v.shape[0] > 1 else 0]
    block.total_v[0], block.top_v[0] = unit(v, const, block.v)
    total = const[5]
    for first in range(part * size, num_queries, parts * size):
        last = min(first + size, num_queries)
        least, stop = limits(rules, b, h, first, last, num_keys, block.lo, block.hi)
        direct = is_direct(asked, first, last, keys_reach, const)
        _take_rows(given, block, b, h, first, last)
        if not direct:
            table(asked, first, last, const, block.rows)
        for tile in range(least // KEYS * KEYS, stop, KEYS):
            width = min(KEYS, padded(num_keys - tile))
            if columns(rules, b, h, first, block.lo, block.hi, tile, width, block.begin, block.end):
                _know(memory, tile, width, const)
                total += _tile(rules, given, wanted, memory, block, slot, b, h, first, tile, width, direct)
        for r in range(last - first):
            to, row = wanted.query[b, h, first + r], block.to_rows[r]
            for d in range(to.shape[0]):
                to[d] = (v[d] + v[d]) * (row[d] + row[d])
    return total


@pasted
def _back_task(rules, given, wanted, slot, b, g, part, parts):
    """One key head of one batch entry: every `parts`-th block of rows of each of its query heads."""
    heads, num_queries, dim = given.query.shape[1:]
    group = heads // given.keys.shape[1]
    memory = _memory(given, b, g, wanted.values.size > 0)
    wanted.keys[part, b, g] = 0
    size = min(ROWS, (num_queries + 3) // 4 * 4)
    block = _block(size, padded(dim), given.values.shape[3], given.query.dtype)
    for h in range(g * group, (g + 1) * group):
        memory.to_keys[:], block.to_v[:] = 0, 0
        total = _head(rules, given, wanted, memory, block, slot, b, h, part, parts)
        v = given.v[h if given.v.shape[0] > 1 else 0]
        to_v = wanted.v[part, b, h]
        for d in range(dim):
            to_v[d] = total - (block.to_v[d] + block.to_v[d])
        for j in range(memory.keys.shape[0]):
            to, row = wanted.keys[part, b, g, j], memory.to_keys[j]
            for d in range(dim):
                to[d] += (v[d] + v[d]) * (row[d] + row[d])
    if memory.to_values.shape[0] > 0:
        wanted.values[part, b, g] = memory.to_values[: memory.keys.shape[0]]


@worker
def backward_tasks(dtype, stamp):
    """Take tasks until none is left, adding to gradients of biases in a slot of one's own."""

    def run(address):
        _ = stamp
        job, slot, task = begin(address)
        given, wanted, rules, parts = gradients(job, dtype)
        heads = given.keys.shape[1]
        while task < given.keys.shape[0] * heads * parts:
            place = task // parts
            _back_task(rules, given, wanted, slot, place // heads, place % heads, task % parts, parts)
            task = more(job, task)

    return run
