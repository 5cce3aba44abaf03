"""What the GPU kernels of additive attention share: one tile of scores, and the residuals that its gradient needs.

    score[i,j] = sum_d v[d] tanh(a[i,d] + b[j,d])        (bahdanau2015, appendix A.1.2; a, b: query and key)
    tanh(a + b) = 1 - 2 r     r = 1 / (1 + A B)     A = exp(2 (a - top))   B = exp(2 (b + top))     tanh' = 4 r (1 - r)

A and B cost one exponential a number, not a pair; what is left a pair and unit is a multiply-add and a reciprocal.
Reciprocals are the slow part of a GPU (special-function units: a sixteenth of a lane's rate), so several units share
one division: v0/x0 + v1/x1 = (v0 x1 + v1 x0) / (x0 x1), and the same again for two of these.

Range: `top` is the unit's largest a, so A is at most 1. Where a's and b's largest add up to `LIMIT` or less, x is at
most 1 + e^20, four of them multiply to 6e34, and what underflows to A = 0 belongs to a pair whose tanh is -1 to the
last bit: the sum is below LIMIT - 43. Elsewhere the four units that share are computed without sharing from a and b
themselves: tanh(a + b) with |a + b| cut at 30. So every finite input is right; in float32 each tanh to about 2e-7.

A tile has the `other` side in rows and the side that the program owns (`own`) in columns, which is where Triton puts
the lanes of a warp: sums over `other` then stay inside a thread, or nearly.
"""

from typing import no_type_check

import triton
import triton.language as tl

CHUNK = 4
"""Units computed at a time; the unit axes are padded to a multiple of it."""

LIMIT = 10.0
"""Largest a + b with which units may share a division: (1 + exp(2 LIMIT)) ** CHUNK must be finite in float32."""

# The shape checker of the tests would wrap the functions below, and Triton compiles the text of what it is given:
# no_type_check keeps it out.


@triton.jit
@no_type_check
def place(own_len, splits, OWN: tl.constexpr):
    """Which part of the work this program has: first of what it owns, split, sheet (batch and head), how many sheets.

    The grid has one axis, as the others end at 65,535.
    """
    blocks = (own_len + OWN - 1) // OWN
    program = tl.program_id(0)
    sheets = tl.num_programs(0) // blocks // splits
    return program % blocks * OWN, program // blocks % splits, (program // blocks // splits).to(tl.int64), sheets


