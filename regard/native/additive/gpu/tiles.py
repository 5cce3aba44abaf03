"""Shared parts of the GPU kernels of additive attention: a tile of scores, and its residuals.

    score[i,j] = sum_d v[d] tanh(a[i,d] + b[j,d])    (bahdanau2015, A.1.2; a: query, b: key)
    tanh(a + b) = 1 - 2 r    r = 1 / (1 + A B)    tanh' = 4 r (1 - r)
    A = exp(2 a)     B = exp(2 b)

A and B cost one exponential per number, not per pair; what remains per pair and unit is a
multiply-add and a reciprocal. Reciprocals are slow on a GPU (special-function units: an eighth of
the rate of multiply-adds), so several units share one division: v0/x0 + v1/x1 = (v0 x1 + v1 x0) /
(x0 x1), and the same again for two of these.

Range: if the largest a and b of a chunk of units and 128 rows are at most 40 in size and add up to
`LIMIT` or less, x is at most 1 + e^20, the product of four is at most 6e34, A and B are normal
numbers, and A B underflows only where tanh is -1 to the last bit. Otherwise the four units are
computed separately from a and b themselves: tanh(a + b) with |a + b| clamped at 30. So every finite
input is accurate.

Error in float32, with u = 2^-24: A and B err by up to (2 + |2 a|) u (an exponential of base 2),
the multiply-add by u, a reciprocal by 2 u, each of four products by u: r errs by 12 u for |a|, |b|
<= 1, and tanh by 2 r (1 - r) <= 1/2 of the error of A B and 4 u of 1 - 2 r. r (1 - r) = r - r r, of
one rounding, errs by 6 u absolute: much only for units that are saturated for every pair.

A tile has the `other` side in rows and the side that the program owns (`own`) in columns, along
which Triton puts the lanes of a warp: sums over `other` then stay (almost) inside a thread.
"""

from typing import no_type_check

import triton
import triton.language as tl

CHUNK = tl.constexpr(4)
"""Units computed at a time; the unit axes are padded to a multiple of it."""

LENGTH_MULTIPLE = tl.constexpr(128)
"""Rows of exponentials are padded to a multiple of this; each side of a tile must divide it."""

LIMIT = tl.constexpr(10.0)
"""Maximum a + b whose units share a division: (1 + exp(2 LIMIT)) ** CHUNK fits float32."""

# no_type_check: the shape checker of the tests would wrap the source that Triton compiles.


