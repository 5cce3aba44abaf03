"""Additive attention on a GPU, backward: weights by the log-sum-exp, sums without atomics.

    p[i,j] = e^(s[i,j] - lse[i])    ds[i,j] = p[i,j] (grad_out[i] . value[j] - out[i] . grad_out[i])
    grad_a[i,d] = 4 v[d] sum_j ds r (1 - r)     grad_b[j,d] = 4 v[d] sum_i ds r (1 - r)
    grad_v[d] = -2 sum_ij ds r                  grad_value[j] = sum_i p[i,j] grad_out[i]

(r: see tiles.py; grad_v needs no sum of ds, which is 0.)

Two kernels: programs of the first own queries and loop over keys; those of the second own keys and
loop over queries. Each writes sums of its own rows, in float32 and in a fixed order, which
regard.native.additive.gpu.finish adds up over splits: only the gradients of broadcast biases and of
diagonals need atomic additions, and all others are the same bit for bit in every run.

Instructions per query, key and unit: 3.5 for the scores (4 multiply-adds, 10 others and a
reciprocal for 4 units), 2.5 for r (a reciprocal for 2 units), 3 for the sums of the query and of v,
2 for that of the keys: 9 and 8, with no exponential. One kernel for both sides would compute scores
and r once, but sum over both axes of a tile: over the lanes of a warp that takes more instructions
than it saves, and atomic additions would come in any order.

There are no tensor-core products here: their layout would be that of the tile, whose sums over
`other` would then cross lanes, and each pair of units would move through shared memory. Unit and
value sums go through memory, (units, length) with the lanes of a warp along the length: they are
too many for registers, and one addition per tile is cheap compared to the tile itself.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.native.additive.gpu.tiles import (
    add_all_units,
    add_at,
    add_values,
    clear,
    initial_scores,
    key_ranges,
    locate_program,
    residuals,
    score_gradients,
    split_range,
    tops_at,
)


@triton.jit
@no_type_check
def add_unit_gradients(
    grad_own, grad_weights, weights, slopes, own_exp, other_exp, own_raw, other_raw, own_at,
    other_at, own_len, other_len, own_padded, other_padded, own_tops, other_tops,
    units, dim,
    FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add weights sum ds r (1 - r) to grad_own, sum ds r to grad_weights, both (units, own).

    A pair of units at a time, as they share a division. Either gradient may be None.
    """
    own_in = own_at < own_len
    for unit in range(0, units, 2):
        r0, r1 = residuals(
            own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len,
            own_padded, other_padded, own_tops, other_tops, unit, dim, FAST, WIDE,
        )  # fmt: skip
        if grad_own is not None:
            w0 = tl.load(weights + unit)
            w1 = tl.load(weights + unit + 1)
            add_at(grad_own + own_at, w0 * tl.sum(slopes * (r0 - r0 * r0), 0), own_in)
            add_at(grad_own + own_len + own_at, w1 * tl.sum(slopes * (r1 - r1 * r1), 0), own_in)
            grad_own += 2 * own_len
        if grad_weights is not None:
            add_at(grad_weights + own_at, tl.sum(slopes * r0, 0), own_in)
            add_at(grad_weights + own_len + own_at, tl.sum(slopes * r1, 0), own_in)
            grad_weights += 2 * own_len
        own_exp += 2 * own_padded
        other_exp += 2 * other_padded
    tl.debug_barrier()  # another thread may load the stored values in the next tile


@triton.jit
@no_type_check
def add_bias_gradients(
    grad_bias, bias_strides, grad_diagonals, strides, slopes, rows, cols, batch, head, num_queries,
    num_keys, ATOMIC: tl.constexpr,
):  # fmt: skip
    """Add gradients of the scores to those of the biases. `ATOMIC`: pairs share its elements."""
    inside = (rows < num_queries)[None, :] & (cols < num_keys)[:, None]
    if grad_bias is not None:
        target = grad_bias + batch * bias_strides[0] + head * bias_strides[1]
        target += rows.to(tl.int64)[None, :] * bias_strides[2]
        target += cols.to(tl.int64)[:, None] * bias_strides[3]
        if ATOMIC:
            tl.atomic_add(target, slopes, mask=inside)
        else:
            tl.store(target, slopes, mask=inside)
    if grad_diagonals is not None:
        target = grad_diagonals + batch * strides[8] + head * strides[9]
        target += cols[:, None] - rows[None, :] + num_queries - 1
        tl.atomic_add(target, slopes, mask=inside)


