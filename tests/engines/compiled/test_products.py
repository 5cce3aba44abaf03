"""Products over packed weights against numpy's, for every number of rows and each kind of weights."""

import ctypes

import numpy as np
import pytest
import torch

from regard.engines.compiled import products
from regard.engines.compiled.compiling import HAS_PAIR_PRODUCTS, LANES, TILE_ROWS
from regard.engines.compiled.packed import Heads, Products, aligned
from regard.engines.compiled.products import BIAS, DEPTH, PANELS, SCALES, SUMS, WEIGHTS, multiplier
from regard.engines.compiled.tiles import FLOAT32, HALVES, INT8, PAIRS, PANEL

_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9, ctypes.c_float, *[ctypes.c_int64] * 4)
_NAMES = {FLOAT32: "float32", HALVES: "halves", INT8: "int8", PAIRS: "pairs"}
KINDS = [kind for kind in _NAMES if kind != PAIRS or HAS_PAIR_PRODUCTS]
_ROWS = [*range(1, 2 * TILE_ROWS + 3), 64]


def product_of(x: np.ndarray, weight: torch.Tensor, bias: torch.Tensor, kind: int, *, floor=-np.inf, onto=None):
    """max(floor, x W^T + b), or that added to `onto`, by the code of a kind of weights."""
    packed = Products(kind)
    packed.add(weight, bias)
    (entry,) = packed.table()
    out = aligned((len(x), int(entry[PANELS]) * PANEL))
    if onto is not None:
        out[:, : onto.shape[1]] = onto
    depth, scales = int(entry[DEPTH]), np.ones(len(x), np.float32)
    given = np.ascontiguousarray(x, np.float32)
    if kind == PAIRS:
        given = np.zeros((len(x), -(-depth // 2) * 2), np.uint16)
        given[:, :depth] = torch.from_numpy(np.array(x, np.float32)).bfloat16().view(torch.int16).numpy()
        depth = given.shape[1] // 2
    if kind == INT8:
        depth = -(-depth // 4)
        codes = np.full((len(x), 4 * depth), 128, np.uint8)
        scales = (np.abs(x).max(1) / 127).astype(np.float32)
        codes[:, : x.shape[1]] = np.floor(x / scales[:, None] + 128.5)
        given = codes
    _CALL(multiplier[kind]())(
        given.ctypes.data, given.strides[0], len(x), int(entry[WEIGHTS]), depth, int(entry[PANELS]), int(entry[BIAS]),
        out.ctypes.data, out.strides[0], floor, onto is not None, scales.ctypes.data, int(entry[SCALES]),
        int(entry[SUMS]),
    )  # fmt: skip
    return out[:, : len(weight)]


def numbers(rows: int, inputs: int, outputs: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows + inputs + outputs)
    x, weight, bias = (torch.randn(shape, generator=draw) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    return x.numpy(), weight, bias


@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(8, PANEL), (37, 5 * PANEL + 3), (1, 1)])
def test_float32_is_the_product(rows, inputs, outputs):
    x, weight, bias = numbers(rows, inputs, outputs)
    expected = x.astype(np.float64) @ weight.double().numpy().T + bias.numpy()
    np.testing.assert_allclose(product_of(x, weight, bias, FLOAT32), expected, atol=3e-5)


@pytest.mark.parametrize("rows", [1, 3, TILE_ROWS, TILE_ROWS + 1])
def test_halves_round_the_weights_and_nothing_else(rows):
    x, weight, bias = numbers(rows, 41, 4 * PANEL + 7)
    expected = x.astype(np.float64) @ weight.bfloat16().double().numpy().T + bias.numpy()
    np.testing.assert_allclose(product_of(x, weight, bias, HALVES), expected, atol=3e-5)


@pytest.mark.skipif(not HAS_PAIR_PRODUCTS, reason="this processor does not multiply pairs of bfloat16")
@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize("inputs", [40, 41])
def test_pairs_round_both_and_nothing_else(rows, inputs):
    x, weight, bias = numbers(rows, inputs, 4 * PANEL + 7)
    rounded = torch.from_numpy(x).bfloat16().double().numpy()
    expected = rounded @ weight.bfloat16().double().numpy().T + bias.numpy()
    np.testing.assert_allclose(product_of(x, weight, bias, PAIRS), expected, atol=3e-5)


@pytest.mark.parametrize("rows", [1, 2, TILE_ROWS, TILE_ROWS + 5])
@pytest.mark.parametrize("inputs", [40, 43])
def test_int8_is_the_product_of_what_was_rounded(rows, inputs):
    x, weight, bias = numbers(rows, inputs, 4 * PANEL + 7)
    of_x, of_weight = np.abs(x).max(1) / 127, weight.abs().amax(1).numpy() / 127
    rounded = np.floor(x / of_x[:, None] + 0.5) @ np.rint(weight.numpy() / of_weight[:, None]).T
    expected = rounded * of_x[:, None] * of_weight + bias.numpy()
    found = product_of(x, weight, bias, INT8)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    exact = x @ weight.numpy().T + bias.numpy()
    assert np.abs(found - exact).max() < inputs * 0.5 * (np.abs(x).max() * of_weight.max() + of_x.max() * 3.5)


def test_rows_become_bytes_by_their_largest_number():
    x = np.random.default_rng(1).standard_normal((3, 43)).astype(np.float32)
    x[1] = 0
    codes, scales = np.full((3, 48), 7, np.uint8), np.zeros(3, np.float32)
    products._to_bytes(x, 3, 41, codes, scales)
    largest = np.abs(x[:, :41]).max(1)
    np.testing.assert_allclose(scales, largest / 127, rtol=1e-6)
    steps = np.divide(127 * x[:, :41], largest[:, None], out=np.zeros((3, 41)), where=largest[:, None] > 0)
    assert np.abs(codes[:, :41] - (128 + steps)).max() < 0.501
    assert (codes[:, 41:44] == 128).all()
    assert (codes[:, 44:] == 7).all()


@pytest.mark.parametrize("depth", [40, 41])
def test_rows_become_bfloat16_and_a_zero_behind_an_odd_number(depth):
    x = np.full((3, 64), np.nan, np.float32)
    x[:, :depth] = np.random.default_rng(1).standard_normal((3, depth))
    codes = np.full((3, 128), 7, np.uint8)
    products._to_pairs(x, 3, depth, codes)
    pairs = torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(pairs[:, :depth], torch.from_numpy(x[:, :depth]).bfloat16())
    if depth % 2:
        assert not pairs[:, depth].any()


def test_the_largest_bytes_do_not_overflow():
    x, weight = np.full((2, 4096), 3.0, np.float32), torch.full((PANEL, 4096), -2.0)
    found = product_of(x, weight, torch.zeros(PANEL), INT8)
    np.testing.assert_allclose(found, np.full((2, PANEL), -6.0 * 4096), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES.get)
def test_a_floor_and_adding(kind):
    x, weight, bias = numbers(5, 16, PANEL)
    plain = product_of(x, weight, bias, kind)
    np.testing.assert_array_equal(product_of(x, weight, bias, kind, floor=0.0), np.maximum(plain, 0))
    there = np.arange(5 * PANEL, dtype=np.float32).reshape(5, PANEL)
    np.testing.assert_allclose(product_of(x, weight, bias, kind, onto=there), plain + there, rtol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != INT8], ids=_NAMES.get)
def test_what_is_no_number_stays_that(kind):
    x, weight, bias = numbers(2, 8, PANEL)
    x[1, 3] = np.nan
    found = product_of(x, weight, bias, kind, floor=0.0)
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[0]).any()


def test_weights_of_zero_have_no_scale():
    x, weight, bias = numbers(2, 8, 3)
    weight[1] = 0
    np.testing.assert_allclose(product_of(x, weight, bias, INT8)[:, 1], bias[1].expand(2), rtol=1e-6)


def test_heads_are_filled_up_to_registers():
    heads = Heads(3, 5)
    assert heads.padded % LANES == 0
    weight, items = torch.randn(15, 4), torch.randn(2, 4)
    filled = (items @ heads.of_outputs(weight).T).unflatten(1, (3, heads.padded))
    torch.testing.assert_close(filled[:, :, :5].flatten(1), items @ weight.T)
    assert not filled[:, :, 5:].any()
    back = torch.randn(7, 15)
    torch.testing.assert_close(filled.flatten(1) @ heads.of_inputs(back).T, items @ weight.T @ back.T)
