"""Additive attention on a CPU, forward: query blocks against key tiles with an online softmax.

    m' = max(m, max_j s_j)    p_j = e^{s_j - m'}    c = e^{m - m'}
    l' = c l + sum_j p_j    o' = c o + sum_j p_j values_j

After the last tile out = o / l and lse = m + log l, so no row of weights is ever stored. A task is
one key head of one batch entry, or part of its query rows; it fills the tables of e^{2 key} tile by
tile, on first use.

Source: milakov2018 (online softmax), rabe2021 (attention without its weights); bahdanau2015,
        appendix A.1.2 (score).
"""

import math

import numpy as np

from regard.native.additive.cpu.jobs import AT, claim_tasks, input_arrays, open_job
from regard.native.additive.cpu.loops import (
    KEYS,
    LANES,
    ROWS,
    add_products,
    add_scores,
    direct_scores,
    exp_nonpositive,
    exp_table,
    max_abs,
    max_value,
    transpose,
)
from regard.native.additive.cpu.rules import finish_scores, key_ranges, tile_columns
from regard.native.compile import jit, jit_inline, jit_worker


@jit
def round_up_to_lanes(size):
    """Round the size up to whole vectors."""
    return (size + LANES - 1) // LANES * LANES


@jit
def normalize_v(v, const, out):
    """Write v / max |v|, padded with zeros, to `out`; return sum_d v_d and max |v|.

    As no normalized entry exceeds 1, four quotients that share one division stay in range however
    large v is.
    """
    out[:] = 0
    most = max_abs(v)
    total = const[5]
    for d in range(v.size):
        total += v[d]
    for d in range(v.size):
        out[d] = v[d] / most if most > const[5] else const[5]
    return total, most


@jit
def is_direct(query, begin, end, max_abs_key, const):
    """Return True without tables for a block of rows: queries and keys are larger than SIDE."""
    return max_abs_key > const[3] and max_abs(query[begin:end].ravel()) > const[3]


@jit
def score_tile(query, keys, v, rows, tables, direct, tile, block, lo, hi, begin, end, const, out):
    """Set out[r, j] = sum_d v_d / (1 + e^{2(query[block + r, d] + keys[tile + j, d])})."""
    if direct:
        for r in range(min(4 * begin.shape[0], query.shape[0] - block)):
            left, right = max(lo[r] - tile, begin[r // 4]), min(hi[r] - tile, end[r // 4])
            direct_scores(query[block + r], keys, v, tile, left, right, const, out[r])
        return
    for r in range(4 * begin.shape[0]):
        out[r, begin[r // 4] : end[r // 4]] = 0
    add_scores(rows, tables, v, begin, end, const, out)


@jit
def _softmax_step(scores, r, top, norm, out, const):
    """Apply a step of the online softmax to row r: scores become e^{s - m}, sums are rescaled."""
    best = max_value(scores)
    old = top[r]
    best = old if best < old else best
    if best == -np.inf:
        scores[:] = 0
        return
    half, zero, clamp = const[4], const[5], const[2]
    factor = zero if old == -np.inf else exp_nonpositive(old - best, half, zero, clamp)
    total = zero
    for j in range(scores.shape[0]):
        p = exp_nonpositive(scores[j] - best, half, zero, clamp)
        scores[j] = p
        total += p
    norm[r] = norm[r] * factor + total
    top[r] = best
    if factor != const[0]:
        row = out[r]
        for c in range(row.shape[0]):
            row[c] *= factor


@jit
def _finish(top, norm, sums, block, num_rows, out, lse):
    """Write out = o / l and lse = m + log l; a fully masked row gives zeros and minus infinity."""
    for r in range(num_rows):
        target, row = out[block + r], sums[r]
        if norm[r] == 0:
            target[:] = 0
            lse[block + r] = -np.inf
            continue
        for c in range(target.shape[0]):
            target[c] = row[c] / norm[r]
        lse[block + r] = top[r] + math.log(norm[r])


@jit_inline
def _read_task(rules, inputs, b, g, part, parts):
    """Process one key head of one batch entry: every `parts`-th block of its query heads' rows."""
    heads, num_queries, dim = inputs.query.shape[1:]
    memory, values, const = inputs.keys[b, g], inputs.values[b, g], inputs.const
    dtype, num_keys, value_dim = memory.dtype, memory.shape[0], values.shape[1]
    group, wide = heads // inputs.keys.shape[1], round_up_to_lanes(dim)
    size = min(ROWS, (num_queries + 3) // 4 * 4)
    num_tiles = (num_keys + KEYS - 1) // KEYS
    max_abs_key = max_abs(memory.ravel())
    tables = np.empty((num_tiles, wide, KEYS), dtype)
    is_filled = np.zeros(num_tiles, np.bool_)
    scratch = np.empty((KEYS, wide), dtype)
    rows, scores = np.empty((size, wide), dtype), np.empty((size, KEYS), dtype)
    sums, unit_v = np.empty((size, value_dim), dtype), np.empty(wide, dtype)
    top, norm = np.empty(size, dtype), np.empty(size, dtype)
    lo, hi = np.empty(size, np.int64), np.empty(size, np.int64)
    begin, end = np.empty(size // 4, np.int64), np.empty(size // 4, np.int64)
    for h in range(g * group, (g + 1) * group):
        total, most = normalize_v(inputs.v[h], const, unit_v)
        queries = inputs.query[b, h]
        for block in range(part * size, num_queries, parts * size):
            last = min(block + size, num_queries)
            least, stop = key_ranges(rules, b, h, block, last, num_keys, lo, hi)
            direct = is_direct(queries, block, last, max_abs_key, const)
            if not direct and least < stop:
                exp_table(queries, block, last, const, rows)
            top[:], norm[:], sums[:] = -np.inf, 0, 0
            for tile in range(least // KEYS * KEYS, stop, KEYS):
                width = min(KEYS, round_up_to_lanes(num_keys - tile))
                if not tile_columns(rules, b, h, block, lo, hi, tile, width, begin, end):
                    continue
                if not direct and not is_filled[tile // KEYS]:
                    exp_table(memory, tile, num_keys, const, scratch[:width])
                    transpose(scratch, 0, width, tables[tile // KEYS])
                    is_filled[tile // KEYS] = True
                tile_exps = tables[tile // KEYS]
                score_tile(queries, memory, unit_v, rows, tile_exps, direct, tile, block, lo, hi,
                           begin, end, const, scores)  # fmt: skip
                for quad in range(0, size, 4):
                    left, right = begin[quad // 4], end[quad // 4]
                    if left == right:
                        continue
                    for r in range(quad, quad + 4):
                        low, high, row = lo[r] - tile, hi[r] - tile, scores[r]
                        finish_scores(rules, b, h, block + r, tile, low, high, left, right, total,
                                      -most - most, row)  # fmt: skip
                        _softmax_step(row[left:right], r, top, norm, sums, const)
                    right = min(right, num_keys - tile)
                    add_products(scores, quad, values, tile, left, right, 0, value_dim, sums, quad)
            _finish(top, norm, sums, block, last - block, inputs.out[b, h], inputs.lse[b, h])


@jit_worker
def forward_tasks(dtype):
    """Run tasks until none is left; each thread calls this."""

    def run(address):
        job, slot = open_job(address)
        inputs, rules = input_arrays(job, dtype)
        for b, g, part in claim_tasks(job, slot):
            _read_task(rules, inputs, b, g, part, job[AT.parts])

    return run
