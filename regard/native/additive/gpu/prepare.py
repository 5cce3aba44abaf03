"""Arguments of the GPU kernels of additive attention: exponentials, ranges, strides, tile sizes.

    A = exp(2 (a - top))     B = exp(2 (b + top))
    top[d] = max_i a[i,d]    fits[d] = top[d] + max_j b[j,d] <= LIMIT

so that A B = exp(2 (a + b)), A <= 1, and B is finite where `fits` is True: see
regard.native.additive.gpu.tiles.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.native.additive.gpu.tiles import CHUNK, LIMIT, product

MAX_STEP_QUERIES = 4
"""Up to this number of queries (step-by-step decoding), tanh is computed pair by pair."""

MAX_SPLITS = 16

MIN_SIDE = 16
"""Smallest side of a product on tensor cores."""

MIN_TILES_PER_SPLIT = 2
"""Smallest number of tiles of a split: merging splits costs several small kernels."""

LENGTH_MULTIPLE = 64
"""Rows of exponentials are padded to a multiple of this; each side of a tile must divide it."""

MAX_SHARED_WEIGHT = 1e9
"""Largest |v| of units that share a division: v times three divisors must be finite too."""


class Tiles(NamedTuple):
    """Tile sizes of one program, powers of two."""

    own: int
    """Queries (or keys) that a program owns: columns of a tile, along the lanes of its warps."""
    other: int
    """Keys (or queries) processed at a time: rows of a tile. The tensor cores need 16 or more."""
    values: int
    """Largest part of a value processed at a time."""
    warps: int
    programs: int
    """Target number of programs: with fewer, the other side is split over several."""
    units: int = 64
    """Number of units computed at a time for few queries."""
    registers: int | None = 128
    """Maximum of registers per thread on NVIDIA: 128 for 16 warps per multiprocessor, 255 for 8."""

    def fit(self, own_len: int, value_dim: int) -> "Tiles":
        """Return tiles no larger than the problem, but no smaller than tensor cores need."""
        own = triton.next_power_of_2(max(own_len, MIN_SIDE))
        values = triton.next_power_of_2(max(value_dim, MIN_SIDE))
        return self._replace(own=min(self.own, own), values=min(self.values, values))


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
    def is_step(self) -> bool:
        """True for so few queries that exponentials of all keys cost more than they save."""
        return self.query.shape[2] <= MAX_STEP_QUERIES

    @property
    def sum_dtype(self) -> torch.dtype:
        """Dtype of sums."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32


class LaunchArguments(NamedTuple):
    """Arguments shared by all kernels."""

    arguments: tuple[Any, ...]
    """From `query` to `value_dim`, in the kernels' order."""
    flags: dict[str, Any]
    """Constants and options of the launch, without the tile sizes."""
    units: int
    """dim, padded to whole chunks."""


def is_interpreted() -> bool:
    """Return True if Triton was imported with TRITON_INTERPRET=1: its interpreter, any device."""
    return not isinstance(product, triton.JITFunction)


