"""Sums over the splits of the GPU kernels of additive attention, in a fixed order.

    out = sum_s f[s] o[s] / l    lse = m + log l    m = max_s m[s], l = sum_s f[s] l[s]
    f[s] = e^(m[s] - m)          (o, m, l: see regard.native.additive.gpu.forward)

    grad_query = -2 sum_s, grad_keys = -2 sum_s, grad_values = sum_s, grad_v = -2 sum_s,i

Sums have the lengths last; results have the dtypes of their tensors.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def merge_kernel(
    out, lse, sums, tops, norms, splits, slices, length, value_dim,
    ROWS: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write out (slice, length, value_dim) and lse (slice, length) of `ROWS` queries."""
    blocks = tl.cdiv(length, ROWS)
    slice_at = (tl.program_id(0) // blocks).to(tl.int64)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    rows_in = rows < length
    at_rows = slice_at * length + rows
    top = tl.full((ROWS,), float("-inf"), WIDE)
    for split in range(0, splits):
        at = split * slices * length + at_rows
        top = tl.maximum(top, tl.load(tops + at, mask=rows_in, other=float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)  # a fully masked row
    norm = tl.zeros((ROWS,), WIDE)
    for split in range(0, splits):
        at = split * slices * length + at_rows
        weight = tl.exp(tl.load(tops + at, mask=rows_in, other=float("-inf")) - top)
        norm += weight * tl.load(norms + at, mask=rows_in, other=0.0)
    is_masked = norm == 0.0
    norm = tl.where(is_masked, 1.0, norm)
    log = tl.where(is_masked, float("-inf"), top + tl.log(norm))
    tl.store(lse + at_rows, log, mask=rows_in)
    for low in range(0, value_dim, LANES):
        lanes = low + tl.arange(0, LANES)
        inside = (lanes < value_dim)[:, None] & rows_in[None, :]
        total = tl.zeros((LANES, ROWS), WIDE)
        for split in range(0, splits):
            at = split * slices * length + at_rows
            weight = tl.exp(tl.load(tops + at, mask=rows_in, other=float("-inf")) - top) / norm
            lines = ((split * slices + slice_at) * value_dim + lanes)[:, None] * length
            part = tl.load(sums + lines + rows[None, :], mask=inside, other=0.0)
            total += weight[None, :] * part
        target = out + at_rows[None, :] * value_dim + lanes[:, None]
        tl.store(target, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def sum_splits(
    target, sums, program, splits, slices, length, padded_dim, dim, scale,
    ROWS: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write scale * the sum of sums (splits, slice, padded_dim, length) to (slice, length, dim)."""
    blocks = tl.cdiv(length, ROWS)
    slice_at = (program // blocks).to(tl.int64)
    rows = program % blocks * ROWS + tl.arange(0, ROWS)
    for low in range(0, dim, LANES):
        lanes = low + tl.arange(0, LANES)
        inside = (lanes < dim)[:, None] & (rows < length)[None, :]
        total = tl.zeros((LANES, ROWS), WIDE)
        for split in range(0, splits):
            at = ((split * slices + slice_at) * padded_dim + lanes)[:, None] * length
            total += tl.load(sums + at + rows[None, :], mask=inside, other=0.0)
        at = (slice_at * length + rows)[None, :] * dim + lanes[:, None]
        tl.store(target + at, (total * scale).to(target.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def finish_kernel(
    grad_query, grad_keys, grad_values, grad_v, query_sums, keys_sums, value_sums, v_sums,
    query_splits, keys_splits, query_slices, keys_slices, v_heads, num_queries, num_keys, units,
    dim, value_dim, ROWS: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum over splits: programs for rows of the query, for rows of the keys, and for units of v.

    All gradients may be None; v_sums is (splits, batch, head, unit, query).
    """
    program = tl.program_id(0)
    query_programs = query_slices * tl.cdiv(num_queries, ROWS)
    keys_programs = keys_slices * tl.cdiv(num_keys, ROWS)
    if program < query_programs:
        if grad_query is not None:
            sum_splits(
                grad_query, query_sums, program, query_splits, query_slices, num_queries, units,
                dim, -2.0, ROWS, LANES, WIDE,
            )  # fmt: skip
    elif program < query_programs + keys_programs:
        program -= query_programs
        if grad_keys is not None:
            sum_splits(
                grad_keys, keys_sums, program, keys_splits, keys_slices, num_keys, units, dim, -2.0,
                ROWS, LANES, WIDE,
            )  # fmt: skip
        if grad_values is not None:
            sum_splits(
                grad_values, value_sums, program, keys_splits, keys_slices, num_keys, value_dim,
                value_dim, 1.0, ROWS, LANES, WIDE,
            )  # fmt: skip
    elif grad_v is not None:
        at = program - query_programs - keys_programs  # head * dim + unit
        total = tl.zeros((ROWS * LANES,), WIDE)
        for part in range(0, query_splits * query_slices // v_heads):
            slice_at = (part * v_heads + at // dim).to(tl.int64)
            source = v_sums + (slice_at * units + at % dim) * num_queries
            for low in range(0, num_queries, ROWS * LANES):
                rows = low + tl.arange(0, ROWS * LANES)
                total += tl.load(source + rows, mask=rows < num_queries, other=0.0)
        tl.store(grad_v + at, (-2.0 * tl.sum(total, 0)).to(grad_v.dtype.element_ty))
