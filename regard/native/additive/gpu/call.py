"""Additive attention on a GPU: the kernels of `regard.ops.additive`, forward and backward.

Memory beside inputs and results is O((query + key) (dim + value_dim)): scores are held in
registers, a tile at a time. Fully masked tiles are skipped. For the formulas and the error bound
see regard.native.additive.gpu.tiles.

The kernels of an earlier revision ran on an H200; these have not run on a GPU yet. Triton's
interpreter ran every path except the inline PTX, and Triton compiled the kernels for sm_80 and
sm_90. Tile sizes follow from register use and instruction counts, not from timings, and are fixed:
sums in another order would differ in their last bits.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

try:
    import triton
except ImportError as error:
    raise ImportError("additive attention on a GPU needs triton: pip install triton") from error

from regard.native.additive.gpu.backward import keys_kernel, query_kernel
from regard.native.additive.gpu.finish import finish_kernel, merge_kernel
from regard.native.additive.gpu.forward import read_kernel
from regard.native.additive.gpu.prepare import (
    AdditiveInputs,
    LaunchArguments,
    Tiles,
    is_interpreted,
    launch,
    prepare,
    strides_of,
)

TILES = Tiles(own=128, other=8, warps=2, programs=2048, registers=168)
"""A thread has two numbers of its own side and 8 of the other: 10 loads for 16 triples (17 in tiles
of 64 and 16, where loads take more time than arithmetic). 168 registers are enough for no spills in
float32 on sm_90, with 12 warps per multiprocessor."""


def forward(
    query: Float[Tensor, "batch head query dim"],
    keys: Float[Tensor, "batch key_head key dim"],
    values: Float[Tensor, "batch key_head key value_dim"],
    v: Float[Tensor, "#head dim"],
    first: Int[Tensor, "#batch #head #query"] | None,
    last: Int[Tensor, "#batch #head #query"] | None,
    allowed: Bool[Tensor, "#batch #head #query #key"] | None,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    diagonals: Float[Tensor, "#batch #head diagonal"] | None,
    exps: Tensor | None = None,
    *,
    tiles: Tiles = TILES,
) -> tuple[Float[Tensor, "batch head query value_dim"], Float[Tensor, "batch head query"]]:
    """Return the read in the queries' dtype, and its log-sum-exp in float32 (or float64).

    Raises: ValueError where the tensors are not on a GPU (and Triton is not interpreting).
    Source: bahdanau2015, appendix A.1.2; milakov2018 for the softmax in one pass.
    """
    _require_gpu(query)
    inputs = _inputs(query, keys, values, v, first, last, allowed, bias, diagonals)
    (batch, heads, num_queries, num_keys), value_dim = inputs.sizes, values.shape[-1]
    if 0 in inputs.sizes:
        lse = query.new_full((batch, heads, num_queries), float("-inf"), dtype=inputs.sum_dtype)
        return query.new_zeros(batch, heads, num_queries, value_dim), lse
    tiles = tiles.fit(num_queries)
    blocks = triton.cdiv(num_queries, tiles.own) * batch * heads
    splits, shape = tiles.num_splits(blocks, num_keys), (batch, heads, num_queries)
    sums = inputs.empty(splits, batch, heads, value_dim, num_queries)
    norms = inputs.empty(splits, *shape), inputs.empty(splits, *shape)
    out, lse = inputs.empty(*shape, value_dim, dtype=query.dtype), inputs.empty(*shape)
    with torch.cuda.device_of(query):
        prepared = prepare(inputs, tiles)
        launch(
            read_kernel, blocks * splits,
            sums, *norms, *prepared.arguments, splits, **prepared.flags, OWN=tiles.own,
            OTHER=tiles.other,
        )  # fmt: skip
        launch(
            merge_kernel, triton.cdiv(num_queries, 32) * batch * heads,
            out, lse, sums, *norms, splits, batch * heads, num_queries, value_dim, ROWS=32,
            LANES=32, WIDE=prepared.flags["WIDE"],
        )  # fmt: skip
    return out, lse


def backward(
    grad_out: Float[Tensor, "batch head query value_dim"], *arguments: Any, tiles: Tiles = TILES
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, keys, values, v, bias and diagonals, or None for each.

    arguments: those of `forward`, its two results, and whether each gradient is needed.
    Those of broadcast biases and of diagonals are summed by atomic additions, in an order that may
    differ between calls; all others are deterministic.

    Raises: ValueError where the tensors are not on a GPU (and Triton is not interpreting).
    """
    *read, _exps, out, lse, needs = arguments
    inputs = _inputs(*read)
    query, keys, values = inputs.query, inputs.keys, inputs.values
    _require_gpu(query)
    if 0 in inputs.sizes:
        differentiable = query, keys, values, inputs.v, inputs.bias, inputs.diagonals
        pairs = zip(differentiable, needs, strict=True)
        return tuple(torch.zeros_like(x) if x is not None and need else None for x, need in pairs)
    saved = out.contiguous(), grad_out.resolve_neg().contiguous()
    with torch.cuda.device_of(query):
        return _gradients(lse.contiguous(), inputs, prepare(inputs, tiles, *saved), tiles, needs)


