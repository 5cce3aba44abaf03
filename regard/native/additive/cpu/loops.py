"""Loops of additive attention on a CPU: tanh by shared exponentials and divisions, in numba.

    tanh(a + b) = 1 - 2 r,    r = 1 / x,    x = 1 + e^{2a} e^{2b},    tanh'(a + b) = 4 r (1 - r)

so with e^{2a} computed once per query and e^{2b} once per key, a (query, key, hidden) triple costs
one multiply-add and one division, and several reciprocals share a division:

    v/x + w/y = (v y + w x) / (x y)          1/x = y / (x y),  1/y = x / (x y)

Four factors of one division need their product in range: each x is capped at `CAP`, beyond which
tanh is 1 to less than half a unit in the last place. The exponentials themselves are right as long
as one side of the sum is at most `SIDE` in size; the other may be clamped to `CLAMP`, since CLAMP -
SIDE is already saturated. Where both sides are larger, and where there are too few queries for
tables of exponentials to pay off, e^{2(a + b)} is computed per triple.

Error: |tanh| within 5e-7 in float32, 1e-14 in float64, for every finite a and b. NaN stays NaN.

Loops run over contiguous lanes, over keys for scores and over the hidden size for gradients, so
that LLVM vectorizes them and no sum goes across lanes. A tile has `KEYS` keys; a tile of
exponentials fits the L1 cache.

Source: bahdanau2015, appendix A.1.2 (the score).
"""

import inspect
import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.polynomial import Chebyshev, Polynomial

from regard.native.compile import OPTIONS, jit, jit_inline, jit_without_nan
from regard.ops.additive import MAX_EXP_INPUT

KEYS = 64
"""Keys in a tile."""
ROWS = 32
"""Query rows in a block; a multiple of 4."""
LANES = 16
"""Rows are padded to a multiple of this: the widest vector in float32."""
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
CAP = {_F32: 2.0**26, _F64: 2.0**56}
CLAMP = {_F32: 43.0, _F64: 350.0}
SIDE = {_F32: MAX_EXP_INPUT, _F64: 330.0}

# e^f for |f| <= ln 2 / 2, interpolated at Chebyshev nodes: relative error 9e-8 in float32.
_POWERS = Chebyshev.interpolate(np.exp, 5, domain=[-math.log(2) / 2, math.log(2) / 2]).convert(
    kind=Polynomial
)
_C0, _C1, _C2, _C3, _C4, _C5 = _POWERS.coef.astype(np.float32)
_LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts: the product of the first with an integer below 256 is exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
# The order of operations matters here: the two parts must not be added up first.
_IN_ORDER: Any = {**OPTIONS, "fastmath": {"contract", "nsz"}}
_ABOVE = np.float32(256.5)
_OFFSET, _EXPONENT, _MANTISSA = np.int32(256), np.int32(127), np.int32(23)


def constants(dtype: np.dtype) -> np.ndarray:
    """Return 1, CAP, CLAMP, SIDE, 1/2 and 0 in the loops' dtype: literals would be float64."""
    return np.array([1.0, CAP[dtype], CLAMP[dtype], SIDE[dtype], 0.5, 0.0], dtype)


def exp_twice(x):  # pragma: no cover - numba compiles the overload below
    """Return e^{2x} for |x| <= CLAMP."""
    return np.exp(2 * x)


@overload(exp_twice, jit_options=_IN_ORDER)
def _exp_twice(x):
    if x != types.float32:
        return lambda x: math.exp(x + x)

    def single(x):
        # e^{2x} = 2^n e^f, |f| <= ln 2 / 2; adding 256.5 turns truncation into rounding.
        y = x + x
        n = np.int32(y * _LOG2_E + _ABOVE) - _OFFSET
        f = (y - np.float32(n) * _LN2_HIGH) - np.float32(n) * _LN2_LOW
        power = _C4 + _C5 * f
        power = _C3 + power * f
        power = _C2 + power * f
        power = _C1 + power * f
        power = _C0 + power * f
        return power * np.int32((n + _EXPONENT) << _MANTISSA).view(np.float32)

    return inspect.unwrap(single)


@jit_inline
def clamp_to(x, bound):
    """Clamp x to [-bound, bound]. NaN is preserved, which is why min and max are spelled out."""
    x = bound if bound < x else x
    return -bound if x < -bound else x