def num_splits(programs: int, other_len: int, tiles: Tiles) -> int:
    """Return the number of programs that share the other side: enough, each with a few tiles."""
    most = min(other_len // (tiles.other * MIN_TILES_PER_SPLIT), MAX_SPLITS)
    return max(1, min(tiles.programs // programs, most))


def strides_of(tensor: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the tensor expanded to a shape: 0 along broadcast axes."""
    return (0,) * len(shape) if tensor is None else tensor.expand(shape).stride()


def compute_exponentials(
    query: Float[Tensor, "batch head query dim"],
    keys: Float[Tensor, "batch key_head key dim"],
    weights: Float[Tensor, "head units"],
) -> tuple[
    Float[Tensor, "batch head units query_padded"],
    Float[Tensor, "batch key_head units keys_padded"],
    Int[Tensor, "batch key_head chunks"],
]:
    """Return A and B with lengths last, and for each chunk of units whether all of them fit."""
    heads, key_heads, dim = query.shape[1], keys.shape[1], query.shape[-1]
    sum_dtype, units, group = weights.dtype, weights.shape[-1], heads // key_heads
    query = query.to(sum_dtype).unflatten(1, (key_heads, group))
    keys = keys.to(sum_dtype)
    top = query.amax((2, 3))  # (batch, key_head, dim)
    largest = weights.abs().amax(-1).unflatten(0, (key_heads, group)).amax(-1)
    is_small = largest <= MAX_SHARED_WEIGHT  # (key_head,)
    # (batch, key_head, dim); NaN does not fit.
    fits = (top + keys.amax(2) <= LIMIT) & is_small[:, None]
    fits = pad(fits, (0, units - dim), value=True).unflatten(-1, (units // CHUNK, CHUNK)).all(-1)
    query_exp = (2.0 * (query - top[:, :, None, None])).exp().flatten(1, 2)
    keys_exp = (2.0 * (keys + top[:, :, None])).exp()
    return _pad_units(query_exp, units), _pad_units(keys_exp, units), fits.to(torch.int32)


def _pad_units(exponentials: Tensor, units: int) -> Tensor:
    """Return (..., length, dim) as (..., units, padded length)."""
    length, dim = exponentials.shape[-2:]
    sizes = 0, padded_length(length) - length, 0, units - dim
    return pad(exponentials.transpose(2, 3), sizes).contiguous()


def padded_length(length: int) -> int:
    """Round a length up to whole tiles, so that kernels load exponentials without masks."""
    return triton.cdiv(length, LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def key_ranges(
    inputs: AdditiveInputs,
) -> tuple[Int[Tensor, "batch head query"], Int[Tensor, "batch head query"]]:
    """Return first and last clipped to 0 .. key; (key, 0) if empty, which widens no range."""
    *rows, num_keys = inputs.sizes
    device = inputs.query.device
    first = torch.zeros((), dtype=torch.int64, device=device)
    if inputs.first is not None:
        first = inputs.first.clamp(0, num_keys)
    last = torch.full_like(first, num_keys)
    if inputs.last is not None:
        last = inputs.last.clamp(0, num_keys)
    is_open = first < last
    first, last = torch.where(is_open, first, num_keys), torch.where(is_open, last, 0)
    first, last = (bound.to(torch.int32).expand(rows).contiguous() for bound in (first, last))
    return first, last


def prepare(inputs: AdditiveInputs, tiles: Tiles) -> LaunchArguments:
    """Return the arguments shared by all kernels."""
    batch, heads, num_queries, num_keys = inputs.sizes
    _, key_heads, _, dim = inputs.keys.shape
    value_dim = inputs.values.shape[-1]
    units = triton.cdiv(dim, CHUNK) * CHUNK
    weights = pad(-2.0 * inputs.v.to(inputs.sum_dtype), (0, units - dim))
    weights = weights.expand(heads, units).contiguous()
    totals = weights.sum(-1) * -0.5  # sum_d v[d] (1 - 2 r[d]) = total + sum_d weights[d] r[d]
    exps = None, None, None
    if not inputs.is_step:
        exps = compute_exponentials(inputs.query, inputs.keys, weights)
    allowed = None if inputs.allowed is None else inputs.allowed.view(torch.uint8)
    diagonals = None if inputs.diagonals is None else inputs.diagonals.contiguous()
    diagonal_shape = batch, heads, num_queries + num_keys - 1
    strides = (
        *strides_of(allowed, inputs.sizes), *strides_of(inputs.bias, inputs.sizes),
        *strides_of(diagonals, diagonal_shape)[:2],
    )  # fmt: skip
    arguments = (
        inputs.query.contiguous(), inputs.keys.contiguous(), inputs.values.contiguous(), exps[0],
        exps[1], weights, totals, exps[2], *key_ranges(inputs), allowed, inputs.bias, diagonals,
        strides, heads, key_heads, num_queries, num_keys, padded_length(num_queries),
        padded_length(num_keys), units, dim, value_dim,
    )  # fmt: skip
    is_nvidia = torch.version.cuda is not None and not is_interpreted()
    flags: dict[str, Any] = {
        "FAST": is_nvidia and inputs.sum_dtype == torch.float32,
        "DOT": _dot_dtype(inputs.query.dtype),
        # Three products in tf32 are as accurate as float32; only NVIDIA supports them.
        "PRECISION": "tf32x3" if is_nvidia and inputs.query.dtype == torch.float32 else "ieee",
        "WIDE": tl.float64 if inputs.sum_dtype == torch.float64 else tl.float32,
        "num_warps": tiles.warps,
        "num_stages": 1,  # prefetching loads would take too many registers
    }
    if is_nvidia:
        flags["maxnreg"] = tiles.registers
    return LaunchArguments(arguments, flags, units)


def _dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of tensor-core products; the interpreter has no correct bfloat16."""
    if dtype == torch.float64:
        return tl.float64
    if is_interpreted():
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
