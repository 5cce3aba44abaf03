"""Relative position biases: functions of the distance between query and key.

    Alibi          bias_ij = -slope_h |p_i - j|                 nothing learned; slopes 2^{-8h/l} for head h of l
    RelativeBias   bias_ij = table[h, bucket(j - p_i)]          learned; buckets grow with the distance (T5)
    ShawBias       bias_ij = q_i . a[clip(j - p_i)] / sqrt(d)   learned; a vector per distance, dotted with the query

p_i is the position of query i and j that of the key, so a decoding step, a tile of a long read and a memory that is
only partly filled get the same numbers.

Source: press2022 (Alibi), raffel2020, section 2.1 (RelativeBias), shaw2018, section 3 (ShawBias).
"""

import math
from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.biases import Bias
from regard.attention.places import Positions
from regard.attention.sizes import check_integer


class DistanceBias(Bias):
    """Base class of biases that depend only on the distance j - p (and the head): one number per diagonal."""

    @abstractmethod
    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Return the bias ([head,] ...) at these distances, position of the key minus position of the query."""

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "1 ... query key"]:
        """Return the bias, the same for every row of the batch."""
        rows, keys = positions.num_rows, positions.num_keys
        if positions.key_positions is not None or rows == 0 or keys == 0:
            return self.at(positions.key - positions.query, query.dtype).unsqueeze(0)
        # One number per diagonal, expanded over the rows: gradients are summed along diagonals before the table.
        diagonals = self.at(_distances(rows, keys, positions), query.dtype)
        return diagonals.unfold(-1, keys, 1).flip(-2).unsqueeze(0)

    def diagonals(
        self, positions: Positions, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "1 ... diagonal"] | None:
        """Return one number per diagonal; None for positions other than the default ones, and for tiles."""
        if (
            not positions.is_aligned
            or positions.rows is not None
            or positions.num_queries == 0
            or positions.num_keys == 0
        ):
            return None
        return self.at(_distances(positions.num_queries, positions.num_keys, positions), dtype).unsqueeze(0)


@final
class Alibi(DistanceBias):
    """ALiBi: bias = -slope_h |p - j|, a penalty linear in the distance, with a slope per head.

    Under a causal mask this is press2022's -slope_h (p - j); without one it is symmetric.
    Slopes of l heads, l a power of two: 2^{-8/l}, 2^{-16/l}, ..., 2^{-8}. For other l: those of the next smaller power
    of two, then every other one of the next larger power, from the first, as in the paper's code.
    Nothing is learned or saved. A read needs an axis of heads. Raises: ValueError if num_heads < 1.
    Source: press2022, section 3.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        below = 2 ** (num_heads.bit_length() - 1)
        # slope = 2^{-4 eighths / below}. Integers stay exact when the module's dtype changes.
        eighths = [*range(2, 2 * below + 1, 2), *range(1, 2 * below, 2)][:num_heads]
        self._rate = -4 / below
        self._eighths: Tensor
        self.register_buffer("_eighths", torch.tensor(eighths), persistent=False)

    @property
    def slopes(self) -> Float[Tensor, " head"]:
        """Slope of each head, in double precision."""
        return torch.exp2(self._eighths.double() * self._rate)

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "head ..."]:
        """Return -slope |distance|."""
        _check_device("slopes of Alibi", self._eighths, distance)
        wide = _wide(dtype)
        slopes = torch.exp2(self._eighths.to(wide) * self._rate)
        return (-slopes.view(-1, *(1,) * distance.dim()) * distance.abs()).to(dtype)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        return f"num_heads={len(self._eighths)}"