@jit_inline
def exp_nonpositive(x, half, zero, clamp):
    """Return e^x for x <= 0: zero below the range of `exp_twice` and for -inf, NaN for NaN."""
    x = half * x
    return zero if x < -clamp else exp_twice(x)


@jit_without_nan
def max_value(x):
    """Return max x[j]; x must not be empty."""
    most = x[0]
    for j in range(x.shape[0]):
        most = max(most, x[j])
    return most


@jit_without_nan
def max_abs(x):
    """Return max |x[d]|; zero for an empty x."""
    most = abs(x[0]) if x.size > 0 else x.dtype.type(0)
    for d in range(x.shape[0]):
        most = max(most, abs(x[d]))
    return most


@jit
def exp_table(x, first, last, const, out):
    """Set row r of out to e^{2 x[first + r]}; zero from row `last` and the last column of x on."""
    width, clamp = x.shape[1], const[2]
    for r in range(out.shape[0]):
        target = out[r]
        if first + r >= last:
            target[:] = 0
            continue
        row = x[first + r]
        for d in range(width):
            target[d] = exp_twice(clamp_to(row[d], clamp))
        target[width:] = 0


@jit
def transpose(x, first, last, out):
    """Set out[c, j] = x[first + j, c], zero from `last` on and beyond the columns of x."""
    width = x.shape[1]
    count = min(out.shape[1], last - first)
    for c in range(width):
        target = out[c]
        for j in range(count):
            target[j] = x[first + j, c]
        target[count:] = 0
    out[width:] = 0


@jit_inline
def _four_quotients(one, cap, v0, v1, v2, v3, a0, a1, a2, a3, b0, b1, b2, b3):
    """Return sum_d v_d / (1 + a_d b_d) over four d, with one division."""
    x, y, z, w = one + a0 * b0, one + a1 * b1, one + a2 * b2, one + a3 * b3
    x = cap if cap < x else x
    y = cap if cap < y else y
    z = cap if cap < z else z
    w = cap if cap < w else w
    p, q = x * y, z * w
    return ((v0 * y + v1 * x) * q + (v2 * w + v3 * z) * p) / (p * q)


@jit
def add_scores(rows, keys, v, begin, end, const, out):
    """Add sum_d v_d / (1 + rows[i, d] keys[d, j]) to out[i, j], four rows at a time.

    rows (query, dim), keys (dim, key); dim is a multiple of 4.
    """
    one, cap = const[0], const[1]
    for d in range(0, keys.shape[0], 4):
        v0, v1, v2, v3 = v[d], v[d + 1], v[d + 2], v[d + 3]
        for quad in range(begin.shape[0]):
            i, span = 4 * quad, slice(begin[quad], end[quad])
            k0, k1, k2, k3 = keys[d, span], keys[d + 1, span], keys[d + 2, span], keys[d + 3, span]
            p0, p1, p2, p3 = rows[i, d], rows[i, d + 1], rows[i, d + 2], rows[i, d + 3]
            i += 1
            q0, q1, q2, q3 = rows[i, d], rows[i, d + 1], rows[i, d + 2], rows[i, d + 3]
            i += 1
            r0, r1, r2, r3 = rows[i, d], rows[i, d + 1], rows[i, d + 2], rows[i, d + 3]
            i += 1
            s0, s1, s2, s3 = rows[i, d], rows[i, d + 1], rows[i, d + 2], rows[i, d + 3]
            out0, out1, out2, out3 = (
                out[i - 3, span],
                out[i - 2, span],
                out[i - 1, span],
                out[i, span],
            )
            for j in range(k0.shape[0]):
                b0, b1, b2, b3 = k0[j], k1[j], k2[j], k3[j]
                out0[j] += _four_quotients(one, cap, v0, v1, v2, v3, p0, p1, p2, p3, b0, b1, b2, b3)
                out1[j] += _four_quotients(one, cap, v0, v1, v2, v3, q0, q1, q2, q3, b0, b1, b2, b3)
                out2[j] += _four_quotients(one, cap, v0, v1, v2, v3, r0, r1, r2, r3, b0, b1, b2, b3)
                out3[j] += _four_quotients(one, cap, v0, v1, v2, v3, s0, s1, s2, s3, b0, b1, b2, b3)


