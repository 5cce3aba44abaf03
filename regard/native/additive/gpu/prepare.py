"""Arguments of the GPU kernels of additive attention: exponentials, transposes, tile sizes.

    A = exp(2 a)     B = exp(2 b)     top = max over 128 rows and a chunk of units

so that A B = exp(2 (a + b)): one kernel writes A, B, their tops and, for the backward, what it
reads of values and gradients. See regard.native.additive.gpu.tiles.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.native.additive.gpu.tiles import CHUNK, LENGTH_MULTIPLE, clear

MAX_SPLITS = 16

MAX_EXP_INPUT = tl.constexpr(40.0)
"""Largest |a| or |b| whose exponential is exact and finite in float32."""

MAX_SHARED_WEIGHT = tl.constexpr(1e9)
"""Largest |v| of units that share a division: v times three divisors must be finite too."""


class Tiles(NamedTuple):
    """Tile sizes of one program, powers of two."""

    own: int
    """Queries (or keys) that a program owns: columns of a tile, along the lanes of its warps."""
    other: int
    """Keys (or queries) processed at a time: rows of a tile."""
    warps: int
    programs: int
    """Target number of programs: with fewer, the other side is split over several."""
    registers: int | None = None
    """Maximum of registers per thread on NVIDIA, which has 65,536 per multiprocessor."""

    def fit(self, own_len: int) -> "Tiles":
        """Return tiles no larger than the problem."""
        return self._replace(own=min(self.own, triton.next_power_of_2(own_len)))

    def num_splits(self, programs: int, other_len: int) -> int:
        """Return the number of programs that share the other side, each with whole tiles."""
        most = min(triton.cdiv(other_len, self.other), MAX_SPLITS)
        return max(1, min(self.programs // programs, most))


class AdditiveInputs(NamedTuple):
    """Tensors of one additive read; for the shapes see regard.native.additive.gpu.call."""

    query: Tensor
    keys: Tensor
    values: Tensor
    v: Tensor
    first: Tensor | None
    last: Tensor | None
    allowed: Tensor | None
    bias: Tensor | None
    diagonals: Tensor | None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, head, query, key), the shape of the weights."""
        batch, heads, num_queries, _ = self.query.shape
        return batch, heads, num_queries, self.keys.shape[2]

    @property
    def sum_dtype(self) -> torch.dtype:
        """Dtype of sums."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return uninitialized memory for sums."""
        return torch.empty(shape, dtype=dtype or self.sum_dtype, device=self.query.device)


class LaunchArguments(NamedTuple):
    """Arguments shared by all kernels."""

    arguments: tuple[Any, ...]
    """From `query` to `value_dim`, in the kernels' order."""
    flags: dict[str, Any]
    """Constants and options of the launch, without the tile sizes."""
    units: int
    """dim, padded to whole chunks."""
    saved: tuple[Tensor | None, ...]
    """grad_out (batch, head, value_dim, query_padded) and delta (batch, head, query)."""


def is_interpreted() -> bool:
    """Return True if Triton was imported with TRITON_INTERPRET=1: its interpreter, any device."""
    return not isinstance(clear, triton.JITFunction)


