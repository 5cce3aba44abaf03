"""Additive attention on a CPU, forward: blocks of query rows walk over tiles of keys with an online softmax.

    m' = max(m, max_j s_j)    p_j = e^{s_j - m'}    c = e^{m - m'}
    l' = c l + sum_j p_j    o' = c o + sum_j p_j values_j

after the last tile out = o / l and lse = m + log l, so no row of weights is ever stored. A task is one key head of one
batch entry, or part of its query rows; it fills the tables of e^{2 key} that it needs, tile by tile, as it meets them.

Source: milakov2018 (online softmax), rabe2021 (attention without its weights); bahdanau2015, appendix A.1.2 (score).
"""

import math

import numpy as np

from regard.attention.kernels.additive_cpu_compile import compiled, pasted, worker
from regard.attention.kernels.additive_cpu_jobs import begin, inputs, more, results
from regard.attention.kernels.additive_cpu_loops import (
    KEYS,
    LANES,
    ROWS,
    add_products,
    add_scores,
    decay,
    direct_scores,
    largest,
    reach,
    table,
    transpose,
)
from regard.attention.kernels.additive_cpu_rules import columns, limits, settle


@compiled
def padded(size):
    """The size, rounded up to whole vectors."""
    return (size + LANES - 1) // LANES * LANES


@compiled
def unit(v, const, out):
    """Write v / max |v|, padded by zeros, to `out`; returns sum_d v_d and max |v|.

    With shares of one size at most, four of them over one division stay in range however large v is.
    """
    out[:] = 0
    most = reach(v)
    total = const[5]
    for d in range(v.size):
        total += v[d]
        out[d] = v[d] / most if most > const[5] else const[5]
    return total, most


@compiled
def is_direct(query, begin, end, keys_reach, const):
    """Whether a block of rows is out of the range of tables: larger than SIDE, with keys that are too."""
    return keys_reach > const[3] and reach(query[begin:end].ravel()) > const[3]


@compiled
def tile_table(keys, tile, width, const, rows, out):
    """out[d, j] = e^{2 keys[tile + j, d]}, zero beyond the keys; rows is scratch of (KEYS, dim)."""
    table(keys, tile, keys.shape[0], const, rows[:width])
    transpose(rows, 0, width, out)


