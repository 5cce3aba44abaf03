"""Additive attention on a GPU, backward: weights by the log-sum-exp, sums without atomics.

    p[i,j] = e^(s[i,j] - lse[i])    ds[i,j] = p[i,j] (grad_out[i] . value[j] - out[i] . grad_out[i])
    grad_a[i,d] = 4 v[d] sum_j ds r (1 - r)     grad_b[j,d] = 4 v[d] sum_i ds r (1 - r)
    grad_v[d] = -2 sum_ij ds r                  grad_value[j] = sum_i p[i,j] grad_out[i]

(r: see tiles.py; grad_v needs no sum of ds, which is 0.)

Programs of the first kernel own queries and loop over keys; those of the second own keys and loop
over queries. Each adds to its own rows, in float32 and in a fixed order, so only the gradients of
broadcast biases and of diagonals need atomic additions. Unit sums go through memory, (units,
length) with the lanes of a warp along the length: they are too many for registers, and one addition
per tile is cheap compared to the tile itself.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.native.additive.gpu.tiles import (
    add_all_units,
    initial_scores,
    locate_program,
    product,
    residuals,
    score_gradients,
    split_range,
)


@triton.jit
@no_type_check
def add_at(target, amount, inside):
    """Add to memory that only this program accesses."""
    tl.store(target, tl.load(target, mask=inside, other=0.0) + amount, mask=inside)


@triton.jit
@no_type_check
def add_unit_gradients(
    grad_own, grad_weights, weights, slopes, own_exp, other_exp, own_raw, other_raw, own_at,
    other_at, own_len, other_len, own_padded, other_padded, fits, units, dim,
    FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add weights sum ds r (1 - r) to grad_own, sum ds r to grad_weights, both (units, own).

    A pair of units at a time, as they share a division. Either gradient may be None.
    """
    own_in = own_at < own_len
    for unit in range(0, units, 2):
        r0, r1 = residuals(
            own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len,
            own_padded, other_padded, fits, unit, dim, FAST, WIDE,
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
    grad_query, grad_weights, grad_bias, grad_diagonals, bias_strides, grad_out, delta, lse,
    query, keys, values, query_exp, keys_exp, weights, totals, fits, first, last, allowed, bias,
    diagonals, strides, heads, key_heads, num_queries, num_keys, query_padded, keys_padded, units,
    dim, value_dim, splits, OWN: tl.constexpr, OTHER: tl.constexpr, VALUES: tl.constexpr,
    ATOMIC: tl.constexpr, FAST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of `OWN` queries of one head for one split of the keys.

    All gradients are initialized with zeros and may be None: grad_query and grad_weights (splits,
    batch, head, unit, query), grad_bias with `bias_strides`, grad_diagonals with the strides of the
    diagonals.
    """
    start, split, batch_head, num_slices = locate_program(num_queries, splits, OWN)
    batch, head = batch_head // heads, batch_head % heads
    key_side = batch * key_heads + head // (heads // key_heads)
    rows = start + tl.arange(0, OWN)
    rows_in = rows < num_queries
    at_rows = batch_head * num_queries + rows
    starts = tl.load(first + at_rows, mask=rows_in, other=num_keys)
    ends = tl.load(last + at_rows, mask=rows_in, other=0)
    logs = tl.load(lse + at_rows, mask=rows_in, other=0.0)
    logs = tl.where(
        logs == float("-inf"), 0.0, logs
    )  # a fully masked row: all its scores are -inf, so p = 0
    deltas = tl.load(delta + at_rows, mask=rows_in, other=0.0)
    query += batch_head * num_queries * dim
    keys += key_side * num_keys * dim
    query_exp += batch_head * query_padded * units
    keys_exp += key_side * keys_padded * units
    fits += key_side * (units // 4)
    weights += head * units
    if grad_query is not None:
        grad_query += (split * num_slices + batch_head) * num_queries * units
    if grad_weights is not None:
        grad_weights += (split * num_slices + batch_head) * num_queries * units
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
        if tl.max(tl.max(scores, 1), 0) > float("-inf"):
            scores = add_all_units(
                scores + tl.load(totals + head), query_exp, keys_exp, query, keys, rows, cols,
                num_queries, num_keys, query_padded, keys_padded, fits, weights, units, dim, FAST,
                WIDE,
            )  # fmt: skip
            slopes = score_gradients(
                tl.exp(scores - logs[None, :]), deltas[None, :],
                grad_out + batch_head * num_queries * value_dim,
                values + key_side * num_keys * value_dim, rows, cols, num_queries, num_keys,
                value_dim, VALUES, DOT, PRECISION, WIDE,
            )  # fmt: skip
            add_bias_gradients(
                grad_bias, bias_strides, grad_diagonals, strides, slopes, rows, cols, batch, head,
                num_queries, num_keys, ATOMIC,
            )  # fmt: skip
            if (grad_query is not None) or (grad_weights is not None):
                add_unit_gradients(
                    grad_query, grad_weights, weights, slopes, query_exp, keys_exp, query, keys,
                    rows, cols, num_queries, num_keys, query_padded, keys_padded, fits, units, dim,
                    FAST, WIDE,
                )  # fmt: skip


@triton.jit
@no_type_check
def add_value_gradients(
    grad_values, probs, grad_out, rows, cols, num_queries, num_keys, value_dim,
    VALUES: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add sum_i p[i,j] grad_out[i] to grad_values, (key, value_dim)."""
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        inside = (lanes < value_dim)[None, :]
        source = grad_out + rows.to(tl.int64)[:, None] * value_dim + lanes[None, :]
        gradient = tl.load(source, mask=(rows < num_queries)[:, None] & inside, other=0.0)
        part = product(tl.trans(probs), gradient, DOT, PRECISION, WIDE)
        target = grad_values + cols.to(tl.int64)[:, None] * value_dim + lanes[None, :]
        add_at(target, part, (cols < num_keys)[:, None] & inside)
    tl.debug_barrier()  # as in add_unit_gradients


@triton.jit
@no_type_check
def keys_kernel(
    grad_keys, grad_values, grad_out, delta, lse,
    query, keys, values, query_exp, keys_exp, weights, totals, fits, first, last, allowed, bias,
    diagonals, strides, heads, key_heads, num_queries, num_keys, query_padded, keys_padded, units,
    dim, value_dim, splits, OWN: tl.constexpr, OTHER: tl.constexpr, VALUES: tl.constexpr,
    FAST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `OWN` keys of a key head for one split of all its heads' queries.

    Both gradients are initialized with zeros and may be None: grad_keys (splits, batch, key_head,
    unit, key) and grad_values (splits, batch, key_head, key, value_dim).
    """
    start, split, key_side, num_slices = locate_program(num_keys, splits, OWN)
    batch = key_side // key_heads
    cols = start + tl.arange(0, OWN)
    keys += key_side * num_keys * dim
    values += key_side * num_keys * value_dim
    keys_exp += key_side * keys_padded * units
    fits += key_side * (units // 4)
    if grad_keys is not None:
        grad_keys += (split * num_slices + key_side) * num_keys * units
    if grad_values is not None:
        grad_values += (split * num_slices + key_side) * num_keys * value_dim
    begin, end = split_range(num_queries, split, splits, OTHER)
    tiles = (end - begin + OTHER - 1) // OTHER
    group = heads // key_heads
    for step in range(0, group * tiles):
        head = key_side % key_heads * group + step // tiles
        rows = begin + step % tiles * OTHER + tl.arange(0, OTHER)
        process_query_tile(
            grad_keys, grad_values, grad_out, delta, lse, query, keys, values, query_exp, keys_exp,
            weights, totals, fits, first, last, allowed, bias, diagonals, strides, batch, head,
            batch * heads + head, start, rows, cols, num_queries, num_keys, query_padded,
            keys_padded, units, dim, value_dim, OWN, VALUES, FAST, DOT, PRECISION, WIDE,
        )  # fmt: skip


@triton.jit
@no_type_check
def process_query_tile(
    grad_keys, grad_values, grad_out, delta, lse, query, keys, values, query_exp, keys_exp,
    weights, totals, fits, first, last, allowed, bias, diagonals, strides, batch, head, batch_head,
    start, rows, cols, num_queries, num_keys, query_padded, keys_padded, units, dim, value_dim,
    OWN: tl.constexpr, VALUES: tl.constexpr, FAST: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add the gradients of one tile of queries, with any ranges, to the keys of `keys_kernel`."""
    rows_in = rows < num_queries
    at_rows = batch_head * num_queries + rows
    starts = tl.load(first + at_rows, mask=rows_in, other=num_keys)
    ends = tl.load(last + at_rows, mask=rows_in, other=0)
    if (tl.min(starts, 0) < start + OWN) & (tl.max(ends, 0) > start):
        scores = initial_scores(
            rows[:, None], cols[None, :], starts[:, None], ends[:, None], batch, head, num_queries,
            num_keys, allowed, bias, diagonals, strides, WIDE,
        )  # fmt: skip
        if tl.max(tl.max(scores, 1), 0) > float("-inf"):
            query += batch_head * num_queries * dim
            grad_out += batch_head * num_queries * value_dim
            weights += head * units
            query_exp += batch_head * query_padded * units
            logs = tl.load(lse + at_rows, mask=rows_in, other=0.0)
            logs = tl.where(logs == float("-inf"), 0.0, logs)
            scores = add_all_units(
                scores + tl.load(totals + head), keys_exp, query_exp, keys, query, cols, rows,
                num_keys, num_queries, keys_padded, query_padded, fits, weights, units, dim, FAST,
                WIDE,
            )  # fmt: skip
            probs = tl.exp(scores - logs[:, None])
            if grad_values is not None:
                add_value_gradients(
                    grad_values, probs, grad_out, rows, cols, num_queries, num_keys, value_dim,
                    VALUES, DOT, PRECISION, WIDE,
                )  # fmt: skip
            if grad_keys is not None:
                deltas = tl.load(delta + at_rows, mask=rows_in, other=0.0)
                slopes = score_gradients(
                    probs, deltas[:, None], values, grad_out, cols, rows, num_keys, num_queries,
                    value_dim, VALUES, DOT, PRECISION, WIDE,
                )  # fmt: skip
                add_unit_gradients(
                    grad_keys, None, weights, slopes, keys_exp, query_exp, keys, query, cols, rows,
                    num_keys, num_queries, keys_padded, query_padded, fits, units, dim, FAST, WIDE,
                )  # fmt: skip
