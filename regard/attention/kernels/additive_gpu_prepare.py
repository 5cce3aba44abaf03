"""What the GPU kernels of additive attention are handed: exponentials, ranges, strides, and how the work is cut.

    A = exp(2 (a - top))    B = exp(2 (b + top))    top[d] = max_i a[i,d]     fits[d] = top[d] + max_j b[j,d] <= LIMIT

so that A B = exp(2 (a + b)), A <= 1, and B is finite where `fits` lets it be used: see `additive_gpu_tiles`.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.kernels.additive_gpu_tiles import CHUNK, LIMIT, product

FEW_QUERIES = 4
"""Up to here, as in a decoder that goes step by step, tanh is computed pair by pair, and each query by itself."""

MAX_SPLITS = 16

LEAST_TILES = 2
"""Tiles a split has at least: joining splits costs several small kernels."""

ROOM = 64
"""Rows of exponentials are padded to a multiple of this; no side of a tile may be larger (or no divisor of it)."""

LARGEST_WEIGHT = 1e9
"""Units with a larger v share no division: v times three divisors must be finite too."""


class Tiles(NamedTuple):
    """Sizes of the work of one program, powers of two."""

    own: int
    """Queries (or keys) that a program owns: columns of a tile, along the lanes of its warps."""
    other: int
    """Keys (or queries) that it takes at a time: rows of a tile. 16 or more, or the tensor cores cannot be used."""
    values: int
    """Largest part of a value taken at a time."""
    warps: int
    programs: int
    """Fewer programs than this, and the other side is split over several."""
    shared: int = CHUNK
    """How many units share one division where scores are computed: 4, 2 or 1."""
    units: int = 64
    """How many are computed at a time where queries are few."""
    registers: int | None = 128
    """Most registers a thread may take, on NVIDIA: 128 lets 16 warps share a processor, where 255 would let 8."""

    def fitted(self, own_len: int, value_dim: int) -> "Tiles":
        """No larger than the problem."""
        own, values = triton.next_power_of_2(max(own_len, 1)), triton.next_power_of_2(max(value_dim, 1))
        return self._replace(own=min(self.own, own), values=min(self.values, values))


class Read(NamedTuple):
    """The tensors of one read; shapes in `additive_gpu`."""

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
        """Whether queries are so few that the exponentials of all keys would cost more than they save."""
        return self.query.shape[2] <= FEW_QUERIES

    @property
    def wide(self) -> torch.dtype:
        """What sums are held in."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32


class Setting(NamedTuple):
    """What every kernel takes."""

    arguments: tuple[Any, ...]
    """From `query` to `value_dim`, in the kernels' order."""
    flags: dict[str, Any]
    """The constants and options of the launch, less the tile sizes."""
    units: int
    """dim, padded to whole chunks."""


def is_interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter (TRITON_INTERPRET=1 when it was imported), on any device."""
    return not isinstance(product, triton.JITFunction)


def num_splits(programs: int, other_len: int, tiles: Tiles) -> int:
    """Over how many programs to split the other side, so that there are enough of them, each with a few tiles."""
    return max(1, min(tiles.programs // programs, other_len // (tiles.other * LEAST_TILES), MAX_SPLITS))


def strides_of(tensor: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that make the tensor that shape: 0 along the axes that broadcast."""
    return (0,) * len(shape) if tensor is None else tensor.expand(shape).stride()


