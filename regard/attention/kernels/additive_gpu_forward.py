"""Additive attention on a GPU, forward: one program a block of queries, keys in tiles, weights never stored.

    m' = max(m, max_j s[j])    w[j] = e^(s[j] - m')    f = e^(m - m')
    l' = f l + sum_j w[j]      o' = f o + sum_j w[j] value[j]

with s the scores of a tile (`additive_gpu_tiles`); at the end out = o / l, and lse = m + log l for the gradient: the
online softmax of milakov2018. Where queries are few, keys are split over several programs, and the caller joins them.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.attention.kernels.additive_gpu_tiles import limits, opening, place, product, with_units, with_units_of_row


@triton.jit
@no_type_check
def add_values(
    sums, out, scores, fade, values, rows, cols, num_queries, num_keys, value_dim,
    VALUES: tl.constexpr, CHUNKED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Fade the sums and add scores @ values: in registers, or in `out` where a value is more than one chunk."""
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        inside = (lanes < value_dim)[:, None] & (cols < num_keys)[None, :]
        source = values + cols.to(tl.int64)[None, :] * value_dim + lanes[:, None]
        part = product(tl.load(source, mask=inside, other=0.0), scores, DOT, PRECISION, WIDE)  # (value_dim, query)
        if CHUNKED:
            target = out + rows.to(tl.int64)[None, :] * value_dim + lanes[:, None]
            inside = (lanes < value_dim)[:, None] & (rows < num_queries)[None, :]
            tl.store(target, tl.load(target, mask=inside, other=0.0) * fade[None, :] + part, mask=inside)
        else:
            sums = sums * fade[None, :] + part
    if CHUNKED:
        tl.debug_barrier()  # what one thread stored another may load in the next tile
    return sums


@triton.jit
@no_type_check
def finish(sums, out, top, mass, rows, num_queries, value_dim, VALUES: tl.constexpr, CHUNKED: tl.constexpr):
    """Divide by the mass and store; return the log-sum-exp. A row without mass has 0 and -inf."""
    is_closed = mass == 0.0
    scale = 1.0 / tl.where(is_closed, 1.0, mass)
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        target = out + rows.to(tl.int64)[None, :] * value_dim + lanes[:, None]
        inside = (lanes < value_dim)[:, None] & (rows < num_queries)[None, :]
        if CHUNKED:
            sums = tl.load(target, mask=inside, other=0.0)
        tl.store(target, (sums * scale[None, :]).to(out.dtype.element_ty), mask=inside)
    return tl.where(is_closed, float("-inf"), top + tl.log(tl.where(is_closed, 1.0, mass)))


@triton.jit
@no_type_check
def read_kernel(
    out, lse, query, keys, values, query_exp, keys_exp, weights, totals, fits, first, last,
    allowed, bias, diagonals, strides,
    heads, key_heads, num_queries, num_keys, query_room, keys_room, units, dim, value_dim, splits,
    OWN: tl.constexpr, OTHER: tl.constexpr, VALUES: tl.constexpr, CHUNKED: tl.constexpr, UNITS: tl.constexpr,
    SHARED: tl.constexpr, FAST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One block of `OWN` queries of one head against one split of the keys; one query where there are no `fits`.

    Writes out (splits, batch, head, query, value_dim) and lse (splits, batch, head, query). Where a value is more than
    `VALUES` numbers (`CHUNKED`), out holds the sums between tiles and must come filled with zeros.
    """
    start, split, both, sheets = place(num_queries, splits, OWN)
    batch, head = both // heads, both % heads
    key_side = batch * key_heads + head // (heads // key_heads)
    rows = start + tl.arange(0, OWN)
    rows_in = rows < num_queries
    starts = tl.load(first + both * num_queries + rows, mask=rows_in, other=num_keys)
    ends = tl.load(last + both * num_queries + rows, mask=rows_in, other=0)
    keys += key_side * num_keys * dim
    if fits is not None:
        query_exp += both * query_room * units
        keys_exp += key_side * keys_room * units
        fits += key_side * (units // 4)
    out += (split * sheets + both) * num_queries * value_dim
    total = tl.load(totals + head)
    begin, end = limits(num_keys, split, splits, OTHER)
    begin = tl.maximum(begin, tl.min(starts, 0) // OTHER * OTHER)
    end = tl.minimum(end, tl.max(ends, 0))
    top = tl.full((OWN,), float("-inf"), WIDE)
    mass = tl.full((OWN,), 0.0, WIDE)
    sums = tl.full((VALUES, OWN), 0.0, WIDE)
    for low in range(begin, end, OTHER):
        cols = low + tl.arange(0, OTHER)
        scores = opening(
            rows[None, :], cols[:, None], starts[None, :], ends[None, :], batch, head, num_queries, num_keys,
            allowed, bias, diagonals, strides, WIDE,
        )  # fmt: skip
        if tl.max(tl.max(scores, 1), 0) > float("-inf"):
            if fits is None:
                scores = with_units_of_row(
                    scores + total, query + (both * num_queries + start) * dim, keys, cols, num_keys,
                    weights + head * units, dim, UNITS, FAST, WIDE,
                )  # fmt: skip
            else:
                scores = with_units(
                    scores + total, query_exp, keys_exp, query + both * num_queries * dim, keys, rows, cols,
                    num_queries, num_keys, query_room, keys_room, fits, weights + head * units, units, dim,
                    SHARED, FAST, WIDE,
                )  # fmt: skip
            new_top = tl.maximum(top, tl.max(scores, 0))
            anchor = tl.where(new_top == float("-inf"), 0.0, new_top)  # no key yet: e^(-inf - 0) = 0, not NaN
            scores, fade = tl.exp(scores - anchor[None, :]), tl.exp(top - anchor)
            mass, top = mass * fade + tl.sum(scores, 0), new_top
            sums = add_values(
                sums, out, scores, fade, values + key_side * num_keys * value_dim, rows, cols, num_queries, num_keys,
                value_dim, VALUES, CHUNKED, DOT, PRECISION, WIDE,
            )  # fmt: skip
    logs = finish(sums, out, top, mass, rows, num_queries, value_dim, VALUES, CHUNKED)
    tl.store(lse + (split * sheets + both) * num_queries + rows, logs, mask=rows_in)