@triton.jit
@no_type_check
def limits(other_len, split, splits, OTHER: tl.constexpr):
    """First and end of the whole tiles of the other side that a split has."""
    share = ((other_len + OTHER - 1) // OTHER + splits - 1) // splits * OTHER
    return split * share, tl.minimum(other_len, (split + 1) * share)


@triton.jit
@no_type_check
def reciprocal(x, FAST: tl.constexpr):
    """1 / x: on NVIDIA one special-function instruction, a unit in the last place off, where `/` takes several."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / x
    return result


@triton.jit
@no_type_check
def product(left, right, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """left @ right, on the tensor cores in the dtype `DOT`; without, for tiles that are too small for them."""
    if DOT is None:
        result = tl.sum(left.to(WIDE)[:, :, None] * right.to(WIDE)[None, :, :], axis=1)
    else:
        result = tl.dot(left.to(DOT), right.to(DOT), input_precision=PRECISION, out_dtype=WIDE)
    return result


@triton.jit
@no_type_check
def opening(
    rows, cols, first, last, batch, head, num_queries, num_keys, allowed, bias, diagonals, strides, WIDE: tl.constexpr
):
    """The scores before any unit: the bias, or -inf where the pair is closed. Adding units changes no -inf."""
    is_open = (rows < num_queries) & (cols < num_keys) & (cols >= first) & (cols < last)
    rows_wide = rows.to(tl.int64)  # row * stride may pass 2**31
    if allowed is not None:
        at = batch * strides[0] + head * strides[1] + rows_wide * strides[2] + cols * strides[3]
        is_open = is_open & (tl.load(allowed + at, mask=is_open, other=0) != 0)
    scores = tl.where(is_open, 0.0, float("-inf")).to(WIDE)
    if bias is not None:
        at = batch * strides[4] + head * strides[5] + rows_wide * strides[6] + cols * strides[7]
        scores += tl.load(bias + at, mask=is_open, other=0.0).to(WIDE)
    if diagonals is not None:
        at = batch * strides[8] + head * strides[9] + (cols - rows + num_queries - 1)
        scores += tl.load(diagonals + at, mask=is_open, other=0.0).to(WIDE)
    return scores


@triton.jit
@no_type_check
def divisor(own_exp, other_exp, unit, own_at, other_at, own_room, other_room):
    """x = 1 + A B of one unit, counted from where the pointers stand.

    No mask on either side: rows have room for whole tiles, and a mask would cost an instruction a number loaded.
    """
    own = tl.load(own_exp + unit * own_room + own_at)
    other = tl.load(other_exp + unit * other_room + other_at)
    return tl.fma(other[:, None], own[None, :], 1.0)


@triton.jit
@no_type_check
def exact(own_raw, other_raw, unit, own_at, other_at, own_len, other_len, dim, FAST: tl.constexpr, WIDE: tl.constexpr):
    """r of one unit for every finite input: halves cannot overflow in the sum, and |a + b| is cut at 30."""
    unit = tl.minimum(unit, dim - 1)  # padded units weigh nothing, whatever is read for them
    own = tl.load(own_raw + own_at.to(tl.int64) * dim + unit, mask=own_at < own_len, other=0.0).to(WIDE) * 0.5
    other = tl.load(other_raw + other_at.to(tl.int64) * dim + unit, mask=other_at < other_len, other=0.0).to(WIDE) * 0.5
    half = other[:, None] + own[None, :]
    half = tl.where(half > 15.0, 15.0, half)  # not tl.minimum, which drops NaN
    half = tl.where(half < -15.0, -15.0, half)
    return reciprocal(1.0 + tl.exp(half * 4.0), FAST)


@triton.jit
@no_type_check
def shared(w0, w1, w2, w3, x0, x1, x2, x3, SHARED: tl.constexpr, FAST: tl.constexpr):
    """w0/x0 + w1/x1 + w2/x2 + w3/x3 with one division for all, two, or four."""
    if SHARED == 4:
        left = x0 * x1
        right = x2 * x3
        total = ((w0 * x1 + w1 * x0) * right + (w2 * x3 + w3 * x2) * left) * reciprocal(left * right, FAST)
    elif SHARED == 2:
        total = (w0 * x1 + w1 * x0) * reciprocal(x0 * x1, FAST)
        total += (w2 * x3 + w3 * x2) * reciprocal(x2 * x3, FAST)
    else:
        total = w0 * reciprocal(x0, FAST) + w1 * reciprocal(x1, FAST)
        total += w2 * reciprocal(x2, FAST) + w3 * reciprocal(x3, FAST)
    return total


@triton.jit
@no_type_check
def plus_shared(
    scores, own_exp, other_exp, own_at, other_at, own_room, other_room, weights,
    SHARED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Scores + weights . r of the four units that the pointers stand at."""
    w0 = tl.load(weights)
    w1 = tl.load(weights + 1)
    w2 = tl.load(weights + 2)
    w3 = tl.load(weights + 3)
    x0 = divisor(own_exp, other_exp, 0, own_at, other_at, own_room, other_room)
    x1 = divisor(own_exp, other_exp, 1, own_at, other_at, own_room, other_room)
    x2 = divisor(own_exp, other_exp, 2, own_at, other_at, own_room, other_room)
    x3 = divisor(own_exp, other_exp, 3, own_at, other_at, own_room, other_room)
    return scores + shared(w0, w1, w2, w3, x0, x1, x2, x3, SHARED, FAST)


@triton.jit
@no_type_check
def plus_exact(
    scores, own_raw, other_raw, own_at, other_at, own_len, other_len, weights, unit, dim,
    FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores + weights . r of four units from `unit` on; in a loop, to spare registers."""
    for one in range(0, 4):
        r = exact(own_raw, other_raw, unit + one, own_at, other_at, own_len, other_len, dim, FAST, WIDE)
        scores += tl.load(weights + one) * r
    return scores


@triton.jit
@no_type_check
def row_residuals(query, keys, cols, num_keys, lanes, dim, FAST: tl.constexpr, WIDE: tl.constexpr):
    """r of one query and a tile of keys, (key, units of `lanes`), for every finite input: see `exact`."""
    lanes_in = lanes < dim
    inside = (cols < num_keys)[:, None] & lanes_in[None, :]
    own = tl.load(query + lanes, mask=lanes_in, other=0.0).to(WIDE) * 0.5
    other = tl.load(keys + cols.to(tl.int64)[:, None] * dim + lanes[None, :], mask=inside, other=0.0).to(WIDE) * 0.5
    half = other + own[None, :]
    half = tl.where(half > 15.0, 15.0, half)
    half = tl.where(half < -15.0, -15.0, half)
    return reciprocal(1.0 + tl.exp(half * 4.0), FAST)


@triton.jit
@no_type_check
def with_units_of_row(
    scores, query, keys, cols, num_keys, weights, dim,
    UNITS: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores (key, 1) + sum_d weights[d] r[d] of the one query that `query` stands at: many units at a time, as there
    are too few pairs to keep a GPU busy with one after the other."""
    for unit in range(0, dim, UNITS):
        lanes = unit + tl.arange(0, UNITS)
        weight = tl.load(weights + lanes, mask=lanes < dim, other=0.0)
        r = row_residuals(query, keys, cols, num_keys, lanes, dim, FAST, WIDE)
        scores += tl.sum(r * weight[None, :], 1)[:, None]
    return scores


@triton.jit
@no_type_check
def with_units(
    scores, own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len, own_room, other_room,
    fits, weights, units, dim, SHARED: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores + sum_d weights[d] r[d]. The pointers stand at their batch and head."""
    for unit in range(0, units, 4):
        if tl.load(fits + unit // 4) != 0:
            scores = plus_shared(
                scores, own_exp, other_exp, own_at, other_at, own_room, other_room, weights + unit, SHARED, FAST
            )
        else:
            scores = plus_exact(
                scores, own_raw, other_raw, own_at, other_at, own_len, other_len, weights + unit, unit, dim, FAST, WIDE
            )
        own_exp += 4 * own_room
        other_exp += 4 * other_room
    return scores


@triton.jit
@no_type_check
def residuals(
    own_exp, other_exp, own_raw, other_raw, own_at, other_at, own_len, other_len, own_room, other_room,
    fits, unit, dim, FAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """r of units `unit` and `unit + 1`, which share a division: both are needed, so a pair is the best to share."""
    if tl.load(fits + unit // 4) != 0:
        x0 = divisor(own_exp, other_exp, 0, own_at, other_at, own_room, other_room)
        x1 = divisor(own_exp, other_exp, 1, own_at, other_at, own_room, other_room)
        both = reciprocal(x0 * x1, FAST)
        r0 = both * x1
        r1 = both * x0
    else:
        r0 = exact(own_raw, other_raw, unit, own_at, other_at, own_len, other_len, dim, FAST, WIDE)
        r1 = exact(own_raw, other_raw, unit + 1, own_at, other_at, own_len, other_len, dim, FAST, WIDE)
    return r0, r1


@triton.jit
@no_type_check
def change(
    weights, delta, own_side, other_side, own_at, other_at, own_len, other_len, value_dim,
    VALUES: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores: weights (grad_out . value - delta). The sides are values and grad_out, either way."""
    slope = tl.zeros_like(weights)
    own_wide = own_at.to(tl.int64)
    other_wide = other_at.to(tl.int64)
    for at in range(0, value_dim, VALUES):
        lanes = at + tl.arange(0, VALUES)
        own_open = (own_at < own_len)[None, :] & (lanes < value_dim)[:, None]
        other_open = (other_at < other_len)[:, None] & (lanes < value_dim)[None, :]
        own = tl.load(own_side + own_wide[None, :] * value_dim + lanes[:, None], mask=own_open, other=0.0)
        other = tl.load(other_side + other_wide[:, None] * value_dim + lanes[None, :], mask=other_open, other=0.0)
        slope += product(other, own, DOT, PRECISION, WIDE)
    return weights * (slope - delta)
