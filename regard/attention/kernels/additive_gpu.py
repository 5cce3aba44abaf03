"""Additive attention on a GPU: out = softmax_j(v . tanh(query_i + keys_j) + bias) values, forward and backward.

Two plain functions over tensors, without autograd, for an operator to build on. Shapes:

    query (batch, head, query, dim)    keys (batch, key_head, key, dim)    values (batch, key_head, key, value_dim)
    v (1 | head, dim)                  out (batch, head, query, value_dim)    lse (batch, head, query)

Query head h reads key head h // (head / key_head). `first` and `last` (three axes, each 1 or whole): query i sees only
keys first[i] <= j < last[i]. `allowed` (bool) and `bias` (-inf: closed) have four axes, each 1 or whole; `diagonals`
(1 | batch, 1 | head, query + key - 1) is a bias that depends on j - i alone: diagonals[..., j - i + query - 1]. A query
that may see no key has out = 0, lse = -inf and gradients 0.

Memory beside inputs and results is O((query + key) (dim + value_dim)): scores live in registers, a tile at a time.
Tiles without an open pair cost no units. The formulas and the bound of the error: `additive_gpu_tiles`.

Not yet run on a GPU. Triton's interpreter ran every path but the inline PTX and the rounding of the tensor cores, and
Triton compiled the kernels for sm_80 and sm_90. Tile sizes come from the registers that this took and from counting
instructions, not from timings: `benchmarks/additive_gpu.py` is the place to tune them.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

try:
    import triton
except ImportError as error:
    raise ImportError("additive attention on a GPU needs triton, which is missing here: pip install triton") from error

from regard.attention.kernels.additive_gpu_backward import keys_kernel, query_kernel
from regard.attention.kernels.additive_gpu_forward import read_kernel
from regard.attention.kernels.additive_gpu_prepare import (
    Read,
    Setting,
    Tiles,
    is_interpreted,
    num_splits,
    prepare,
    strides_of,
)
from regard.attention.kernels.additive_gpu_step import step_kernel

FORWARD = Tiles(own=64, other=16, values=64, warps=2, programs=2048)
"""A thread has one query and 16 keys (own = 32 warps): 292 to 330 instructions for 64 triples on sm_90, nearly all of
them arithmetic, and what is spilled to keep to 128 registers is spilled outside of that loop."""

BACKWARD = Tiles(own=64, other=16, values=32, warps=2, programs=2048)
"""As forward, so that sums over the other side need no exchange between threads; smaller parts of values, as scores
and their gradients are both held."""

STEP = Tiles(own=1, other=32, values=64, warps=2, programs=512)
"""Few queries: 32 keys and 64 units at a time are 32 numbers a thread."""


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
    """The read in the queries' dtype, and its log-sum-exp in float32 (float64 of float64 inputs).

    `tiles`: None for `FORWARD`, or `STEP` for few queries.

    Raises: ValueError where the tensors are not on a GPU (and Triton is not interpreting).
    Source: bahdanau2015, appendix A.1.2; milakov2018 for the softmax in one pass.
    """
    _require_gpu(query)
    read = Read(query, keys, values, v, first, last, allowed, bias, diagonals)
    (batch, heads, num_queries, num_keys), value_dim = read.sizes, values.shape[-1]
    if 0 in read.sizes:
        lse = query.new_full((batch, heads, num_queries), float("-inf"), dtype=read.wide)
        return query.new_zeros(batch, heads, num_queries, value_dim), lse
    tiles = (tiles or (STEP if read.is_step else FORWARD)).fitted(1 if read.is_step else num_queries, value_dim)
    setting = prepare(read, tiles)
    blocks = triton.cdiv(num_queries, tiles.own) * batch * heads
    splits = num_splits(blocks, num_keys, tiles)
    is_chunked = value_dim > tiles.values
    make = torch.zeros if is_chunked else torch.empty
    held = read.wide if is_chunked or splits > 1 else query.dtype
    out = make(splits, batch, heads, num_queries, value_dim, dtype=held, device=query.device)
    lse = torch.empty(splits, batch, heads, num_queries, dtype=read.wide, device=query.device)
    with torch.cuda.device_of(query):
        _launch(
            read_kernel, blocks * splits,
            out, lse, *setting.arguments, splits, **setting.flags, CHUNKED=is_chunked,
            OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values, UNITS=tiles.units,
        )  # fmt: skip
    return (out[0].to(query.dtype), lse[0]) if splits == 1 else _joined(out, lse, query.dtype)


def backward(
    grad_out: Float[Tensor, "batch head query value_dim"],
    query: Float[Tensor, "batch head query dim"],
    keys: Float[Tensor, "batch key_head key dim"],
    values: Float[Tensor, "batch key_head key value_dim"],
    v: Float[Tensor, "#head dim"],
    first: Int[Tensor, "#batch #head #query"] | None,
    last: Int[Tensor, "#batch #head #query"] | None,
    allowed: Bool[Tensor, "#batch #head #query #key"] | None,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    diagonals: Float[Tensor, "#batch #head diagonal"] | None,
    exps: Tensor | None,
    out: Float[Tensor, "batch head query value_dim"],
    lse: Float[Tensor, "batch head query"],
    needs: tuple[bool, bool, bool, bool, bool, bool],
    *,
    tiles: Tiles | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of query, keys, values, v, bias and diagonals, each None where `needs` says no or there is no input.

    Those of broadcast biases and of diagonals are summed by atomic additions, in an order that may differ from call
    to call; all others repeat bit for bit. `tiles`: None for `BACKWARD`, or `STEP` for few queries.

    Raises: ValueError where the tensors are not on a GPU (and Triton is not interpreting).
    """
    _require_gpu(query)
    read = Read(query, keys, values, v, first, last, allowed, bias, diagonals)
    inputs = query, keys, values, v, bias, diagonals
    if 0 in read.sizes:
        pairs = zip(inputs, needs, strict=True)
        return tuple(torch.zeros_like(one) if one is not None and need else None for one, need in pairs)
    tiles = tiles or (STEP if read.is_step else BACKWARD)
    setting = prepare(read, tiles.fitted(min(query.shape[2], keys.shape[2]), values.shape[-1]))
    delta = (out.to(read.wide) * grad_out.to(read.wide)).sum(-1)
    given = grad_out.contiguous(), delta, lse.contiguous()
    with torch.cuda.device_of(query):
        if read.is_step:
            return _step_gradients(given, read, setting, tiles, needs)
        grad_query, grad_v, grad_bias, grad_diagonals = _query_gradients(
            given, read, setting, tiles, (needs[0], needs[3], needs[4], needs[5])
        )
        grad_keys, grad_values = _keys_gradients(given, read, setting, tiles, needs[1:3])
    return grad_query, grad_keys, grad_values, grad_v, grad_bias, grad_diagonals


