"""Loops a register at a time against numpy and torch in double precision."""

import numpy as np
import torch
from numba import njit

from regard.engines.compiled import lanes
from regard.engines.compiled.compiling import LANES


@njit
def dot(a, b):
    return lanes.dot(np.int64(a.ctypes.data), np.int64(b.ctypes.data), len(a))


@njit
def add_scaled(out, a, weight):
    lanes.add_scaled(np.int64(out.ctypes.data), np.int64(a.ctypes.data), weight, len(a))


@njit
def peak(a):
    return lanes.peak(np.int64(a.ctypes.data), len(a))


@njit
def soften(a, top):
    return lanes.soften(np.int64(a.ctypes.data), top, len(a))


@njit
def spread(a, top):
    return lanes.spread(np.int64(a.ctypes.data), top, len(a))


@njit
def gelu(a):
    lanes.gelu(np.int64(a.ctypes.data), len(a))


@njit
def halve(a, out):
    lanes.halve(np.int64(a.ctypes.data), np.int64(out.ctypes.data), len(a))


def row(registers: int, seed: int = 0) -> np.ndarray:
    return (4 * np.random.default_rng(seed).standard_normal(registers * LANES)).astype(np.float32)


def test_sums_of_products():
    for registers in (1, 2, 7):
        a, b = row(registers), row(registers, 1)
        np.testing.assert_allclose(dot(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-4)
        out = b.copy()
        add_scaled(out, a, np.float32(-1.5))
        np.testing.assert_allclose(out, b - 1.5 * a, rtol=1e-6, atol=1e-6)


def test_the_largest_wherever_it_stands():
    for place in range(3 * LANES):
        a = row(3)
        a[place] = 99
        assert peak(a) == 99
    assert peak(np.full(LANES, -np.inf, np.float32)) == -np.inf


def test_exponentials_in_all_of_their_range():
    x = np.linspace(-87, 0, 5000 * LANES).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    found = x.copy()
    total = soften(found, np.float32(0))
    np.testing.assert_allclose(found, exact, rtol=3e-7)
    np.testing.assert_allclose([total, spread(x, np.float32(0))], exact.sum(), rtol=1e-5)


def test_far_below_and_minus_infinity_are_nothing_and_nan_stays():
    x = np.zeros(LANES, np.float32)
    x[:3] = -np.inf, -200, -88
    found = x.copy()
    assert soften(found, np.float32(0)) == LANES - 3
    assert not found[:3].any()
    x[5] = np.nan
    assert np.isnan(spread(x, np.float32(0)))


def test_rounding_to_bfloat16_is_that_of_torch():
    a = row(5)
    a[:8] = 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0, -0.0, np.inf, -np.inf, np.nan
    found = np.zeros(len(a), np.uint16)
    halve(a, found)
    exact = torch.from_numpy(a).bfloat16()
    bits = torch.from_numpy(found.astype(np.int32)).short().view(torch.bfloat16)
    assert torch.equal(bits.isnan(), exact.isnan())
    assert torch.equal(bits[~exact.isnan()], exact[~exact.isnan()])


def test_gelu_is_that_of_torch():
    x = np.linspace(-12, 12, 1000 * LANES).astype(np.float32)
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    found = x.copy()
    gelu(found)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
    x[0] = np.nan
    gelu(x)
    assert np.isnan(x[0])
