"""Vector register loops against numpy and torch in double precision."""

import numpy as np
import torch
from numba import njit

from regard.native.decoder import simd
from regard.native.processor import LANES


@njit
def dot(a, b):
    return simd.dot(np.int64(a.ctypes.data), np.int64(b.ctypes.data), len(a))


@njit
def add_scaled(out, a, weight):
    simd.add_scaled(np.int64(out.ctypes.data), np.int64(a.ctypes.data), weight, len(a))


@njit
def row_max(a):
    return simd.row_max(np.int64(a.ctypes.data), len(a))


@njit
def exp_and_sum(a, top):
    return simd.exp_and_sum(np.int64(a.ctypes.data), top, len(a))


@njit
def sum_exp(a, top):
    return simd.sum_exp(np.int64(a.ctypes.data), top, len(a))


@njit
def gelu(a):
    simd.gelu(np.int64(a.ctypes.data), len(a))


@njit
def to_bfloat16(a, out):
    simd.to_bfloat16(np.int64(a.ctypes.data), np.int64(out.ctypes.data), len(a))


def row(registers: int, seed: int = 0) -> np.ndarray:
    return (4 * np.random.default_rng(seed).standard_normal(registers * LANES)).astype(np.float32)


def test_dot_and_add_scaled():
    for registers in (1, 2, 7):
        a, b = row(registers), row(registers, 1)
        np.testing.assert_allclose(dot(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-4)
        out = b.copy()
        add_scaled(out, a, np.float32(-1.5))
        np.testing.assert_allclose(out, b - 1.5 * a, rtol=1e-6, atol=1e-6)


def test_row_max_at_every_index():
    for index in range(3 * LANES):
        a = row(3)
        a[index] = 99
        assert row_max(a) == 99
    assert row_max(np.full(LANES, -np.inf, np.float32)) == -np.inf


def test_exponentials_over_their_range():
    x = np.linspace(-87, 0, 5000 * LANES).astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    actual = x.copy()
    total = exp_and_sum(actual, np.float32(0))
    np.testing.assert_allclose(actual, expected, rtol=3e-7)
    np.testing.assert_allclose([total, sum_exp(x, np.float32(0))], expected.sum(), rtol=1e-5)


def test_exponentials_underflow_to_zero_and_nan_propagates():
    x = np.zeros(LANES, np.float32)
    x[:3] = -np.inf, -200, -88
    actual = x.copy()
    assert exp_and_sum(actual, np.float32(0)) == LANES - 3
    assert not actual[:3].any()
    x[5] = np.nan
    assert np.isnan(sum_exp(x, np.float32(0)))


def test_rounding_to_bfloat16_equals_torch():
    a = row(5)
    a[:8] = 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0, -0.0, np.inf, -np.inf, np.nan
    actual = np.zeros(len(a), np.uint16)
    to_bfloat16(a, actual)
    expected = torch.from_numpy(a).bfloat16()
    bits = torch.from_numpy(actual.astype(np.int32)).short().view(torch.bfloat16)
    assert torch.equal(bits.isnan(), expected.isnan())
    assert torch.equal(bits[~expected.isnan()], expected[~expected.isnan()])


def test_gelu_equals_torch():
    x = np.linspace(-12, 12, 1000 * LANES).astype(np.float32)
    expected = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    actual = x.copy()
    gelu(actual)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    x[0] = np.nan
    gelu(x)
    assert np.isnan(x[0])