def _query_gradients(
    given: tuple[Tensor, Tensor, Tensor], read: Read, setting: Setting, tiles: Tiles, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of query, v, bias and diagonals: what the programs that own queries give."""
    needs = (*needs[:2], needs[2] and read.bias is not None, needs[3] and read.diagonals is not None)
    if not any(needs):
        return (None,) * 4
    (batch, heads, num_queries, num_keys), dim = read.sizes, read.query.shape[-1]
    tiles = tiles.fitted(num_queries, read.values.shape[-1])
    blocks = triton.cdiv(num_queries, tiles.own) * batch * heads
    splits = num_splits(blocks, num_keys, tiles)
    unit_sums = splits, batch, heads, setting.units, num_queries
    shapes = unit_sums, unit_sums, _shape(read.bias), _shape(read.diagonals)
    grad_query, grad_v, grad_bias, grad_diagonals = sums = [
        torch.zeros(shape, dtype=read.wide, device=read.query.device) if need else None
        for shape, need in zip(shapes, needs, strict=True)
    ]
    _launch(
        query_kernel, blocks * splits,
        *sums, strides_of(grad_bias, read.sizes), *given, *setting.arguments, splits, **setting.flags,
        ATOMIC=_shape(read.bias) != read.sizes,
        OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values,
    )  # fmt: skip
    if grad_query is not None:
        grad_query = -2.0 * grad_query.sum(0)[:, :, :dim].transpose(2, 3)  # the kernel's weights are -2 v, for 4 v
    grad_v = None if grad_v is None else grad_v.sum((0, 1, 4))[:, :dim]
    return (
        _as(grad_query, read.query),
        _of_v(grad_v, read.v),
        _as(grad_bias, read.bias),
        _as(grad_diagonals, read.diagonals),
    )


def _keys_gradients(
    given: tuple[Tensor, Tensor, Tensor], read: Read, setting: Setting, tiles: Tiles, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of keys and values: what the programs that own keys give."""
    if not any(needs):
        return None, None
    (batch, key_heads, num_keys, dim), num_queries = read.keys.shape, read.sizes[2]
    tiles = tiles.fitted(num_keys, read.values.shape[-1])
    blocks = triton.cdiv(num_keys, tiles.own) * batch * key_heads
    splits = num_splits(blocks, num_queries, tiles)
    shapes = (setting.units, num_keys), (num_keys, read.values.shape[-1])
    grad_keys, grad_values = sums = [
        torch.zeros(splits, batch, key_heads, *shape, dtype=read.wide, device=read.keys.device) if need else None
        for shape, need in zip(shapes, needs, strict=True)
    ]
    _launch(
        keys_kernel, blocks * splits,
        *sums, *given, *setting.arguments, splits, **setting.flags,
        OWN=tiles.own, OTHER=tiles.other, VALUES=tiles.values,
    )  # fmt: skip
    if grad_keys is not None:
        grad_keys = -2.0 * grad_keys.sum(0)[:, :, :dim].transpose(2, 3)
    return _as(grad_keys, read.keys), _as(None if grad_values is None else grad_values.sum(0), read.values)


def _step_gradients(
    given: tuple[Tensor, Tensor, Tensor], read: Read, setting: Setting, tiles: Tiles, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """All of them, where queries are few: what programs that own keys give."""
    (batch, heads, num_queries, num_keys), key_heads, dim = read.sizes, read.keys.shape[1], read.query.shape[-1]
    tiles = tiles._replace(own=tiles.other).fitted(num_keys, read.values.shape[-1])
    blocks = triton.cdiv(num_keys, tiles.own)
    row = blocks, batch, heads, num_queries, dim
    shapes = row, row, _shape(read.keys), _shape(read.values), _shape(read.bias), _shape(read.diagonals)
    wanted = needs[0], needs[3], needs[1], needs[2], *(needs[i] and read[i + 3] is not None for i in (4, 5))
    sums = [
        torch.zeros(shape, dtype=read.wide, device=read.query.device) if need else None
        for shape, need in zip(shapes, wanted, strict=True)
    ]
    _launch(
        step_kernel, blocks * batch * key_heads,
        *sums, strides_of(sums[4], read.sizes), *given, *setting.arguments, **setting.flags,
        ATOMIC=_shape(read.bias) != read.sizes, OWN=tiles.own, VALUES=tiles.values, UNITS=tiles.units,
    )  # fmt: skip
    grad_query, grad_v, grad_keys, grad_values, grad_bias, grad_diagonals = sums
    return (
        _as(None if grad_query is None else -2.0 * grad_query.sum(0), read.query),
        _as(None if grad_keys is None else -2.0 * grad_keys, read.keys),
        _as(grad_values, read.values),
        _of_v(None if grad_v is None else grad_v.sum((0, 1, 3)), read.v),
        _as(grad_bias, read.bias),
        _as(grad_diagonals, read.diagonals),
    )


def _of_v(sums: Tensor | None, v: Tensor) -> Tensor | None:
    """The gradient of v from sum_ij ds r, (head, dim); one v for all heads has the sum of theirs."""
    if sums is None:
        return None
    return (-2.0 * (sums if v.shape[0] == sums.shape[0] else sums.sum(0, keepdim=True))).to(v.dtype)


def _launch(kernel: Any, programs: int, *arguments: Any, **flags: Any) -> None:
    """Any: what Triton makes of a function takes other arguments than the function did."""
    kernel[(programs,)](*arguments, **flags)


def _joined(out: Tensor, lse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One read of the reads of several splits: their shares of the whole are e^(lse of the split - lse of all)."""
    whole = lse.logsumexp(0)
    shares = (lse - whole.masked_fill(whole == float("-inf"), 0.0)).exp()
    return (out * shares[..., None]).sum(0).to(dtype), whole


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)


def _as(gradient: Tensor | None, of: Tensor | None) -> Tensor | None:
    """In the dtype of what it is the gradient of, and contiguous, as the operator's description of itself says."""
    return gradient if gradient is None or of is None else gradient.to(of.dtype).contiguous()


def _require_gpu(query: Tensor) -> None:
    if not (query.is_cuda or is_interpreted()):
        raise ValueError(
            f"query must be on a GPU for this kernel, but is on {query.device}; the interpreter of Triton runs it "
            "anywhere, slowly, where TRITON_INTERPRET=1 is set before triton is first imported"
        )