@jit_inline
def _invert(v, x, y, z, w):
    """Return v divided by each of four numbers, with one division."""
    p, q = x * y, z * w
    share = v / (p * q)
    p, q = share * q, share * p
    return p * y, p * x, q * w, q * z


@jit_inline
def _denominator(a, b, one, cap, clamp):
    """Return 1 + e^{2(a + b)}, capped."""
    x = one + exp_twice(clamp_to(a + b, clamp))
    return cap if cap < x else x


@jit
def direct_scores(row, keys, v, first, begin, end, const, out):
    """Set out[j] = sum_d v_d / (1 + e^{2(row[d] + keys[first + j, d])}), begin <= j < end."""
    one, cap, clamp, zero = const[0], const[1], const[2], const[5]
    j = begin
    while j + 4 <= end:
        n = first + j
        k0, k1, k2, k3 = keys[n], keys[n + 1], keys[n + 2], keys[n + 3]
        s0 = s1 = s2 = s3 = zero
        for d in range(row.shape[0]):
            a = row[d]
            x, y = _denominator(a, k0[d], one, cap, clamp), _denominator(a, k1[d], one, cap, clamp)
            z, w = _denominator(a, k2[d], one, cap, clamp), _denominator(a, k3[d], one, cap, clamp)
            r0, r1, r2, r3 = _invert(v[d], x, y, z, w)
            s0 += r0
            s1 += r1
            s2 += r2
            s3 += r3
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
        j += 4
    while j < end:
        k0 = keys[first + j]
        s0 = zero
        for d in range(row.shape[0]):
            s0 += v[d] / _denominator(row[d], k0[d], one, cap, clamp)
        out[j] = s0
        j += 1


@jit
def add_products(x, i, y, first, begin, end, left, right, out, target):
    """Add sum_k x[i + r, k] y[first + k, c] to out[target + r, c], r < 4, begin <= k < end, left <=
    c < right."""
    span = slice(left, right)
    o0, o1 = out[target, span], out[target + 1, span]
    o2, o3 = out[target + 2, span], out[target + 3, span]
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    k = begin
    while k + 4 <= end:
        n = first + k
        y0, y1, y2, y3 = y[n, span], y[n + 1, span], y[n + 2, span], y[n + 3, span]
        a0, a1, a2, a3 = x0[k], x0[k + 1], x0[k + 2], x0[k + 3]
        b0, b1, b2, b3 = x1[k], x1[k + 1], x1[k + 2], x1[k + 3]
        c0, c1, c2, c3 = x2[k], x2[k + 1], x2[k + 2], x2[k + 3]
        d0, d1, d2, d3 = x3[k], x3[k + 1], x3[k + 2], x3[k + 3]
        for c in range(o0.shape[0]):
            u, v, w, z = y0[c], y1[c], y2[c], y3[c]
            o0[c] += a0 * u + a1 * v + a2 * w + a3 * z
            o1[c] += b0 * u + b1 * v + b2 * w + b3 * z
            o2[c] += c0 * u + c1 * v + c2 * w + c3 * z
            o3[c] += d0 * u + d1 * v + d2 * w + d3 * z
        k += 4
    while k < end:
        y0 = y[first + k, span]
        a0, b0, c0, d0 = x0[k], x1[k], x2[k], x3[k]
        for c in range(o0.shape[0]):
            u = y0[c]
            o0[c] += a0 * u
            o1[c] += b0 * u
            o2[c] += c0 * u
            o3[c] += d0 * u
        k += 1


@jit_inline
def reciprocals(one, cap, a, b0, b1, b2, b3):
    """Return 1 / (1 + a b) for four b, with one division."""
    x, y, z, w = one + a * b0, one + a * b1, one + a * b2, one + a * b3
    x = cap if cap < x else x
    y = cap if cap < y else y
    z = cap if cap < z else z
    w = cap if cap < w else w
    return _invert(one, x, y, z, w)


