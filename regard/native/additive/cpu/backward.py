"""Additive attention on a CPU, backward: weights recomputed by tiles from the log-sum-exp.

    p = e^{s - lse},    ds = p (grad . values_j - delta),    delta = grad . out

    grad values_j = sum_i p grad_i                  grad bias = ds
    grad query_d  = 4 v_d sum_j ds r (1 - r)        grad keys_d = 4 v_d sum_i ds r (1 - r)
    grad v_d      = sum_ij ds (1 - 2 r)             r = 1 / (1 + e^{2 query_d} e^{2 key_d})

A task is one key head of one batch entry, or part of its query rows. It writes its own gradients of
keys and values, which are summed afterwards in a fixed order.

Source: rabe2021 and dao2022, section 3.1 (weights recomputed from their normalizer); bahdanau2015
        (the score).
"""

from collections import namedtuple

import numpy as np

from regard.native.additive.cpu.forward import is_direct, normalize_v, round_up_to_lanes, score_tile
from regard.native.additive.cpu.jobs import AT, claim_tasks, gradient_arrays, input_arrays, open_job
from regard.native.additive.cpu.loops import (
    KEYS,
    ROWS,
    add_gradients,
    add_products,
    direct_gradients,
    exp_nonpositive,
    exp_table,
    max_abs,
    transpose,
)
from regard.native.additive.cpu.rules import (
    add_bias_gradients,
    finish_scores,
    key_ranges,
    tile_columns,
)
from regard.native.compile import jit, jit_inline, jit_worker

# numba supports only named tuples of collections.
TileTables = namedtuple(
    "TileTables", "keys values exp_keys exp_keys_t values_t is_filled grad_keys grad_values"
)
RowBlock = namedtuple(
    "RowBlock", "rows scores ds weights grad delta grad_rows grad_v v top_v total_v lo hi begin end"
)


@jit
def _fill_tile(tables, tile, width, const):
    """Fill the tables of a tile on its first use."""
    at = tile // KEYS
    if tables.is_filled[at]:
        return
    tables.is_filled[at] = True
    num_keys = tables.keys.shape[0]
    transpose(tables.values, tile, min(num_keys, tile + KEYS), tables.values_t[at])
    exp_keys = tables.exp_keys[tile : tile + KEYS]
    exp_table(tables.keys, tile, num_keys, const, exp_keys)
    transpose(exp_keys, 0, width, tables.exp_keys_t[at])


@jit
def _load_rows(inputs, block, b, h, first, last):
    """Copy the gradients of a block, zero beyond the last row, and compute grad . out by row."""
    block.grad[:], block.delta[:], block.grad_rows[:] = 0, 0, 0
    for r in range(last - first):
        grad, out, target = inputs.grad[b, h, first + r], inputs.out[b, h, first + r], block.grad[r]
        total = inputs.const[5]
        for c in range(grad.shape[0]):
            target[c] = grad[c]
        for c in range(grad.shape[0]):
            total += grad[c] * out[c]
        block.delta[r] = total


@jit
def _score_gradients(scores, ds, delta, lse, const):
    """Turn scores into weights p and their gradients ds into those of scores; return the sum."""
    half, zero, clamp = const[4], const[5], const[2]
    total = zero
    for j in range(scores.shape[0]):
        p = exp_nonpositive(scores[j] - lse, half, zero, clamp)
        scores[j] = p
        ds[j] = p * (ds[j] - delta)
    for j in range(ds.shape[0]):
        total += ds[j]
    return total


@jit
def _backward_tile(rules, inputs, grads, tables, block, slot, b, h, first, tile, width, direct):
    """Accumulate all gradients of a block of rows and a tile of keys; return the sum of ds."""
    const, value_dim = inputs.const, tables.values.shape[1]
    begin, end, lo, hi, ds = block.begin, block.end, block.lo, block.hi, block.ds
    at = tile // KEYS
    exp_keys_t = tables.exp_keys_t[at]
    queries = inputs.query[b, h]
    score_tile(
        queries, tables.keys, block.v, block.rows, exp_keys_t, direct, tile, first, lo, hi, begin,
        end, const, block.scores,
    )  # fmt: skip
    total = const[5]
    for quad in range(begin.shape[0]):
        left, right = begin[quad], end[quad]
        if left == right:
            block.scores[4 * quad : 4 * quad + 4] = 0
            continue
        ds[4 * quad : 4 * quad + 4] = 0
        add_products(
            block.grad, 4 * quad, tables.values_t[at], 0, 0, value_dim, left, right, ds, 4 * quad
        )
        for r in range(4 * quad, 4 * quad + 4):
            low, high, i = lo[r] - tile, hi[r] - tile, first + r
            row = block.scores[r]
            base, scale = block.total_v[0], -2 * block.top_v[0]
            finish_scores(rules, b, h, i, tile, low, high, left, right, base, scale, row)
            row[:left], row[right:] = 0, 0
            lse = inputs.lse[b, h, i] if low < high else const[5]
            lse = const[5] if lse == -np.inf else lse
            total += _score_gradients(
                row[left:right], ds[r, left:right], block.delta[r], lse, const
            )
            add_bias_gradients(
                rules, grads, slot, b, h, i, tile, max(low, left), min(high, right), ds[r]
            )
            if direct and low < high:
                low, high = max(low, left), min(high, right)
                direct_gradients(
                    queries[i], tables.keys, tile, ds[r], low, high, const, block.grad_rows[r],
                    tables.grad_keys, block.grad_v,
                )  # fmt: skip
        if not direct:
            for i in range(4 * quad, 4 * quad + 4, 2):
                add_gradients(
                    block.rows, tables.exp_keys, tile, ds, i, left, right, const, block.grad_rows,
                    tables.grad_keys, block.grad_v,
                )  # fmt: skip
    if tables.grad_values.shape[0] > 0:
        transpose(block.scores, 0, block.scores.shape[0], block.weights)
        rows, target = block.grad.shape[0], tables.grad_values
        for j in range(0, width, 4):
            add_products(block.weights, j, block.grad, 0, 0, rows, 0, value_dim, target, tile + j)
    return total


