"""Additive attention on a GPU, backward for few queries, as in step-by-step decoding.

The formulas are those of regard.native.additive.gpu.backward. With one query there are no sums over
queries to share: each program owns a block of keys, processes one query after the other, and
computes many units at a time. It writes the gradients of the queries to rows of its own, which the
caller adds up; only the gradients of broadcast biases are added atomically.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.native.additive.gpu.backward import add_at, add_bias_gradients
from regard.native.additive.gpu.tiles import (
    add_row_units,
    initial_scores,
    locate_program,
    row_residuals,
)


@triton.jit
@no_type_check
def step_score_gradients(
    probs, delta, grad_values, grad_out, values, cols, num_keys, value_dim, VALUES: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Return gradients of the scores of one query, (key, 1); add p grad_out to grad_values."""
    slopes = tl.zeros_like(probs)
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        inside = (cols < num_keys)[:, None] & (lanes < value_dim)[None, :]
        offsets = cols.to(tl.int64)[:, None] * value_dim + lanes[None, :]
        gradient = tl.load(grad_out + lanes, mask=lanes < value_dim, other=0.0).to(WIDE)[None, :]
        value = tl.load(values + offsets, mask=inside, other=0.0).to(WIDE)
        slopes += tl.sum(value * gradient, 1)[:, None]
        if grad_values is not None:
            add_at(grad_values + offsets, probs * gradient, inside)
    return probs * (slopes - delta)


@triton.jit
@no_type_check
def step_unit_gradients(
    grad_query, grad_weights, grad_keys, slopes, query, keys, weights, cols, num_keys, dim,
    UNITS: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute unit gradients of one query: stored for the query, added for keys and weights."""
    for unit in range(0, dim, UNITS):
        lanes = unit + tl.arange(0, UNITS)
        lanes_in = lanes < dim
        r = row_residuals(query, keys, cols, num_keys, lanes, dim, FAST, WIDE)
        if grad_weights is not None:
            tl.store(grad_weights + lanes, tl.sum(slopes * r, 0), mask=lanes_in)
        r = slopes * (r - r * r) * tl.load(weights + lanes, mask=lanes_in, other=0.0)[None, :]
        if grad_query is not None:
            tl.store(grad_query + lanes, tl.sum(r, 0), mask=lanes_in)
        if grad_keys is not None:
            inside = (cols < num_keys)[:, None] & lanes_in[None, :]
            add_at(grad_keys + cols.to(tl.int64)[:, None] * dim + lanes[None, :], r, inside)


@triton.jit
@no_type_check
def step_kernel(
    grad_query, grad_weights, grad_keys, grad_values, grad_bias, grad_diagonals, bias_strides,
    grad_out, delta, lse, query, keys, values, query_exp, keys_exp, weights, totals, fits, first,
    last, allowed, bias, diagonals, strides, heads, key_heads, num_queries, num_keys, query_padded,
    keys_padded, units, dim, value_dim, OWN: tl.constexpr, VALUES: tl.constexpr,
    UNITS: tl.constexpr, ATOMIC: tl.constexpr, FAST: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `OWN` keys of one key head for each query that reads it, in turn.

    All gradients are initialized with zeros and may be None: grad_query and grad_weights (blocks,
    batch, head, query, dim), grad_keys (batch, key_head, key, dim), grad_values (batch, key_head,
    key, value_dim), grad_bias with `bias_strides`, grad_diagonals with the strides of the
    diagonals.
    """
    start, _, key_side, num_slices = locate_program(num_keys, 1, OWN)
    batch = key_side // key_heads
    group = heads // key_heads
    cols = start + tl.arange(0, OWN)
    keys += key_side * num_keys * dim
    values += key_side * num_keys * value_dim
    if grad_keys is not None:
        grad_keys += key_side * num_keys * dim
    if grad_values is not None:
        grad_values += key_side * num_keys * value_dim
    block = (start // OWN) * (num_slices * group * num_queries)  # its rows of unit sums
    for step in range(0, group * num_queries):
        head = key_side % key_heads * group + step // num_queries
        at = (batch * heads + head) * num_queries + step % num_queries
        rows = step % num_queries + tl.arange(0, 1)
        scores = initial_scores(
            rows[None, :], cols[:, None], tl.load(first + at), tl.load(last + at), batch, head,
            num_queries, num_keys, allowed, bias, diagonals, strides, WIDE,
        )  # fmt: skip
        if tl.max(tl.max(scores, 1), 0) > float("-inf"):
            scores = add_row_units(
                scores + tl.load(totals + head), query + at * dim, keys, cols, num_keys,
                weights + head * units, dim, UNITS, FAST, WIDE,
            )  # fmt: skip
            slopes = step_score_gradients(
                tl.exp(scores - tl.load(lse + at)), tl.load(delta + at), grad_values,
                grad_out + at * value_dim, values, cols, num_keys, value_dim, VALUES, WIDE,
            )  # fmt: skip
            add_bias_gradients(
                grad_bias, bias_strides, grad_diagonals, strides, slopes, rows, cols, batch, head,
                num_queries, num_keys, ATOMIC,
            )  # fmt: skip
            row = (block + at) * dim
            step_unit_gradients(
                None if grad_query is None else grad_query + row,
                None if grad_weights is None else grad_weights + row,
                grad_keys, slopes, query + at * dim, keys, weights + head * units, cols, num_keys,
                dim, UNITS, FAST, WIDE,
            )  # fmt: skip
            tl.debug_barrier()  # another thread may load the stored values for the next query