@final
class RelativeBias(DistanceBias):
    """T5 relative position bias: bias = table[h, bucket(j - p)], learned per head and bucket of distances.

    With b buckets, d = p - j >= 0 is in bucket d if d < b/2; otherwise in b/2 + floor(b/2 log(2d/b) /
    log(2 max_distance/b)), at most b - 1. Two-sided (bidirectional): the first half of the buckets is for keys at or
    before the query, the second half for keys after it. One-sided: keys after the query are in bucket 0.
    Parameters: table (num_heads, buckets), or (buckets) if num_heads is None; initialized to zero. T5 shares one such
    bias among all layers and uses Dot, unscaled. A read needs an axis of heads unless num_heads is None.
    Raises: ValueError unless num_heads >= 1, buckets >= 2 (even and >= 4 if two-sided), and max_distance exceeds the
            distances that have a bucket of their own.
    Source: raffel2020, section 2.1.
    """

    def __init__(self, num_heads: int | None, buckets: int = 32, max_distance: int = 128, two_sided: bool = True):
        super().__init__()
        check_integer("num_heads", 1 if num_heads is None else num_heads, 1)
        check_integer("buckets", buckets, 4 if two_sided else 2)
        check_integer("max_distance", max_distance, 1)
        if two_sided and buckets % 2:
            raise ValueError(f"buckets must be even when two-sided (half per side), got {buckets}")
        self.two_sided, self.max_distance = two_sided, max_distance
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, buckets))
        self._bounds: Tensor
        bounds = _bounds(buckets // 2 if two_sided else buckets, max_distance)
        self.register_buffer("_bounds", torch.tensor(bounds), persistent=False)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the bucket of each distance, position of the key minus position of the query."""
        past = distance.abs() if self.two_sided else (-distance).clamp(min=0)
        bucket = torch.bucketize(past, self._bounds, right=True)
        return bucket + (distance > 0) * (self.table.shape[-1] // 2) if self.two_sided else bucket

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Return the entries of the table ([head,] ...)."""
        _check_device("table of RelativeBias", self.table, distance)
        return self.table[..., self.bucket(distance)].to(dtype)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        num_heads, buckets = self.table.shape if self.table.dim() == 2 else (None, len(self.table))
        sides = "" if self.two_sided else ", two_sided=False"
        return f"num_heads={num_heads}, buckets={buckets}, max_distance={self.max_distance}{sides}"


@final
class ShawBias(Bias):
    """Relative position representations: bias = q_i . a[clip(j - p_i, -k, k)] / sqrt(d), k = max_distance, a learned.

    With ScaledDot the sum is shaw2018's equation 4, q_i . (key_j + a_ij) / sqrt(d). The query is the one passed to the
    read; in MultiHead, the projected query of a head.
    Parameters: table (2 k + 1, query_dim), shared by all heads as in the paper, or (num_heads, 2 k + 1, query_dim) if
    num_heads is given; initialized to zero.
    Their equation 3 also adds vectors a_ij to the values, which no bias can do; in their ablation (section 4.3) the
    vectors of the keys alone were sufficient.
    Cost: time O(query * (k * query_dim + key)); no tensor (query, key, query_dim) is stored.
    Raises: ValueError unless all sizes are at least 1, and if size or heads of the query differ from the table's.
    Source: shaw2018, sections 3.1 to 3.3.
    """

    def __init__(self, query_dim: int, max_distance: int, num_heads: int | None = None):
        super().__init__()
        check_integer("query_dim", query_dim, 1)
        check_integer("max_distance", max_distance, 1)
        check_integer("num_heads", 1 if num_heads is None else num_heads, 1)
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, 2 * max_distance + 1, query_dim))

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "... query key"]:
        """Compute products with all 2 k + 1 vectors, and gather for each key the one at its distance."""
        self._check(query)
        reach = self.table.shape[-2] // 2
        scaled = query * (1 / math.sqrt(query.shape[-1]))
        products = scaled @ self.table.to(query.dtype).transpose(-2, -1)  # (..., query, 2 reach + 1)
        # A bias of -inf would mask the key, and so conceal a query that is not finite.
        products = torch.where(products == float("-inf"), float("nan"), products)
        index = (positions.key - positions.query).clamp(-reach, reach) + reach
        return products.gather(-1, index.expand(*products.shape[:-1], positions.num_keys))

    def _check(self, query: Tensor) -> None:
        size = self.table.shape[-1]
        if query.shape[-1] != size:
            raise ValueError(f"query must have size {size} for this ShawBias, got {query.shape[-1]}")
        if self.table.dim() == 3 and (query.dim() < 3 or query.shape[-3] != self.table.shape[0]):
            raise ValueError(
                f"query must be (..., {self.table.shape[0]} heads, query, {size}) for this ShawBias, "
                f"got {tuple(query.shape)}"
            )
        _check_device("table of ShawBias", self.table, query)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        heads = f", num_heads={self.table.shape[0]}" if self.table.dim() == 3 else ""
        return f"query_dim={self.table.shape[-1]}, max_distance={self.table.shape[-2] // 2}{heads}"


def _distances(rows: int, keys: int, positions: Positions) -> Tensor:
    """Return the distance j - p of each of the rows + keys - 1 diagonals, starting at the last row and first key."""
    return torch.arange(rows + keys - 1, device=positions.device) - (rows - 1) - positions.first


def _bounds(buckets: int, max_distance: int) -> list[int]:
    """Compute the least distance of each bucket but the first: T5's logarithms, exactly, in integers.

    Bucket e + t of e exact and w wide ones begins at the least d with w log(d / e) / log(max_distance / e) >= t, which
    is d^w >= e^(w - t) max_distance^t.
    """
    exact = buckets // 2
    wide = buckets - exact
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must exceed {exact}, the number of distances with a bucket of their own, got {max_distance}"
        )
    bounds = list(range(1, exact + 1))
    for step in range(1, wide):
        least, reach = bounds[-1], exact ** (wide - step) * max_distance**step
        while least**wide < reach:
            least += 1
        bounds.append(least)
    return bounds


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(f"{name} must be on the query's device {query.device}, got {tensor.device}")
