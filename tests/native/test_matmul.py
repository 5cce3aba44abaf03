"""Products over packed weights against numpy, for every number of rows and each kind of weights."""

import ctypes

import numpy as np
import pytest
import torch

from regard.native.decoder import matmul
from regard.native.decoder.matmul import BIAS, DEPTH, PANELS, SCALES, SUMS, WEIGHTS, multiplier
from regard.native.decoder.packed_weights import Heads, ProductTable, aligned_zeros
from regard.native.decoder.tiles import FLOAT32, HALVES, INT8, PAIRS, PANEL
from regard.native.processor import HAS_PAIR_PRODUCTS, LANES, TILE_ROWS

_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9, ctypes.c_float, *[ctypes.c_int64] * 4)
_NAMES = {FLOAT32: "float32", HALVES: "halves", INT8: "int8", PAIRS: "pairs"}
KINDS = [kind for kind in _NAMES if kind != PAIRS or HAS_PAIR_PRODUCTS]
_ROWS = [*range(1, 2 * TILE_ROWS + 3), 64]


def compute_product(
    x: np.ndarray,
    weight: torch.Tensor,
    bias: torch.Tensor,
    kind: int,
    *,
    floor=-np.inf,
    added_to=None,
):
    """Return max(floor, x W^T + b), plus `added_to` if given, by the code of a kind of weights."""
    packed = ProductTable(kind)
    packed.add(weight, bias)
    (entry,) = packed.build_table()
    out = aligned_zeros((len(x), int(entry[PANELS]) * PANEL))
    if added_to is not None:
        out[:, : added_to.shape[1]] = added_to
    depth, scales = int(entry[DEPTH]), np.ones(len(x), np.float32)
    packed_x = np.ascontiguousarray(x, np.float32)
    if kind == PAIRS:
        packed_x = np.zeros((len(x), -(-depth // 2) * 2), np.uint16)
        rounded = torch.from_numpy(np.array(x, np.float32)).bfloat16()
        packed_x[:, :depth] = rounded.view(torch.int16).numpy()
        depth = packed_x.shape[1] // 2
    if kind == INT8:
        depth = -(-depth // 4)
        codes = np.full((len(x), 4 * depth), 128, np.uint8)
        scales = (np.abs(x).max(1) / 127).astype(np.float32)
        codes[:, : x.shape[1]] = np.floor(x / scales[:, None] + 128.5)
        packed_x = codes
    _CALL(multiplier[kind]())(
        packed_x.ctypes.data, packed_x.strides[0], len(x), int(entry[WEIGHTS]), depth,
        int(entry[PANELS]), int(entry[BIAS]),
        out.ctypes.data, out.strides[0], floor, added_to is not None, scales.ctypes.data,
        int(entry[SCALES]), int(entry[SUMS]),
    )  # fmt: skip
    return out[:, : len(weight)]


def make_inputs(
    rows: int, inputs: int, outputs: int
) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows + inputs + outputs)
    x, weight, bias = (
        torch.randn(shape, generator=draw)
        for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    return x.numpy(), weight, bias


@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(8, PANEL), (37, 5 * PANEL + 3), (1, 1)])
def test_float32_is_the_product(rows, inputs, outputs):
    x, weight, bias = make_inputs(rows, inputs, outputs)
    expected = x.astype(np.float64) @ weight.double().numpy().T + bias.numpy()
    np.testing.assert_allclose(compute_product(x, weight, bias, FLOAT32), expected, atol=3e-5)


@pytest.mark.parametrize("rows", [1, 3, TILE_ROWS, TILE_ROWS + 1])
def test_halves_round_only_the_weights(rows):
    x, weight, bias = make_inputs(rows, 41, 4 * PANEL + 7)
    expected = x.astype(np.float64) @ weight.bfloat16().double().numpy().T + bias.numpy()
    np.testing.assert_allclose(compute_product(x, weight, bias, HALVES), expected, atol=3e-5)


@pytest.mark.skipif(
    not HAS_PAIR_PRODUCTS, reason="this processor does not multiply pairs of bfloat16"
)
@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize("inputs", [40, 41])
def test_pairs_round_weights_and_inputs(rows, inputs):
    x, weight, bias = make_inputs(rows, inputs, 4 * PANEL + 7)
    rounded = torch.from_numpy(x).bfloat16().double().numpy()
    expected = rounded @ weight.bfloat16().double().numpy().T + bias.numpy()
    np.testing.assert_allclose(compute_product(x, weight, bias, PAIRS), expected, atol=3e-5)


@pytest.mark.parametrize("rows", [1, 2, TILE_ROWS, TILE_ROWS + 5])
@pytest.mark.parametrize("inputs", [40, 43])
def test_int8_is_the_product_of_rounded_values(rows, inputs):
    x, weight, bias = make_inputs(rows, inputs, 4 * PANEL + 7)
    x_scales, weight_scales = np.abs(x).max(1) / 127, weight.abs().amax(1).numpy() / 127
    codes = np.floor(x / x_scales[:, None] + 0.5)
    products = codes @ np.rint(weight.numpy() / weight_scales[:, None]).T
    expected = products * x_scales[:, None] * weight_scales + bias.numpy()
    actual = compute_product(x, weight, bias, INT8)
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    exact = x @ weight.numpy().T + bias.numpy()
    assert np.abs(actual - exact).max() < inputs * 0.5 * (
        np.abs(x).max() * weight_scales.max() + x_scales.max() * 3.5
    )


def test_rows_are_quantized_by_their_largest_number():
    x = np.random.default_rng(1).standard_normal((3, 43)).astype(np.float32)
    x[1] = 0
    codes, scales = np.full((3, 48), 7, np.uint8), np.zeros(3, np.float32)
    matmul._to_bytes(x, 3, 41, codes, scales)
    largest = np.abs(x[:, :41]).max(1)
    np.testing.assert_allclose(scales, largest / 127, rtol=1e-6)
    steps = np.divide(
        127 * x[:, :41], largest[:, None], out=np.zeros((3, 41)), where=largest[:, None] > 0
    )
    assert np.abs(codes[:, :41] - (128 + steps)).max() < 0.501
    assert (codes[:, 41:44] == 128).all()
    assert (codes[:, 44:] == 7).all()


@pytest.mark.parametrize("depth", [40, 41])
def test_rows_are_rounded_to_bfloat16_with_zero_padding_for_odd_depths(depth):
    x = np.full((3, 64), np.nan, np.float32)
    x[:, :depth] = np.random.default_rng(1).standard_normal((3, depth))
    codes = np.full((3, 128), 7, np.uint8)
    matmul._to_pairs(x, 3, depth, codes)
    pairs = torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(pairs[:, :depth], torch.from_numpy(x[:, :depth]).bfloat16())
    if depth % 2:
        assert not pairs[:, depth].any()


def test_the_largest_bytes_do_not_overflow():
    x, weight = np.full((2, 4096), 3.0, np.float32), torch.full((PANEL, 4096), -2.0)
    actual = compute_product(x, weight, torch.zeros(PANEL), INT8)
    np.testing.assert_allclose(actual, np.full((2, PANEL), -6.0 * 4096), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES.get)
def test_floor_and_accumulation(kind):
    x, weight, bias = make_inputs(5, 16, PANEL)
    plain = compute_product(x, weight, bias, kind)
    positive = compute_product(x, weight, bias, kind, floor=0.0)
    np.testing.assert_array_equal(positive, np.maximum(plain, 0))
    existing = np.arange(5 * PANEL, dtype=np.float32).reshape(5, PANEL)
    total = compute_product(x, weight, bias, kind, added_to=existing)
    np.testing.assert_allclose(total, plain + existing, rtol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != INT8], ids=_NAMES.get)
def test_nan_propagates(kind):
    x, weight, bias = make_inputs(2, 8, PANEL)
    x[1, 3] = np.nan
    actual = compute_product(x, weight, bias, kind, floor=0.0)
    assert np.isnan(actual[1]).all()
    assert not np.isnan(actual[0]).any()


def test_zero_weights_have_scale_zero():
    x, weight, bias = make_inputs(2, 8, 3)
    weight[1] = 0
    actual = compute_product(x, weight, bias, INT8)[:, 1]
    np.testing.assert_allclose(actual, bias[1].expand(2), rtol=1e-6)


def test_heads_are_padded_to_registers():
    heads = Heads(3, 5)
    assert heads.padded_size % LANES == 0
    weight, items = torch.randn(15, 4), torch.randn(2, 4)
    padded = (items @ heads.pad_outputs(weight).T).unflatten(1, (3, heads.padded_size))
    torch.testing.assert_close(padded[:, :, :5].flatten(1), items @ weight.T)
    assert not padded[:, :, 5:].any()
    output_weight = torch.randn(7, 15)
    torch.testing.assert_close(
        padded.flatten(1) @ heads.pad_inputs(output_weight).T, items @ weight.T @ output_weight.T
    )
