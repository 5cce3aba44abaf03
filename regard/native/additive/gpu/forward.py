"""Additive attention on a GPU, forward: a program per block of queries, keys in tiles.

    m' = max(m, max_j s[j])    w[j] = e^(s[j] - m')    f = e^(m - m')
    l' = f l + sum_j w[j]      o' = f o + sum_j w[j] value[j]

with s the scores of a tile (regard.native.additive.gpu.tiles): the online softmax of milakov2018.
For few queries, keys are split over several programs. `merge_kernel` combines m, l and o of the
splits: out = o / l, and lse = m + log l for the gradient.

o goes through memory, (value_dim, query), as the sums of the backward do: in registers it would
leave too few for the scores.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.native.additive.gpu.tiles import (
    add_all_units,
    add_values,
    clear,
    initial_scores,
    key_ranges,
    locate_program,
    split_range,
    tops_at,
)


@triton.jit
@no_type_check
def read_kernel(
    sums, tops, norms, query, keys, value_rows, query_exp, keys_exp, weights, totals, query_tops,
    keys_tops, first, last, allowed, bias, diagonals, strides, heads, key_heads, num_queries,
    num_keys, query_padded, keys_padded, units, dim, value_dim, splits, OWN: tl.constexpr,
    OTHER: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Read a split of the keys for `OWN` queries of one head.

    Writes sums o (splits, batch, head, value_dim, query), tops m and norms l (splits, batch, head,
    query).
    """
    start, split, batch_head, num_slices = locate_program(num_queries, splits, OWN)
    batch, head = batch_head // heads, batch_head % heads
    key_side = batch * key_heads + head // (heads // key_heads)
    rows = start + tl.arange(0, OWN)
    starts, ends = key_ranges(first, last, strides, batch, head, rows, num_queries, num_keys)
    query += batch_head * num_queries * dim
    keys += key_side * num_keys * dim
    query_exp += batch_head * query_padded * units
    keys_exp += key_side * keys_padded * units
    query_tops = tops_at(query_tops, batch_head, query_padded, start, units)
    weights += head * units
    sums += (split * num_slices + batch_head) * num_queries * value_dim
    clear(sums, value_dim, rows, num_queries)
    begin, end = split_range(num_keys, split, splits, OTHER)
    begin = tl.maximum(begin, tl.min(starts, 0) // OTHER * OTHER)
    end = tl.minimum(end, tl.max(ends, 0))
    top = tl.full((OWN,), float("-inf"), WIDE)
    norm = tl.full((OWN,), 0.0, WIDE)
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
            add_values(
                sums, scores, rescale, value_rows + key_side * keys_padded * value_dim, rows, cols,
                num_queries, keys_padded, value_dim,
            )  # fmt: skip
    at_rows = (split * num_slices + batch_head) * num_queries + rows
    tl.store(tops + at_rows, top, mask=rows < num_queries)
    tl.store(norms + at_rows, norm, mask=rows < num_queries)
