"""Additive attention on a GPU: the kernels of `regard.ops.additive`, forward and backward.

Memory beside inputs and results is O((query + key) (dim + value_dim)): scores are held in
registers, a tile at a time. Fully masked tiles are skipped. For the formulas and the error bound
see regard.native.additive.gpu.tiles.

Not yet run on a GPU. Triton's interpreter ran every path except the inline PTX and the rounding of
the tensor cores, and Triton compiled the kernels for sm_80 and sm_90. Tile sizes follow from
register use and instruction counts, not from timings.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

try:
    import triton
except ImportError as error:
    raise ImportError("additive attention on a GPU needs triton: pip install triton") from error

from regard.native.additive.gpu.backward import keys_kernel, query_kernel
from regard.native.additive.gpu.forward import read_kernel
from regard.native.additive.gpu.prepare import (
    AdditiveInputs,
    LaunchArguments,
    Tiles,
    is_interpreted,
    num_splits,
    prepare,
    strides_of,
)
from regard.native.additive.gpu.step import step_kernel

FORWARD = Tiles(own=64, other=16, values=64, warps=2, programs=2048)
"""A thread has one query and 16 keys (own = 32 warps): 292 to 330 instructions for 64 triples on
sm_90, nearly all of them arithmetic; registers beyond 128 are spilled outside of that loop."""

BACKWARD = Tiles(own=64, other=16, values=32, warps=2, programs=2048)
"""Like FORWARD, so that sums over the other side need no exchange between threads; smaller parts of
values, as scores and their gradients are both in registers."""

STEP = Tiles(own=1, other=32, values=64, warps=2, programs=512)
"""For few queries: 32 keys and 64 units at a time are 32 numbers per thread."""


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
    tiles: Tiles | None = None,
) -> tuple[Float[Tensor, "batch head query value_dim"], Float[Tensor, "batch head query"]]:
    """Return the read in the queries' dtype, and its log-sum-exp in float32 (or float64).

    `tiles`: None for `FORWARD`, or `STEP` for few queries.

    Raises: ValueError where the tensors are not on a GPU (and Triton is not interpreting).
    Source: bahdanau2015, appendix A.1.2; milakov2018 for the softmax in one pass.
    """
    _require_gpu(query)
    inputs = _inputs(query, keys, values, v, first, last, allowed, bias, diagonals)
    (batch, heads, num_queries, num_keys), value_dim = inputs.sizes, values.shape[-1]
    if 0 in inputs.sizes:
        lse = query.new_full((batch, heads, num_queries), float("-inf"), dtype=inputs.sum_dtype)
        return query.new_zeros(batch, heads, num_queries, value_dim), lse
    tiles = tiles or (STEP if inputs.is_step else FORWARD)
    tiles = tiles.fit(num_queries, value_dim)
    launch = prepare(inputs, tiles)
    blocks = triton.cdiv(num_queries, tiles.own) * batch * heads
    splits = num_splits(blocks, num_keys, tiles)
    is_chunked = value_dim > tiles.values
    make = torch.zeros if is_chunked else torch.empty
    out_dtype = inputs.sum_dtype if is_chunked or splits > 1 else query.dtype
    shape, device = (splits, batch, heads, num_queries), query.device
    out = make(*shape, value_dim, dtype=out_dtype, device=device)
    lse = torch.empty(shape, dtype=inputs.sum_dtype, device=device)
    with torch.cuda.device_of(query):
        _launch(
            read_kernel, blocks * splits,
            out, lse, *launch.arguments, splits, **launch.flags, CHUNKED=is_chunked,
            OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values, UNITS=tiles.units,
        )  # fmt: skip
    return (out[0].to(query.dtype), lse[0]) if splits == 1 else _merge_splits(out, lse, query.dtype)


def backward(
    grad_out: Float[Tensor, "batch head query value_dim"],
    *arguments: Any,
    tiles: Tiles | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, keys, values, v, bias and diagonals, or None for each.

    arguments: those of `forward`, its two results, and whether each gradient is needed.
    Those of broadcast biases and of diagonals are summed by atomic additions, in an order that may
    differ between calls; all others are deterministic. `tiles`: None for `BACKWARD`, or `STEP` for
    few queries.

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
    tiles = tiles or (STEP if inputs.is_step else BACKWARD)
    launch = prepare(inputs, tiles.fit(min(query.shape[2], keys.shape[2]), values.shape[-1]))
    delta = (out.to(inputs.sum_dtype) * grad_out.to(inputs.sum_dtype)).sum(-1)
    saved = grad_out.resolve_neg().contiguous(), delta, lse.contiguous()
    with torch.cuda.device_of(query):
        if inputs.is_step:
            return _step_gradients(saved, inputs, launch, tiles, needs)
        grad_query, grad_v, grad_bias, grad_diagonals = _query_gradients(
            saved, inputs, launch, tiles, (needs[0], needs[3], needs[4], needs[5])
        )
        grad_keys, grad_values = _keys_gradients(saved, inputs, launch, tiles, needs[1:3])
    return grad_query, grad_keys, grad_values, grad_v, grad_bias, grad_diagonals


def _query_gradients(
    saved: tuple[Tensor, ...], inputs: AdditiveInputs, launch: LaunchArguments, tiles: Tiles,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of query, v, bias and diagonals, by programs that own queries."""
    has_bias, has_diagonals = inputs.bias is not None, inputs.diagonals is not None
    needs = *needs[:2], needs[2] and has_bias, needs[3] and has_diagonals
    if not any(needs):
        return (None,) * 4
    (batch, heads, num_queries, num_keys), dim = inputs.sizes, inputs.query.shape[-1]
    tiles = tiles.fit(num_queries, inputs.values.shape[-1])
    blocks = triton.cdiv(num_queries, tiles.own) * batch * heads
    splits = num_splits(blocks, num_keys, tiles)
    unit_sums = splits, batch, heads, launch.units, num_queries
    shapes = unit_sums, unit_sums, _shape(inputs.bias), _shape(inputs.diagonals)
    grad_query, grad_v, grad_bias, grad_diagonals = sums = _zeros(inputs, shapes, needs)
    _launch(
        query_kernel, blocks * splits,
        *sums, strides_of(grad_bias, inputs.sizes), *saved, *launch.arguments, splits,
        **launch.flags, ATOMIC=_shape(inputs.bias) != inputs.sizes,
        OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values,
    )  # fmt: skip
    if grad_query is not None:  # the kernel's weights are -2 v, for 4 v
        grad_query = -2.0 * grad_query.sum(0)[:, :, :dim].transpose(2, 3)
    grad_v = None if grad_v is None else grad_v.sum((0, 1, 4))[:, :dim]
    return (
        _like(grad_query, inputs.query),
        _v_gradient(grad_v, inputs.v),
        _like(grad_bias, inputs.bias),
        _like(grad_diagonals, inputs.diagonals),
    )