@jit
def add_gradients(rows, keys, first, ds, i, begin, end, const, grad_rows, grad_keys, grad_v):
    """Add gradients of rows i, i + 1, begin <= j < end, r = 1 / (1 + rows[i, d] keys[first + j, d])

    grad_rows[i] += sum_j ds r (1 - r);  grad_keys[first + j] += sum_i ds r (1 - r);  grad_v +=
    sum_ij ds r. begin and end are multiples of 4; ds is zero for masked pairs.
    """
    one, cap = const[0], const[1]
    p, q, dp, dq = rows[i], rows[i + 1], grad_rows[i], grad_rows[i + 1]
    for j in range(begin, end, 4):
        n = first + j
        k0, k1, k2, k3 = keys[n], keys[n + 1], keys[n + 2], keys[n + 3]
        t0, t1, t2, t3 = grad_keys[n], grad_keys[n + 1], grad_keys[n + 2], grad_keys[n + 3]
        e0, e1, e2, e3 = ds[i, j], ds[i, j + 1], ds[i, j + 2], ds[i, j + 3]
        f0, f1, f2, f3 = ds[i + 1, j], ds[i + 1, j + 1], ds[i + 1, j + 2], ds[i + 1, j + 3]
        for d in range(grad_v.shape[0]):
            b0, b1, b2, b3 = k0[d], k1[d], k2[d], k3[d]
            r0, r1, r2, r3 = reciprocals(one, cap, p[d], b0, b1, b2, b3)
            u0, u1, u2, u3 = e0 * r0, e1 * r1, e2 * r2, e3 * r3
            total = (u0 + u1) + (u2 + u3)
            u0, u1, u2, u3 = u0 - u0 * r0, u1 - u1 * r1, u2 - u2 * r2, u3 - u3 * r3
            dp[d] += (u0 + u1) + (u2 + u3)
            r0, r1, r2, r3 = reciprocals(one, cap, q[d], b0, b1, b2, b3)
            w0, w1, w2, w3 = f0 * r0, f1 * r1, f2 * r2, f3 * r3
            grad_v[d] += total + ((w0 + w1) + (w2 + w3))
            w0, w1, w2, w3 = w0 - w0 * r0, w1 - w1 * r1, w2 - w2 * r2, w3 - w3 * r3
            dq[d] += (w0 + w1) + (w2 + w3)
            t0[d] += u0 + w0
            t1[d] += u1 + w1
            t2[d] += u2 + w2
            t3[d] += u3 + w3


@jit_inline
def four_residuals(a, b0, b1, b2, b3, one, cap, clamp):
    """Return 1 / (1 + e^{2(a + b)}) for four b, without tables and with one division."""
    x, y = _denominator(a, b0, one, cap, clamp), _denominator(a, b1, one, cap, clamp)
    z, w = _denominator(a, b2, one, cap, clamp), _denominator(a, b3, one, cap, clamp)
    return _invert(one, x, y, z, w)


@jit_inline
def one_residual(a, b, one, cap, clamp):
    """Return 1 / (1 + e^{2(a + b)})."""
    return one / _denominator(a, b, one, cap, clamp)


@jit
def direct_gradients(row, keys, first, ds, begin, end, const, grad_row, grad_keys, grad_v):
    """Add the gradients of one row as `add_gradients`, without tables, for any begin <= j < end."""
    one, cap, clamp = const[0], const[1], const[2]
    j = begin
    while j + 4 <= end:
        n = first + j
        k0, k1, k2, k3 = keys[n], keys[n + 1], keys[n + 2], keys[n + 3]
        t0, t1, t2, t3 = grad_keys[n], grad_keys[n + 1], grad_keys[n + 2], grad_keys[n + 3]
        e0, e1, e2, e3 = ds[j], ds[j + 1], ds[j + 2], ds[j + 3]
        for d in range(row.shape[0]):
            r0, r1, r2, r3 = four_residuals(row[d], k0[d], k1[d], k2[d], k3[d], one, cap, clamp)
            u0, u1, u2, u3 = e0 * r0, e1 * r1, e2 * r2, e3 * r3
            grad_v[d] += (u0 + u1) + (u2 + u3)
            u0, u1, u2, u3 = u0 - u0 * r0, u1 - u1 * r1, u2 - u2 * r2, u3 - u3 * r3
            grad_row[d] += (u0 + u1) + (u2 + u3)
            t0[d] += u0
            t1[d] += u1
            t2[d] += u2
            t3[d] += u3
        j += 4
    while j < end:
        k0, t0, e0 = keys[first + j], grad_keys[first + j], ds[j]
        for d in range(row.shape[0]):
            r0 = one_residual(row[d], k0[d], one, cap, clamp)
            u0 = e0 * r0
            grad_v[d] += u0
            u0 -= u0 * r0
            grad_row[d] += u0
            t0[d] += u0
        j += 1