@triton.jit
@no_type_check
def query_kernel(
    query_sums, v_sums, grad_bias, grad_diagonals, bias_strides, grad_rows, delta, lse, query,
    keys, value_rows, query_exp, keys_exp, weights, totals, query_tops, keys_tops, first, last,
    allowed, bias, diagonals, strides, heads, key_heads, num_queries, num_keys, query_padded,
    keys_padded, units, dim, value_dim, splits, OWN: tl.constexpr,
    OTHER: tl.constexpr, ATOMIC: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of `OWN` queries of one head for one split of the keys.

    All gradients may be None: query_sums and v_sums (splits, batch, head, unit, query), grad_bias
    with `bias_strides` and grad_diagonals with the strides of the diagonals, both zeros before.
    """
    start, split, batch_head, num_slices = locate_program(num_queries, splits, OWN)
    batch, head = batch_head // heads, batch_head % heads
    key_side = batch * key_heads + head // (heads // key_heads)
    rows = start + tl.arange(0, OWN)
    rows_in = rows < num_queries
    starts, ends = key_ranges(first, last, strides, batch, head, rows, num_queries, num_keys)
    at_rows = batch_head * num_queries + rows
    logs = tl.load(lse + at_rows, mask=rows_in, other=0.0)
    logs = tl.where(
        logs == float("-inf"), 0.0, logs
    )  # a fully masked row: all its scores are -inf, so p = 0
    deltas = tl.load(delta + at_rows, mask=rows_in, other=0.0)
    query += batch_head * num_queries * dim
    keys += key_side * num_keys * dim
    query_exp += batch_head * query_padded * units
    keys_exp += key_side * keys_padded * units
    query_tops = tops_at(query_tops, batch_head, query_padded, start, units)
    weights += head * units
    if query_sums is not None:
        query_sums += (split * num_slices + batch_head) * num_queries * units
        clear(query_sums, units, rows, num_queries)
    if v_sums is not None:
        v_sums += (split * num_slices + batch_head) * num_queries * units
        clear(v_sums, units, rows, num_queries)
    begin, end = split_range(num_keys, split, splits, OTHER)
    for low in range(
        tl.maximum(begin, tl.min(starts, 0) // OTHER * OTHER),
        tl.minimum(end, tl.max(ends, 0)),
        OTHER,
    ):
        cols = low + tl.arange(0, OTHER)
        scores = initial_scores(
            rows[None, :], cols[:, None], starts[None, :], ends[None, :], batch, head, num_queries,
            num_keys, allowed, bias, diagonals, strides, WIDE,
        )  # fmt: skip
        if tl.max(tl.max(scores, 0), 0) > float("-inf"):
            tops = tops_at(keys_tops, key_side, keys_padded, low, units)
            scores = add_all_units(
                scores + tl.load(totals + head), query_exp, keys_exp, query, keys, rows, cols,
                num_queries, num_keys, query_padded, keys_padded, query_tops, tops, weights, units,
                dim, FAST, WIDE,
            )  # fmt: skip
            slopes = score_gradients(
                tl.exp(scores - logs[None, :]), deltas[None, :],
                grad_rows + batch_head * query_padded * value_dim,
                value_rows + key_side * keys_padded * value_dim, rows, cols, query_padded,
                keys_padded, value_dim,
            )  # fmt: skip
            add_bias_gradients(
                grad_bias, bias_strides, grad_diagonals, strides, slopes, rows, cols, batch, head,
                num_queries, num_keys, ATOMIC,
            )  # fmt: skip
            if (query_sums is not None) or (v_sums is not None):
                add_unit_gradients(
                    query_sums, v_sums, weights, slopes, query_exp, keys_exp, query, keys, rows,
                    cols, num_queries, num_keys, query_padded, keys_padded, query_tops, tops, units,
                    dim, FAST, WIDE,
                )  # fmt: skip


@triton.jit
@no_type_check
def keys_kernel(
    keys_sums, value_sums, grad_rows, delta, lse, query,
    keys, value_rows, query_exp, keys_exp, weights, totals, query_tops, keys_tops, first, last,
    allowed, bias, diagonals, strides, heads, key_heads, num_queries, num_keys, query_padded,
    keys_padded, units, dim, value_dim, splits, OWN: tl.constexpr,
    OTHER: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `OWN` keys of a key head for one split of all its heads' queries.

    Both gradients may be None: keys_sums (splits, batch, key_head, unit, key) and value_sums
    (splits, batch, key_head, value_dim, key).
    """
    start, split, key_side, num_slices = locate_program(num_keys, splits, OWN)
    batch = key_side // key_heads
    cols = start + tl.arange(0, OWN)
    keys += key_side * num_keys * dim
    keys_exp += key_side * keys_padded * units
    keys_tops = tops_at(keys_tops, key_side, keys_padded, start, units)
    if keys_sums is not None:
        keys_sums += (split * num_slices + key_side) * num_keys * units
        clear(keys_sums, units, cols, num_keys)
    if value_sums is not None:
        value_sums += (split * num_slices + key_side) * num_keys * value_dim
        clear(value_sums, value_dim, cols, num_keys)
    begin, end = split_range(num_queries, split, splits, OTHER)
    tiles = (end - begin + OTHER - 1) // OTHER
    group = heads // key_heads
    for step in range(0, group * tiles):
        head = key_side % key_heads * group + step // tiles
        rows = begin + step % tiles * OTHER + tl.arange(0, OTHER)
        starts, ends = key_ranges(first, last, strides, batch, head, rows, num_queries, num_keys)
        if (tl.min(starts, 0) < start + OWN) & (tl.max(ends, 0) > start):
            scores = initial_scores(
                rows[:, None], cols[None, :], starts[:, None], ends[:, None], batch, head,
                num_queries, num_keys, allowed, bias, diagonals, strides, WIDE,
            )  # fmt: skip
            if tl.max(tl.max(scores, 0), 0) > float("-inf"):
                process_query_tile(
                    keys_sums, value_sums, grad_rows, value_rows + key_side * keys_padded *
                    value_dim, delta, lse, query, keys, query_exp, keys_exp, weights +
                    head * units, totals + head, query_tops, keys_tops, scores,
                    batch * heads + head, begin + step % tiles * OTHER, rows, cols, num_queries,
                    num_keys, query_padded, keys_padded, units, dim, value_dim, FAST, WIDE,
                )  # fmt: skip


@triton.jit
@no_type_check
def process_query_tile(
    keys_sums, value_sums, grad_rows, value_rows, delta, lse, query, keys, query_exp, keys_exp,
    weights, total, query_tops, keys_tops, scores, batch_head, low, rows, cols, num_queries,
    num_keys, query_padded, keys_padded, units, dim, value_dim, FAST: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Add the gradients of one tile of queries, from `low` on, to the keys of `keys_kernel`."""
    rows_in = rows < num_queries
    at_rows = batch_head * num_queries + rows
    query += batch_head * num_queries * dim
    query_exp += batch_head * query_padded * units
    query_tops = tops_at(query_tops, batch_head, query_padded, low, units)
    grad_rows += batch_head * query_padded * value_dim
    logs = tl.load(lse + at_rows, mask=rows_in, other=0.0)
    logs = tl.where(logs == float("-inf"), 0.0, logs)
    scores = add_all_units(
        scores + tl.load(total), keys_exp, query_exp, keys, query, cols, rows, num_keys,
        num_queries, keys_padded, query_padded, keys_tops, query_tops, weights, units, dim, FAST,
        WIDE,
    )  # fmt: skip
    probs = tl.exp(scores - logs[:, None])
    if value_sums is not None:
        add_values(
            value_sums, probs, None, grad_rows, cols, rows, num_keys, query_padded, value_dim
        )
    if keys_sums is not None:
        deltas = tl.load(delta + at_rows, mask=rows_in, other=0.0)
        slopes = score_gradients(
            probs, deltas[:, None], value_rows, grad_rows, cols, rows, keys_padded, query_padded,
            value_dim,
        )  # fmt: skip
        add_unit_gradients(
            keys_sums, None, weights, slopes, keys_exp, query_exp, keys, query, cols, rows,
            num_keys, num_queries, keys_padded, query_padded, keys_tops, query_tops, units, dim,
            FAST, WIDE,
        )  # fmt: skip