def _keys_gradients(
    saved: tuple[Tensor, ...], inputs: AdditiveInputs, launch: LaunchArguments, tiles: Tiles,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of keys and values, by programs that own keys."""
    if not any(needs):
        return None, None
    (batch, key_heads, num_keys, dim), num_queries = inputs.keys.shape, inputs.sizes[2]
    tiles = tiles.fit(num_keys, inputs.values.shape[-1])
    blocks = triton.cdiv(num_keys, tiles.own) * batch * key_heads
    splits = num_splits(blocks, num_queries, tiles)
    sides = splits, batch, key_heads
    shapes = (*sides, launch.units, num_keys), (*sides, num_keys, inputs.values.shape[-1])
    grad_keys, grad_values = sums = _zeros(inputs, shapes, needs)
    _launch(
        keys_kernel, blocks * splits,
        *sums, *saved, *launch.arguments, splits, **launch.flags,
        OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values,
    )  # fmt: skip
    if grad_keys is not None:
        grad_keys = -2.0 * grad_keys.sum(0)[:, :, :dim].transpose(2, 3)
    grad_values = None if grad_values is None else grad_values.sum(0)
    return _like(grad_keys, inputs.keys), _like(grad_values, inputs.values)


def _step_gradients(
    saved: tuple[Tensor, ...], inputs: AdditiveInputs, launch: LaunchArguments, tiles: Tiles,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return all gradients for few queries, by programs that own keys."""
    batch, heads, num_queries, num_keys = inputs.sizes
    key_heads, dim = inputs.keys.shape[1], inputs.query.shape[-1]
    tiles = tiles._replace(own=tiles.other).fit(num_keys, inputs.values.shape[-1])
    blocks = triton.cdiv(num_keys, tiles.own)
    row = blocks, batch, heads, num_queries, dim
    given = inputs.keys, inputs.values, inputs.bias, inputs.diagonals
    shapes = row, row, *map(_shape, given)
    has_bias = needs[4] and inputs.bias is not None
    has_diagonals = needs[5] and inputs.diagonals is not None
    is_needed = needs[0], needs[3], needs[1], needs[2], has_bias, has_diagonals
    sums = _zeros(inputs, shapes, is_needed)
    _launch(
        step_kernel, blocks * batch * key_heads,
        *sums, strides_of(sums[4], inputs.sizes), *saved, *launch.arguments, **launch.flags,
        ATOMIC=_shape(inputs.bias) != inputs.sizes, OWN=tiles.own, VALUES=tiles.values,
        UNITS=tiles.units,
    )  # fmt: skip
    grad_query, grad_v, grad_keys, grad_values, grad_bias, grad_diagonals = sums
    return (
        _like(None if grad_query is None else -2.0 * grad_query.sum(0), inputs.query),
        _like(None if grad_keys is None else -2.0 * grad_keys, inputs.keys),
        _like(grad_values, inputs.values),
        _v_gradient(None if grad_v is None else grad_v.sum((0, 1, 3)), inputs.v),
        _like(grad_bias, inputs.bias),
        _like(grad_diagonals, inputs.diagonals),
    )


def _inputs(*tensors: Tensor | None) -> AdditiveInputs:
    """Return the inputs without negative bits, which the kernels do not know."""
    return AdditiveInputs(*(None if x is None else x.resolve_neg() for x in tensors))  # pyrefly: ignore[bad-argument-type]


def _zeros(
    inputs: AdditiveInputs, shapes: Sequence[tuple[int, ...]], needs: Sequence[bool]
) -> list[Tensor | None]:
    """Return zeros for the sums that are needed."""
    dtype, device = inputs.sum_dtype, inputs.query.device
    pairs = zip(shapes, needs, strict=True)
    return [
        torch.zeros(shape, dtype=dtype, device=device) if need else None for shape, need in pairs
    ]


def _v_gradient(sums: Tensor | None, v: Tensor) -> Tensor | None:
    """Return the gradient of v, sum_ij ds r, (head, dim); summed over heads that share one v."""
    if sums is None:
        return None
    return (-2.0 * (sums if v.shape[0] == sums.shape[0] else sums.sum(0, keepdim=True))).to(v.dtype)


def _launch(kernel: Any, programs: int, *arguments: Any, **flags: Any) -> None:
    """Launch a kernel. (Any: a Triton kernel takes other arguments than the decorated function.)"""
    kernel[(programs,)](*arguments, **flags)


def _merge_splits(out: Tensor, lse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Combine the outputs of several splits with weights e^(lse of the split - lse of all)."""
    total_lse = lse.logsumexp(0)
    weights = (lse - total_lse.masked_fill(total_lse == float("-inf"), 0.0)).exp()
    return (out * weights[..., None]).sum(0).to(dtype), total_lse


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)


def _like(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    """Return the gradient contiguous and in its tensor's dtype, as the fake operator declares."""
    if gradient is None or tensor is None:
        return gradient
    return gradient.to(tensor.dtype).contiguous()


def _require_gpu(query: Tensor) -> None:
    if not (query.is_cuda or is_interpreted()):
        raise ValueError(f"query must be on a GPU for this kernel, got {query.device}")