@compiled
def score_tile(query, keys, v, rows, tables, direct, tile, block, lo, hi, begin, end, const, out):
    """out[r, j] = sum_d v_d / (1 + e^{2(query[block + r, d] + keys[tile + j, d])}) where a row reads its columns."""
    if direct:
        for r in range(min(4 * begin.shape[0], query.shape[0] - block)):
            left, right = max(lo[r] - tile, begin[r // 4]), min(hi[r] - tile, end[r // 4])
            direct_scores(query[block + r], keys, v, tile, left, right, const, out[r])
        return
    for r in range(4 * begin.shape[0]):
        out[r, begin[r // 4] : end[r // 4]] = 0
    add_scores(rows, tables, v, begin, end, const, out)


@compiled
def _soften(scores, r, top, norm, out, const):
    """One step of the online softmax of row r: its scores become e^{s - m}, and what it read so far is scaled."""
    best = largest(scores)
    old = top[r]
    best = old if best < old else best
    if best == -np.inf:
        scores[:] = 0
        return
    half, zero, clamp = const[4], const[5], const[2]
    factor = zero if old == -np.inf else decay(old - best, half, zero, clamp)
    total = zero
    for j in range(scores.shape[0]):
        p = decay(scores[j] - best, half, zero, clamp)
        scores[j] = p
        total += p
    norm[r] = norm[r] * factor + total
    top[r] = best
    if factor != const[0]:
        row = out[r]
        for c in range(row.shape[0]):
            row[c] *= factor


@compiled
def _finish(top, norm, read, block, num_rows, out, lse):
    """out = o / l and lse = m + log l; a row that read nothing gives zeros and minus infinity."""
    for r in range(num_rows):
        to, row = out[block + r], read[r]
        if norm[r] == 0:
            to[:] = 0
            lse[block + r] = -np.inf
            continue
        for c in range(to.shape[0]):
            to[c] = row[c] / norm[r]
        lse[block + r] = top[r] + math.log(norm[r])


@pasted
def _read_task(rules, b, g, part, parts, query, keys, values, v, const, out, lse):
    """One key head of one batch entry: every `parts`-th block of rows of each of its query heads."""
    num_queries, dim = query.shape[2], query.shape[3]
    num_keys, value_dim = keys.shape[2], values.shape[3]
    group, wide = query.shape[1] // keys.shape[1], padded(dim)
    size = min(ROWS, (num_queries + 3) // 4 * 4)
    num_tiles = (num_keys + KEYS - 1) // KEYS
    memory, read_values = keys[b, g], values[b, g]
    keys_reach = reach(memory.ravel())
    tables = np.empty((num_tiles, wide, KEYS), query.dtype)
    known = np.zeros(num_tiles, np.bool_)
    scratch = np.empty((KEYS, wide), query.dtype)
    rows, scores = np.empty((size, wide), query.dtype), np.empty((size, KEYS), query.dtype)
    read, scaled = np.empty((size, value_dim), query.dtype), np.empty(wide, query.dtype)
    top, norm = np.empty(size, query.dtype), np.empty(size, query.dtype)
    lo, hi = np.empty(size, np.int64), np.empty(size, np.int64)
    begin, end = np.empty(size // 4, np.int64), np.empty(size // 4, np.int64)
    for h in range(g * group, (g + 1) * group):
        total, most = unit(v[h if v.shape[0] > 1 else 0], const, scaled)
        asked = query[b, h]
        for block in range(part * size, num_queries, parts * size):
            last = min(block + size, num_queries)
            least, stop = limits(rules, b, h, block, last, num_keys, lo, hi)
            direct = is_direct(asked, block, last, keys_reach, const)
            if not direct and least < stop:
                table(asked, block, last, const, rows)
            top[:], norm[:], read[:] = -np.inf, 0, 0
            for tile in range(least // KEYS * KEYS, stop, KEYS):
                width = min(KEYS, padded(num_keys - tile))
                if not columns(rules, b, h, block, lo, hi, tile, width, begin, end):
                    continue
                if not direct and not known[tile // KEYS]:
                    tile_table(memory, tile, width, const, scratch, tables[tile // KEYS])
                    known[tile // KEYS] = True
                here = tables[tile // KEYS]
                score_tile(asked, memory, scaled, rows, here, direct, tile, block, lo, hi, begin, end, const, scores)
                for four in range(size // 4):
                    left, right = begin[four], end[four]
                    if left == right:
                        continue
                    for r in range(4 * four, 4 * four + 4):
                        at, to = lo[r] - tile, hi[r] - tile
                        settle(rules, b, h, block + r, tile, at, to, left, right, total, -most - most, scores[r])
                        _soften(scores[r, left:right], r, top, norm, read, const)
                    right = min(right, num_keys - tile)
                    add_products(scores, 4 * four, read_values, tile, left, right, 0, value_dim, read, 4 * four)
            _finish(top, norm, read, block, last - block, out[b, h], lse[b, h])


@worker
def forward_tasks(dtype, stamp):
    """Take tasks until none is left; each thread runs this."""

    def run(address):
        _ = stamp
        job, _, task = begin(address)
        query, keys, values, v, rules, const, parts = inputs(job, dtype)
        out, lse = results(job, dtype)
        heads = keys.shape[1]
        while task < keys.shape[0] * heads * parts:
            place = task // parts
            _read_task(
                rules, place // heads, place % heads, task % parts, parts, query, keys, values, v, const, out, lse
            )
            task = more(job, task)

    return run