def _gradients(
    lse: Tensor, inputs: AdditiveInputs, prepared: LaunchArguments, tiles: Tiles,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return all gradients: by programs that own queries, and by programs that own keys."""
    (batch, heads, num_queries, num_keys), value_dim = inputs.sizes, inputs.values.shape[-1]
    key_heads, dim = inputs.keys.shape[1:4:2]
    units, wide = prepared.units, prepared.flags["WIDE"]
    query_side, keys_side = tiles.fit(num_queries), tiles.fit(num_keys)
    blocks = triton.cdiv(num_queries, query_side.own) * batch * heads
    splits = query_side.num_splits(blocks, num_keys)
    keys_blocks = triton.cdiv(num_keys, keys_side.own) * batch * key_heads
    keys_splits = keys_side.num_splits(keys_blocks, num_queries)
    sums = (
        _sums(inputs, needs[0], splits, batch, heads, units, num_queries),
        _sums(inputs, needs[1], keys_splits, batch, key_heads, units, num_keys),
        _sums(inputs, needs[2], keys_splits, batch, key_heads, value_dim, num_keys),
        _sums(inputs, needs[3], splits, batch, heads, units, num_queries),
    )
    grad_bias, grad_diagonals = _bias_sums(inputs, needs)
    if needs[0] or needs[3] or grad_bias is not None or grad_diagonals is not None:
        launch(
            query_kernel, blocks * splits,
            sums[0], sums[3], grad_bias, grad_diagonals, strides_of(grad_bias, inputs.sizes),
            *prepared.saved, lse, *prepared.arguments, splits, **prepared.flags,
            ATOMIC=grad_bias is not None and grad_bias.shape != inputs.sizes, OWN=query_side.own,
            OTHER=query_side.other,
        )  # fmt: skip
    if needs[1] or needs[2]:
        launch(
            keys_kernel, keys_blocks * keys_splits,
            *sums[1:3], *prepared.saved, lse, *prepared.arguments, keys_splits,
            **prepared.flags, OWN=keys_side.own, OTHER=keys_side.other,
        )  # fmt: skip
    gradients = [
        torch.empty_like(x, memory_format=torch.contiguous_format) if need else None
        for x, need in zip(inputs[:4], needs[:4], strict=True)
    ]
    rows, slices = 32, (batch * heads, batch * key_heads)
    blocks = sum(
        triton.cdiv(length, rows) * side
        for length, side in zip((num_queries, num_keys), slices, strict=True)
    )
    launch(
        finish_kernel, blocks + (inputs.v.numel() if needs[3] else 0),
        *gradients, *sums, splits, keys_splits, *slices, inputs.v.shape[0], num_queries, num_keys,
        units, dim, value_dim, ROWS=rows, LANES=32, WIDE=wide,
    )  # fmt: skip
    return *gradients, _like(grad_bias, inputs.bias), _like(grad_diagonals, inputs.diagonals)


def _inputs(*tensors: Tensor | None) -> AdditiveInputs:
    """Return the inputs without negative bits, which the kernels do not know."""
    return AdditiveInputs(*(None if x is None else x.resolve_neg() for x in tensors))  # pyrefly: ignore[bad-argument-type]


def _sums(inputs: AdditiveInputs, is_needed: bool, *shape: int) -> Tensor | None:
    return inputs.empty(*shape) if is_needed else None


def _bias_sums(inputs: AdditiveInputs, needs: tuple[bool, ...]) -> list[Tensor | None]:
    """Return zeros for the gradients of bias and diagonals that are needed."""
    pairs = zip(inputs[-2:], needs[-2:], strict=True)
    return [
        None if x is None or not need else x.new_zeros(x.shape, dtype=inputs.sum_dtype)
        for x, need in pairs
    ]


def _like(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    """Return the gradient contiguous and in its tensor's dtype, as the fake operator declares."""
    if gradient is None or tensor is None:
        return gradient
    return gradient.to(tensor.dtype).contiguous()


def _require_gpu(query: Tensor) -> None:
    if not (query.is_cuda or is_interpreted()):
        raise ValueError(f"query must be on a GPU for this kernel, got {query.device}")