def separated(
    query: Float[Tensor, "batch head query dim"],
    keys: Float[Tensor, "batch key_head key dim"],
    weights: Float[Tensor, "head units"],
) -> tuple[
    Float[Tensor, "batch head units query_room"],
    Float[Tensor, "batch key_head units keys_room"],
    Int[Tensor, "batch key_head chunks"],
]:
    """A and B with lengths last, and for each chunk of units whether all of them fit."""
    (heads, num_queries, dim), (key_heads, num_keys) = query.shape[1:], keys.shape[1:3]
    wide, units, readers = weights.dtype, weights.shape[-1], heads // key_heads
    query = query.to(wide).unflatten(1, (key_heads, readers))
    keys = keys.to(wide)
    top = query.amax((2, 3))  # (batch, key_head, dim)
    is_small = weights.abs().amax(-1).unflatten(0, (key_heads, readers)).amax(-1) <= LARGEST_WEIGHT  # (key_head,)
    fits = (top + keys.amax(2) <= LIMIT) & is_small[:, None]  # (batch, key_head, dim); NaN does not fit
    fits = pad(fits, (0, units - dim), value=True).unflatten(-1, (units // CHUNK, CHUNK)).all(-1)
    query_exp = (2.0 * (query - top[:, :, None, None])).exp().flatten(1, 2)
    keys_exp = (2.0 * (keys + top[:, :, None])).exp()
    more = units - dim
    query_exp = pad(query_exp.transpose(2, 3), (0, room(num_queries) - num_queries, 0, more)).contiguous()
    keys_exp = pad(keys_exp.transpose(2, 3), (0, room(num_keys) - num_keys, 0, more)).contiguous()
    return query_exp, keys_exp, fits.to(torch.int32)


def room(length: int) -> int:
    """The length rounded up to whole tiles: kernels then load exponentials without masks, four numbers at a time."""
    return triton.cdiv(length, ROOM) * ROOM


def ranges(read: Read) -> tuple[Int[Tensor, "batch head query"], Int[Tensor, "batch head query"]]:
    """First and last within 0 .. key, and (key, 0) where a query sees none, so that it widens no block's range."""
    *rows, num_keys = read.sizes
    device = read.query.device
    first = torch.zeros((), dtype=torch.int64, device=device) if read.first is None else read.first.clamp(0, num_keys)
    last = torch.full_like(first, num_keys) if read.last is None else read.last.clamp(0, num_keys)
    is_open = first < last
    first, last = torch.where(is_open, first, num_keys), torch.where(is_open, last, 0)
    first, last = (one.to(torch.int32).expand(rows).contiguous() for one in (first, last))
    return first, last


def prepare(read: Read, tiles: Tiles) -> Setting:
    """The arguments that all kernels share."""
    batch, heads, num_queries, num_keys = read.sizes
    dim, key_heads, value_dim = read.query.shape[-1], read.keys.shape[1], read.values.shape[-1]
    units = triton.cdiv(dim, CHUNK) * CHUNK
    weights = pad(-2.0 * read.v.to(read.wide), (0, units - dim)).expand(heads, units).contiguous()
    totals = weights.sum(-1) * -0.5  # sum_d v[d] (1 - 2 r[d]) = total + sum_d weights[d] r[d]
    exps = (None, None, None) if read.is_step else separated(read.query, read.keys, weights)
    allowed = None if read.allowed is None else read.allowed.view(torch.uint8)
    diagonals = None if read.diagonals is None else read.diagonals.contiguous()
    reach = batch, heads, num_queries + num_keys - 1
    strides = (
        *strides_of(allowed, read.sizes), *strides_of(read.bias, read.sizes), *strides_of(diagonals, reach)[:2]
    )  # fmt: skip
    arguments = (
        read.query.contiguous(), read.keys.contiguous(), read.values.contiguous(), exps[0], exps[1], weights, totals,
        exps[2], *ranges(read), allowed, read.bias, diagonals, strides,
        heads, key_heads, num_queries, num_keys, room(num_queries), room(num_keys), units, dim, value_dim,
    )  # fmt: skip
    is_nvidia = torch.version.cuda is not None and not is_interpreted()
    flags = {
        "SHARED": tiles.shared,
        "FAST": is_nvidia and read.wide == torch.float32,
        "DOT": _dot_dtype(read.query.dtype) if min(tiles.own, tiles.other, tiles.values) >= 16 else None,
        # Three products in tf32 are as good as float32; float64 and other makers' chips know only "ieee".
        "PRECISION": "tf32x3" if is_nvidia and read.query.dtype == torch.float32 else "ieee",
        "WIDE": tl.float64 if read.wide == torch.float64 else tl.float32,
        "num_warps": tiles.warps,
        "num_stages": 1,  # loads ahead of their tile would take registers that there are not
    }
    if is_nvidia:
        flags["maxnreg"] = tiles.registers
    return Setting(arguments, flags, units)


def _dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """What the tensor cores multiply. The interpreter multiplies the bits of bfloat16 as integers: float32 there."""
    if dtype == torch.float64:
        return tl.float64
    if is_interpreted():
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