@jit
def _backward_head(rules, inputs, grads, tables, block, slot, b, h, part, parts):
    """Process the blocks of rows of one query head; return the sum of all ds."""
    num_queries, num_keys = inputs.query.shape[2], tables.keys.shape[0]
    size, queries, const = block.rows.shape[0], inputs.query[b, h], inputs.const
    max_abs_key = max_abs(tables.keys.ravel())
    v = inputs.v[h]
    block.total_v[0], block.top_v[0] = normalize_v(v, const, block.v)
    total = const[5]
    for first in range(part * size, num_queries, parts * size):
        last = min(first + size, num_queries)
        least, stop = key_ranges(rules, b, h, first, last, num_keys, block.lo, block.hi)
        direct = is_direct(queries, first, last, max_abs_key, const)
        _load_rows(inputs, block, b, h, first, last)
        if not direct:
            exp_table(queries, first, last, const, block.rows)
        for tile in range(least // KEYS * KEYS, stop, KEYS):
            width = min(KEYS, round_up_to_lanes(num_keys - tile))
            if tile_columns(
                rules, b, h, first, block.lo, block.hi, tile, width, block.begin, block.end
            ):
                _fill_tile(tables, tile, width, const)
                total += _backward_tile(
                    rules, inputs, grads, tables, block, slot, b, h, first, tile, width, direct
                )
        for r in range(last - first):
            target, row = grads.query[b, h, first + r], block.grad_rows[r]
            for d in range(target.shape[0]):
                target[d] = (v[d] + v[d]) * (row[d] + row[d])
    return total


@jit_inline
def _backward_task(rules, inputs, grads, slot, b, g, part, parts):
    """Process one key head of one batch entry: every `parts`-th block of its query heads' rows."""
    heads, num_queries, dim = inputs.query.shape[1:]
    group = heads // inputs.keys.shape[1]
    num_keys, value_dim, dtype = inputs.keys.shape[2], inputs.values.shape[3], inputs.query.dtype
    wide, tiles = round_up_to_lanes(dim), (num_keys + KEYS - 1) // KEYS
    tables = TileTables(
        keys=inputs.keys[b, g],
        values=inputs.values[b, g],
        exp_keys=np.empty((tiles * KEYS, wide), dtype),
        exp_keys_t=np.empty((tiles, wide, KEYS), dtype),
        values_t=np.empty((tiles, value_dim, KEYS), dtype),
        is_filled=np.zeros(tiles, np.bool_),
        grad_keys=np.zeros((tiles * KEYS, wide), dtype),
        grad_values=np.zeros((tiles * KEYS if grads.values.size > 0 else 0, value_dim), dtype),
    )
    grads.keys[part, b, g] = 0
    size = min(ROWS, (num_queries + 3) // 4 * 4)
    block = RowBlock(
        rows=np.empty((size, wide), dtype),
        scores=np.empty((size, KEYS), dtype),
        ds=np.empty((size, KEYS), dtype),
        weights=np.empty((KEYS, size), dtype),
        grad=np.empty((size, value_dim), dtype),
        delta=np.empty(size, dtype),
        grad_rows=np.empty((size, wide), dtype),
        grad_v=np.empty(wide, dtype),
        v=np.empty(wide, dtype),
        top_v=np.empty(1, dtype),
        total_v=np.empty(1, dtype),
        lo=np.empty(size, np.int64),
        hi=np.empty(size, np.int64),
        begin=np.empty(size // 4, np.int64),
        end=np.empty(size // 4, np.int64),
    )
    for h in range(g * group, (g + 1) * group):
        tables.grad_keys[:], block.grad_v[:] = 0, 0
        total = _backward_head(rules, inputs, grads, tables, block, slot, b, h, part, parts)
        v = inputs.v[h]
        grad_v = grads.v[part, b, h]
        for d in range(dim):
            grad_v[d] = total - (block.grad_v[d] + block.grad_v[d])
        for j in range(tables.keys.shape[0]):
            target, row = grads.keys[part, b, g, j], tables.grad_keys[j]
            for d in range(dim):
                target[d] += (v[d] + v[d]) * (row[d] + row[d])
    if tables.grad_values.shape[0] > 0:
        grads.values[part, b, g] = tables.grad_values[: tables.keys.shape[0]]


@jit_worker
def backward_tasks(dtype):
    """Run tasks until none is left; each thread adds gradients of biases in its own slot."""

    def run(address):
        job, slot = open_job(address)
        inputs, rules = input_arrays(job, dtype)
        grads = gradient_arrays(job, dtype)
        for b, g, part in claim_tasks(job, slot):
            _backward_task(rules, inputs, grads, slot, b, g, part, job[AT.parts])

    return run
