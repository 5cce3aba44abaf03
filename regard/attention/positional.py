"""Biases by position: how far a key is from the query, and on which side.

    Alibi          bias_ij = -slope_h |p_i - j|                 nothing learned; slopes 2^{-8h/l} for head h of l
    RelativeBias   bias_ij = table[h, bucket(j - p_i)]          learned; buckets grow with the distance (T5)
    ShawBias       bias_ij = q_i . a[clip(j - p_i)] / sqrt(d)   learned; a vector for each distance, read by the query

p_i is the place of query i and j that of the key, so one query of a decoding, a tile of a long read and a memory that
is only partly filled all get the same numbers.

Source: press2022 (Alibi), raffel2020, section 2.1 (RelativeBias), shaw2018, section 3 (ShawBias).
"""

import math
from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.biases import Bias
from regard.attention.places import Places
from regard.attention.sizes import check_whole


class ByDistance(Bias):
    """A bias that is a function of the head (if it tells heads apart) and of j - p alone: one number a diagonal."""

    @abstractmethod
    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """The bias ([head,] ...) at these distances, place of the key less place of the query."""

    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "1 ... query key"]:
        """The same for every row."""
        rows, keys = places.num_rows, places.num_keys
        if places.key_places is not None or rows == 0 or keys == 0:
            return self.at(places.key - places.query, query.dtype).unsqueeze(0)
        # One number a diagonal, spread over the rows: a gradient sums along diagonals before it reaches a table.
        diagonals = self.at(_distances(rows, keys, places), query.dtype)
        return diagonals.unfold(-1, keys, 1).flip(-2).unsqueeze(0)

    def diagonals(self, places: Places, dtype: torch.dtype = torch.float32) -> Float[Tensor, "1 ... diagonal"] | None:
        """One number a diagonal, when places are aligned and whole."""
        if not places.aligned or places.rows is not None or places.num_queries == 0 or places.num_keys == 0:
            return None
        return self.at(_distances(places.num_queries, places.num_keys, places), dtype).unsqueeze(0)


