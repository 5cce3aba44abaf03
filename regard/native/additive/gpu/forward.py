"""Additive attention on a GPU, forward: a program per block of queries, keys in tiles.

    m' = max(m, max_j s[j])    w[j] = e^(s[j] - m')    f = e^(m - m')
    l' = f l + sum_j w[j]      o' = f o + sum_j w[j] value[j]

with s the scores of a tile (regard.native.additive.gpu.tiles); at the end out = o / l, and lse = m
+ log l for the gradient: the online softmax of milakov2018. For few queries, keys are split over
several programs, and the caller merges their outputs.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.native.additive.gpu.tiles import (
    add_all_units,
    initial_scores,
    key_ranges,
    locate_program,
    product,
    split_range,
    tops_at,
)


@triton.jit
@no_type_check
def add_values(
    sums, out, scores, rescale, values, rows, cols, num_queries, num_keys, value_dim,
    VALUES: tl.constexpr, CHUNKED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Rescale the sums and add scores @ values: in registers, or `out` for chunked values."""
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        inside = (lanes < value_dim)[:, None] & (cols < num_keys)[None, :]
        source = values + cols.to(tl.int64)[None, :] * value_dim + lanes[:, None]
        loaded = tl.load(source, mask=inside, other=0.0)
        part = product(loaded, scores, DOT, PRECISION, WIDE)  # (value_dim, query)
        if CHUNKED:
            target = out + rows.to(tl.int64)[None, :] * value_dim + lanes[:, None]
            inside = (lanes < value_dim)[:, None] & (rows < num_queries)[None, :]
            before = tl.load(target, mask=inside, other=0.0)
            tl.store(target, before * rescale[None, :] + part, mask=inside)
        else:
            sums = sums * rescale[None, :] + part
    if CHUNKED:
        tl.debug_barrier()  # another thread may load the stored values in the next tile
    return sums


@triton.jit
@no_type_check
def finish(
    sums, out, top, norm, rows, num_queries, value_dim, VALUES: tl.constexpr, CHUNKED: tl.constexpr
):
    """Divide by the normalizer and store; return the log-sum-exp, -inf for fully masked rows."""
    is_masked = norm == 0.0
    scale = 1.0 / tl.where(is_masked, 1.0, norm)
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        target = out + rows.to(tl.int64)[None, :] * value_dim + lanes[:, None]
        inside = (lanes < value_dim)[:, None] & (rows < num_queries)[None, :]
        if CHUNKED:
            sums = tl.load(target, mask=inside, other=0.0)
        tl.store(target, (sums * scale[None, :]).to(out.dtype.element_ty), mask=inside)
    return tl.where(is_masked, float("-inf"), top + tl.log(tl.where(is_masked, 1.0, norm)))


@triton.jit
@no_type_check
def read_kernel(
    out, lse, query, keys, values, query_exp, keys_exp, weights, totals, query_tops, keys_tops,
    first, last, allowed, bias, diagonals, strides,
    heads, key_heads, num_queries, num_keys, query_padded, keys_padded, units, dim, value_dim,
    splits, OWN: tl.constexpr, OTHER: tl.constexpr, VALUES: tl.constexpr, CHUNKED: tl.constexpr,
    FAST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Read a split of the keys for `OWN` queries of one head.

    Writes out (splits, batch, head, query, value_dim) and lse (splits, batch, head, query). If a
    value has more than `VALUES` numbers (`CHUNKED`), out holds the sums between tiles.
    """
    start, split, batch_head, num_slices = locate_program(num_queries, splits, OWN)
    batch, head = batch_head // heads, batch_head % heads
    key_side = batch * key_heads + head // (heads // key_heads)
    rows = start + tl.arange(0, OWN)
    rows_in = rows < num_queries
    starts, ends = key_ranges(first, last, strides, batch, head, rows, num_queries, num_keys)
    query += batch_head * num_queries * dim
    keys += key_side * num_keys * dim
    query_exp += batch_head * query_padded * units
    keys_exp += key_side * keys_padded * units
    query_tops = tops_at(query_tops, batch_head, query_padded, start, units)
    weights += head * units
    out += (split * num_slices + batch_head) * num_queries * value_dim
    begin, end = split_range(num_keys, split, splits, OTHER)
    begin = tl.maximum(begin, tl.min(starts, 0) // OTHER * OTHER)
    end = tl.minimum(end, tl.max(ends, 0))
    top = tl.full((OWN,), float("-inf"), WIDE)
    norm = tl.full((OWN,), 0.0, WIDE)
    sums = tl.full((VALUES, OWN), 0.0, WIDE)
    if CHUNKED:
        for at in range(0, value_dim, VALUES):
            lanes = at + tl.arange(0, VALUES)
            inside = (lanes < value_dim)[:, None] & rows_in[None, :]
            target = out + rows.to(tl.int64)[None, :] * value_dim + lanes[:, None]
            tl.store(target, sums, mask=inside)
        tl.debug_barrier()
    for low in range(begin, end, OTHER):
        cols = low + tl.arange(0, OTHER)
        scores = initial_scores(
            rows[None, :], cols[:, None], starts[None, :], ends[None, :], batch, head, num_queries,
            num_keys, allowed, bias, diagonals, strides, WIDE,
        )  # fmt: skip
        if tl.max(tl.max(scores, 0), 0) > float("-inf"):
            scores = add_all_units(
                scores + tl.load(totals + head), query_exp, keys_exp, query, keys, rows, cols,
                num_queries, num_keys, query_padded, keys_padded, query_tops,
                tops_at(keys_tops, key_side, keys_padded, low, units), weights, units, dim, FAST,
                WIDE,
            )  # fmt: skip
            new_top = tl.maximum(top, tl.max(scores, 0))
            # No key yet: e^(-inf - 0) = 0, not NaN.
            anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
            scores, rescale = tl.exp(scores - anchor[None, :]), tl.exp(top - anchor)
            norm, top = norm * rescale + tl.sum(scores, 0), new_top
            sums = add_values(
                sums, out, scores, rescale, values + key_side * num_keys * value_dim, rows, cols,
                num_queries, num_keys, value_dim, VALUES, CHUNKED, DOT, PRECISION, WIDE,
            )  # fmt: skip
    logs = finish(sums, out, top, norm, rows, num_queries, value_dim, VALUES, CHUNKED)
    tl.store(lse + (split * num_slices + batch_head) * num_queries + rows, logs, mask=rows_in)