def strides_of(tensor: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the tensor expanded to a shape: 0 along broadcast axes."""
    return (0,) * len(shape) if tensor is None else tensor.expand(shape).stride()


def padded_length(length: int) -> int:
    """Round a length up to whole tiles, so that kernels load exponentials without masks."""
    return triton.cdiv(length, LENGTH_MULTIPLE.value) * LENGTH_MULTIPLE.value


@triton.jit
@no_type_check
def transpose_rows(
    source, target, tops, v, weights, totals, program, heads, length, padded, dim, padded_dim,
    v_stride, ROWS: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write `ROWS` rows of source (slice, length, dim) to target (slice, padded_dim, padded).

    With `tops`, write their exponentials, and the largest number of each chunk of units, or
    infinity if one is too large for a shared division. With `v`, also check the weights of the
    head, and write them and their sum.
    """
    blocks = padded // ROWS
    slice_at = (program // blocks).to(tl.int64)
    rows = program % blocks * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((LANES,), WIDE)
    is_first = (program % blocks == 0) & (slice_at < heads)  # one program of each head
    for low in range(0, padded_dim, LANES):
        lanes = low + tl.arange(0, LANES)
        inside = (rows < length)[:, None] & (lanes < dim)[None, :]
        at = (slice_at * length + rows)[:, None] * dim + lanes[None, :]
        x = tl.load(source + at, mask=inside, other=0.0).to(WIDE)
        if tops is not None:
            is_normal = tl.abs(x) <= MAX_EXP_INPUT  # not so for NaN
            if v is not None:
                weight = tl.load(v + slice_at % heads * v_stride + lanes, mask=lanes < dim, other=0)
                weight = weight.to(WIDE)
                total += weight
                is_normal = is_normal & (tl.abs(weight) <= MAX_SHARED_WEIGHT)[None, :]
                if is_first:
                    head_weights = weights + slice_at * padded_dim + lanes
                    tl.store(head_weights, -2.0 * weight, mask=lanes < padded_dim)
            top = tl.where(inside, tl.where(is_normal, x, float("inf")), float("-inf"))
            top = tl.max(tl.reshape(tl.max(top, 0), (LANES // CHUNK, CHUNK)), 1)
            chunks = low // CHUNK + tl.arange(0, LANES // CHUNK)
            chunk = program.to(tl.int64) * (padded_dim // CHUNK) + chunks
            tl.store(tops + chunk, top, mask=chunks < padded_dim // CHUNK)
            x = tl.where(inside, tl.exp(2.0 * tl.where(is_normal, x, 0.0)), 0.0)
        at = (slice_at * padded_dim + lanes)[None, :] * padded + rows[:, None]
        tl.store(target + at, x, mask=(lanes < padded_dim)[None, :])
    if v is not None:  # noqa: SIM102  # a constant: Triton compiles one side
        if is_first:
            tl.store(totals + slice_at, tl.sum(total, 0))  # sum_d v[d] (1 - 2 r) = total + ...


@triton.jit
@no_type_check
def sum_products(
    delta, left, right, program, length, padded, dim,
    ROWS: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the inner products of `ROWS` rows to delta (slice, length)."""
    blocks = padded // ROWS
    rows = program % blocks * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), WIDE)
    first = (program // blocks).to(tl.int64) * length
    for low in range(0, dim, LANES):
        lanes = low + tl.arange(0, LANES)
        inside = (rows < length)[:, None] & (lanes < dim)[None, :]
        at = (first + rows)[:, None] * dim + lanes[None, :]
        x = tl.load(left + at, mask=inside, other=0.0).to(WIDE)
        total += tl.sum(x * tl.load(right + at, mask=inside, other=0.0).to(WIDE), 1)
    tl.store(delta + first + rows, total, mask=rows < length)


@triton.jit
@no_type_check
def prepare_kernel(
    query_exp, keys_exp, query_tops, keys_tops, weights, totals, value_rows, grad_rows, delta,
    query, keys, values, v, out, grad_out, slices, heads, num_queries, num_keys, query_padded,
    keys_padded, units, dim, value_dim, v_stride, ROWS: tl.constexpr, LANES: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Prepare `ROWS` rows of the query, or of the keys; `slices` is batch * heads."""
    program = tl.program_id(0)
    query_programs = slices * (query_padded // ROWS)
    if program < query_programs:
        transpose_rows(
            query, query_exp, query_tops, v, weights, totals, program, heads, num_queries,
            query_padded, dim, units, v_stride, ROWS, LANES, WIDE,
        )  # fmt: skip
        if grad_out is not None:
            transpose_rows(
                grad_out, grad_rows, None, None, None, None, program, heads, num_queries,
                query_padded, value_dim, value_dim, 0, ROWS, LANES, WIDE,
            )  # fmt: skip
            sum_products(
                delta, out, grad_out, program, num_queries, query_padded, value_dim, ROWS, LANES,
                WIDE,
            )  # fmt: skip
    else:
        program -= query_programs
        transpose_rows(
            keys, keys_exp, keys_tops, None, None, None, program, heads, num_keys, keys_padded, dim,
            units, 0, ROWS, LANES, WIDE,
        )  # fmt: skip
        transpose_rows(
            values, value_rows, None, None, None, None, program, heads, num_keys, keys_padded,
            value_dim, value_dim, 0, ROWS, LANES, WIDE,
        )  # fmt: skip


def prepare(
    inputs: AdditiveInputs, tiles: Tiles, out: Tensor | None = None, grad_out: Tensor | None = None
) -> LaunchArguments:
    """Return the arguments shared by all kernels; with grad_out, those of a backward."""
    batch, heads, num_queries, num_keys = inputs.sizes
    _, key_heads, _, dim = inputs.keys.shape
    value_dim = inputs.values.shape[-1]
    query, keys, values, v = (x.contiguous() for x in inputs[:4])
    padded, sides = (padded_length(num_queries), padded_length(num_keys)), (heads, key_heads)
    pairs = [(batch * side, length) for side, length in zip(sides, padded, strict=True)]
    chunks = triton.cdiv(dim, CHUNK.value)
    units, rows = chunks * CHUNK.value, LENGTH_MULTIPLE.value
    blocks = [side * length // rows for side, length in pairs]
    exps = [inputs.empty(side, units, length) for side, length in pairs]
    weights = inputs.empty(heads, units), inputs.empty(heads)
    tops = [inputs.empty(number, chunks) for number in blocks]
    value_rows = inputs.empty(batch * key_heads, value_dim, padded[1])
    saved = None, None
    if grad_out is not None:
        grad_rows = inputs.empty(batch * heads, value_dim, padded[0])
        saved = grad_rows, inputs.empty(batch * heads, num_queries)
    wide = tl.float64 if inputs.sum_dtype == torch.float64 else tl.float32
    launch(
        prepare_kernel, sum(blocks),
        *exps, *tops, *weights, value_rows, *saved, query, keys, values, v, out, grad_out,
        batch * heads, heads, num_queries, num_keys, *padded, units, dim, value_dim,
        dim if v.shape[0] > 1 else 0, ROWS=rows, LANES=32, WIDE=wide,
    )  # fmt: skip
    allowed = None if inputs.allowed is None else inputs.allowed.view(torch.uint8)
    diagonals = None if inputs.diagonals is None else inputs.diagonals.contiguous()
    diagonal_shape = batch, heads, num_queries + num_keys - 1
    strides = (
        *strides_of(allowed, inputs.sizes), *strides_of(inputs.bias, inputs.sizes),
        *strides_of(diagonals, diagonal_shape)[:2], *strides_of(inputs.first, inputs.sizes[:3]),
        *strides_of(inputs.last, inputs.sizes[:3]),
    )  # fmt: skip
    arguments = (
        query, keys, value_rows, *exps, *weights, *tops, inputs.first, inputs.last, allowed,
        inputs.bias, diagonals, strides, heads, key_heads, num_queries, num_keys, *padded, units,
        dim, value_dim,
    )  # fmt: skip
    is_nvidia = torch.version.cuda is not None and not is_interpreted()
    flags: dict[str, Any] = {
        "FAST": is_nvidia and inputs.sum_dtype == torch.float32,
        "WIDE": wide,
        "num_warps": tiles.warps,
        "num_stages": 1,  # prefetching loads would take too many registers
    }
    if is_nvidia:
        flags["maxnreg"] = tiles.registers
    return LaunchArguments(arguments, flags, units, saved)


def launch(kernel: Any, programs: int, *arguments: Any, **flags: Any) -> None:
    """Launch a kernel. (Any: a Triton kernel takes other arguments than the decorated function.)"""
    kernel[(programs,)](*arguments, **flags)