@final
class Alibi(ByDistance):
    """bias = -slope_h |p - j|: the farther a key, the less it counts, at a rate of each head's own.

    Under a causal mask this is press2022's -slope_h (p - j); without one it counts both sides alike.
    Slopes of l heads, l a power of two: 2^{-8/l}, 2^{-16/l}, ..., 2^{-8}. Of other l: those of the power of two
    below, then every other one of the power above, from the first, as the paper's code does.
    Nothing is learned or saved. A read needs a heads axis. Raises: ValueError if num_heads < 1.
    Source: press2022, section 3.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        check_whole("num_heads", num_heads, 1)
        below = 2 ** (num_heads.bit_length() - 1)
        # slope = 2^{-4 eighths / below}. As whole numbers they stay exact when the module's dtype changes.
        eighths = [*range(2, 2 * below + 1, 2), *range(1, 2 * below, 2)][:num_heads]
        self._rate = -4 / below
        self._eighths: Tensor
        self.register_buffer("_eighths", torch.tensor(eighths), persistent=False)

    @property
    def slopes(self) -> Float[Tensor, " head"]:
        """Slope of each head, in double precision."""
        return torch.exp2(self._eighths.double() * self._rate)

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "head ..."]:
        """-slope |distance|."""
        _check_device("slopes of Alibi", self._eighths, distance)
        wide = _wide(dtype)
        slopes = torch.exp2(self._eighths.to(wide) * self._rate)
        return (-slopes.view(-1, *(1,) * distance.dim()) * distance.abs()).to(dtype)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"num_heads={len(self._eighths)}"


@final
class RelativeBias(ByDistance):
    """bias = table[h, bucket(j - p)], learned: one number for each head and bucket of distances. (T5)

    Of b buckets for d = p - j >= 0: bucket d if d < b/2; then b/2 + floor(b/2 log(2d/b) / log(2 max_distance/b)), at
    most b - 1. Two-sided: the first half of the buckets serves keys at or before the query, the second half those
    after it. One-sided: keys after the query are in bucket 0 with the query's own.
    Parameters: table (num_heads, buckets), or (buckets) if num_heads is None; zero at first. T5 shares one such bias
    among all its layers and reads with Dot, unscaled. A read needs a heads axis, or none if num_heads is None.
    Raises: ValueError unless num_heads >= 1, buckets >= 2 (even and >= 4 if two-sided), and max_distance exceeds the
            distances that have a bucket of their own.
    Source: raffel2020, section 2.1.
    """

    def __init__(self, num_heads: int | None, buckets: int = 32, max_distance: int = 128, two_sided: bool = True):
        super().__init__()
        check_whole("num_heads", 1 if num_heads is None else num_heads, 1)
        check_whole("buckets", buckets, 4 if two_sided else 2)
        check_whole("max_distance", max_distance, 1)
        if two_sided and buckets % 2:
            raise ValueError(f"buckets must be even when two-sided, half for each side, but are {buckets}")
        self.two_sided, self.max_distance = two_sided, max_distance
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, buckets))
        self._bounds: Tensor
        bounds = _bounds(buckets // 2 if two_sided else buckets, max_distance)
        self.register_buffer("_bounds", torch.tensor(bounds), persistent=False)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Bucket of each distance, place of the key less place of the query."""
        past = distance.abs() if self.two_sided else (-distance).clamp(min=0)
        bucket = torch.bucketize(past, self._bounds, right=True)
        return bucket + (distance > 0) * (self.table.shape[-1] // 2) if self.two_sided else bucket

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """The table's numbers ([head,] ...)."""
        _check_device("table of RelativeBias", self.table, distance)
        return self.table[..., self.bucket(distance)].to(dtype)

    def extra_repr(self) -> str:
        """Sizes."""
        num_heads, buckets = self.table.shape if self.table.dim() == 2 else (None, len(self.table))
        sides = "" if self.two_sided else ", two_sided=False"
        return f"num_heads={num_heads}, buckets={buckets}, max_distance={self.max_distance}{sides}"


@final
class ShawBias(Bias):
    """bias = q_i . a[clip(j - p_i, -k, k)] / sqrt(d), learned: a vector for each distance up to k = max_distance.

    With ScaledDot the sum is shaw2018's equation 4, q_i . (key_j + a_ij) / sqrt(d). The query is the one that the read
    is given: a projected head of queries in MultiHead.
    Parameters: table (2 k + 1, query_dim), shared by all heads as in the paper, or (num_heads, 2 k + 1, query_dim) if
    num_heads is given; zero at first.
    Their equation 3 also adds vectors a_ij to the values. That changes what is read, not the scores, and so is no
    bias; their ablation (section 4.3) found the vectors of keys enough by themselves.
    Cost: time O(query * (k * query_dim + key)); nothing of size (query, key, query_dim) is formed.
    Raises: ValueError unless all sizes are at least 1, and if the query's size or heads are not those of the table.
    Source: shaw2018, sections 3.1 to 3.3.
    """

    def __init__(self, query_dim: int, max_distance: int, num_heads: int | None = None):
        super().__init__()
        check_whole("query_dim", query_dim, 1)
        check_whole("max_distance", max_distance, 1)
        check_whole("num_heads", 1 if num_heads is None else num_heads, 1)
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, 2 * max_distance + 1, query_dim))

    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "... query key"]:
        """Products with all 2 k + 1 vectors, of which each key takes the one at its distance."""
        self._check(query)
        reach = self.table.shape[-2] // 2
        scaled = query * (1 / math.sqrt(query.shape[-1]))
        products = scaled @ self.table.to(query.dtype).transpose(-2, -1)  # (..., query, 2 reach + 1)
        # A bias of -inf would hide the key, and make nothing of a query that is not finite.
        products = torch.where(products == float("-inf"), float("nan"), products)
        index = (places.key - places.query).clamp(-reach, reach) + reach
        return products.gather(-1, index.expand(*products.shape[:-1], places.num_keys))

    def _check(self, query: Tensor) -> None:
        size = self.table.shape[-1]
        if query.shape[-1] != size:
            raise ValueError(f"query must have size {size} for this ShawBias, but has {query.shape[-1]}")
        if self.table.dim() == 3 and (query.dim() < 3 or query.shape[-3] != self.table.shape[0]):
            raise ValueError(
                f"query must be (..., {self.table.shape[0]} heads, query, {size}) for this ShawBias, "
                f"but is {tuple(query.shape)}"
            )
        _check_device("table of ShawBias", self.table, query)

    def extra_repr(self) -> str:
        """Sizes."""
        heads = f", num_heads={self.table.shape[0]}" if self.table.dim() == 3 else ""
        return f"query_dim={self.table.shape[-1]}, max_distance={self.table.shape[-2] // 2}{heads}"


def _distances(rows: int, keys: int, places: Places) -> Tensor:
    """Distance j - p on each of the rows + keys - 1 diagonals, from the last row's first key on."""
    return torch.arange(rows + keys - 1, device=places.device) - (rows - 1) - places.first


def _bounds(buckets: int, max_distance: int) -> list[int]:
    """Least distance of each bucket but the first: T5's logarithms, exactly, in whole numbers.

    Bucket e + t of e exact and w wide ones begins at the least d with w log(d / e) / log(max_distance / e) >= t, which
    is d^w >= e^(w - t) max_distance^t.
    """
    exact = buckets // 2
    wide = buckets - exact
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must exceed {exact}, the distances with a bucket of their own, but is {max_distance}"
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


def _check_device(name: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.device != theirs.device:
        raise ValueError(f"{name} must be on the query's device {theirs.device}, but is on {ours.device}")