@triton.jit
@no_type_check
def locate_program(own_len, splits, OWN: tl.constexpr):
    """Return the first index a program owns, its split, its slice (batch, head), number of slices.

    The grid has one axis, as the others are limited to 65,535.
    """
    blocks = (own_len + OWN - 1) // OWN
    program = tl.program_id(0)
    num_slices = tl.num_programs(0) // blocks // splits
    return (
        program % blocks * OWN,
        program // blocks % splits,
        (program // blocks // splits).to(tl.int64),
        num_slices,
    )


@triton.jit
@no_type_check
def split_range(other_len, split, splits, OTHER: tl.constexpr):
    """Return first and end of the whole tiles of the other side in a split."""
    share = ((other_len + OTHER - 1) // OTHER + splits - 1) // splits * OTHER
    return split * share, tl.minimum(other_len, (split + 1) * share)


@triton.jit
@no_type_check
def reciprocal(x, FAST: tl.constexpr):
    """Return 1 / x: on NVIDIA one instruction with an error of one ulp, instead of several."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / x
    return result


@triton.jit
@no_type_check
def key_ranges(first, last, strides, batch, head, rows, num_queries, num_keys):
    """Return first and last of rows, clipped to the keys; (key, 0) if empty: it widens no range."""
    is_open = rows < num_queries
    starts = tl.zeros_like(rows)
    ends = starts + num_keys
    if first is not None:
        at = batch * strides[10] + head * strides[11] + rows * strides[12]
        loaded = tl.load(first + at, mask=is_open, other=0)
        starts = tl.minimum(tl.maximum(loaded, 0), num_keys).to(tl.int32)
    if last is not None:
        at = batch * strides[13] + head * strides[14] + rows * strides[15]
        loaded = tl.load(last + at, mask=is_open, other=0)
        ends = tl.minimum(tl.maximum(loaded, 0), num_keys).to(tl.int32)
    is_open = is_open & (starts < ends)
    return tl.where(is_open, starts, num_keys), tl.where(is_open, ends, 0)


@triton.jit
@no_type_check
def tops_at(tops, slice_at, padded, start, units):
    """Return the address of the tops of the block of rows with `start`."""
    return tops + (slice_at * (padded // LENGTH_MULTIPLE) + start // LENGTH_MULTIPLE) * (
        units // CHUNK
    )


@triton.jit
@no_type_check
def initial_scores(
    rows, cols, first, last, batch, head, num_queries, num_keys, allowed, bias, diagonals, strides,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Return scores without units: the bias, or -inf for masked pairs, which remains with units."""
    is_allowed = (rows < num_queries) & (cols < num_keys) & (cols >= first) & (cols < last)
    row, col = rows.to(tl.int64), cols.to(tl.int64)  # times a stride, beyond 2**31
    if allowed is not None:
        at = batch * strides[0] + head * strides[1] + row * strides[2] + col * strides[3]
        is_allowed = is_allowed & (tl.load(allowed + at, mask=is_allowed, other=0) != 0)
    scores = tl.where(is_allowed, 0.0, float("-inf")).to(WIDE)
    if bias is not None:
        at = batch * strides[4] + head * strides[5] + row * strides[6] + col * strides[7]
        scores += tl.load(bias + at, mask=is_allowed, other=0.0).to(WIDE)
    if diagonals is not None:
        at = batch * strides[8] + head * strides[9] + (cols - rows + num_queries - 1)
        scores += tl.load(diagonals + at, mask=is_allowed, other=0.0).to(WIDE)
    return scores


@triton.jit
@no_type_check
def divisor(own_exp, other_exp, unit, own_at, other_at, own_padded, other_padded):
    """Return x = 1 + A B of one unit, relative to the pointers.

    No mask on either side: rows are padded to whole tiles, and a mask would cost an instruction per
                            number loaded.
    """
    own = tl.load(own_exp + unit * own_padded + own_at)
    other = tl.load(other_exp + unit * other_padded + other_at)
    return tl.fma(other[:, None], own[None, :], 1.0)


@triton.jit
@no_type_check
def exact_residual(
    own_raw, other_raw, unit, own_at, other_at, own_len, other_len, dim, FAST: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Return r of one unit for any finite input: halves do not overflow, |a + b| is at most 30."""
    unit = tl.minimum(unit, dim - 1)  # padded units have weight 0, so any value may be loaded
    own = own_raw + own_at.to(tl.int64) * dim + unit
    own = tl.load(own, mask=own_at < own_len, other=0.0).to(WIDE) * 0.5
    other = other_raw + other_at.to(tl.int64) * dim + unit
    other = tl.load(other, mask=other_at < other_len, other=0.0).to(WIDE) * 0.5
    half = other[:, None] + own[None, :]
    half = tl.where(half > 15.0, 15.0, half)  # not tl.minimum, which drops NaN
    half = tl.where(half < -15.0, -15.0, half)
    return reciprocal(1.0 + tl.exp(half * 4.0), FAST)


@triton.jit
@no_type_check
def add_units_shared(
    scores, own_exp, other_exp, own_at, other_at, own_padded, other_padded, weights,
    FAST: tl.constexpr,
):  # fmt: skip
    """Return scores + weights . r of the four units at the pointers, with one division."""
    w0 = tl.load(weights)
    w1 = tl.load(weights + 1)
    w2 = tl.load(weights + 2)
    w3 = tl.load(weights + 3)
    x0 = divisor(own_exp, other_exp, 0, own_at, other_at, own_padded, other_padded)
    x1 = divisor(own_exp, other_exp, 1, own_at, other_at, own_padded, other_padded)
    x2 = divisor(own_exp, other_exp, 2, own_at, other_at, own_padded, other_padded)
    x3 = divisor(own_exp, other_exp, 3, own_at, other_at, own_padded, other_padded)
    left = x0 * x1
    right = x2 * x3
    total = (w0 * x1 + w1 * x0) * right + (w2 * x3 + w3 * x2) * left
    return scores + total * reciprocal(left * right, FAST)


@triton.jit
@no_type_check
def add_units_exact(
    scores, own_raw, other_raw, own_at, other_at, own_len, other_len, weights, unit, dim,
    FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return scores + weights . r of four units from `unit` on; in a loop, to save registers."""
    for offset in range(0, 4):
        r = exact_residual(
            own_raw, other_raw, unit + offset, own_at, other_at, own_len, other_len, dim, FAST, WIDE
        )
        scores += tl.load(weights + offset) * r
    return scores


@triton.jit
@no_type_check
def add_all_units(
    scores, own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len,
    own_padded, other_padded, own_tops, other_tops, weights, units, dim, FAST: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Return scores + sum_d weights[d] r[d]. The pointers are those of the batch entry and head."""
    for unit in range(0, units, 4):
        if tl.load(own_tops + unit // 4) + tl.load(other_tops + unit // 4) <= LIMIT:
            scores = add_units_shared(
                scores, own_exp, other_exp, own_at, other_at, own_padded, other_padded,
                weights + unit, FAST,
            )  # fmt: skip
        else:
            scores = add_units_exact(
                scores, own_raw, other_raw, own_at, other_at, own_len, other_len, weights + unit,
                unit, dim, FAST, WIDE,
            )  # fmt: skip
        own_exp += 4 * own_padded
        other_exp += 4 * other_padded
    return scores


@triton.jit
@no_type_check
def residuals(
    own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len, own_padded,
    other_padded, own_tops, other_tops, unit, dim, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return r of units `unit` and `unit + 1`, which share one division."""
    if tl.load(own_tops + unit // 4) + tl.load(other_tops + unit // 4) <= LIMIT:
        x0 = divisor(own_exp, other_exp, 0, own_at, other_at, own_padded, other_padded)
        x1 = divisor(own_exp, other_exp, 1, own_at, other_at, own_padded, other_padded)
        inverse = reciprocal(x0 * x1, FAST)
        r0 = inverse * x1
        r1 = inverse * x0
    else:
        r0 = exact_residual(
            own_raw, other_raw, unit, own_at, other_at, own_len, other_len, dim, FAST, WIDE
        )
        r1 = exact_residual(
            own_raw, other_raw, unit + 1, own_at, other_at, own_len, other_len, dim, FAST, WIDE
        )
    return r0, r1


@triton.jit
@no_type_check
def score_gradients(
    probs, delta, own_side, other_side, own_at, other_at, own_padded, other_padded, value_dim
):
    """Return the gradient of the scores: probs (grad_out . value - delta)."""
    total = tl.zeros_like(probs) - delta
    for _ in range(0, value_dim):
        own = tl.load(own_side + own_at)
        other = tl.load(other_side + other_at)
        total = tl.fma(other[:, None], own[None, :], total)
        own_side += own_padded
        other_side += other_padded
    return probs * total


@triton.jit
@no_type_check
def add_at(target, amount, inside):
    """Add to memory that only this program accesses."""
    tl.store(target, tl.load(target, mask=inside, other=0.0) + amount, mask=inside)


@triton.jit
@no_type_check
def clear(target, count, own_at, own_len):
    """Write zeros to target (count, own_len)."""
    for _ in range(0, count):
        tl.store(target + own_at, tl.zeros_like(own_at).to(tl.float32), mask=own_at < own_len)
        target += own_len
    tl.debug_barrier()  # another thread may load the zeros


@triton.jit
@no_type_check
def add_values(
    sums, probs, rescale, other_side, own_at, other_at, own_len, other_padded, value_dim
):
    """Add sum_other probs[other, own] other_side[:, other] to rescaled sums, (value_dim, own).

    Not on tensor cores: see regard.native.additive.gpu.backward.
    """
    inside = own_at < own_len
    for _ in range(0, value_dim):
        part = tl.sum(probs * tl.load(other_side + other_at)[:, None], 0)
        if rescale is None:
            add_at(sums + own_at, part, inside)
        else:
            before = tl.load(sums + own_at, mask=inside, other=0.0)
            tl.store(sums + own_at, before * rescale + part, mask=inside)
        sums += own_len
        other_side += other_padded
    tl.debug_barrier()  # another thread may load the stored values in the next tile
