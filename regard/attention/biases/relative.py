"""T5's relative bias: a learned number for each head and bucket of distances."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import check_integer
from regard.attention.biases.base import DistanceBias
from regard.ops.constants import constant, tensor_of


@final
class RelativeBias(DistanceBias):
    """T5 relative position bias: table[h, bucket(j - p)], learned per head and bucket.

    With b buckets, d = p - j >= 0 is in bucket d if d < b/2; otherwise in b/2 + floor(b/2 log(2d/b)
    / log(2 max_distance/b)), at most b - 1. Two-sided (bidirectional): the first half of the
    buckets is for keys at or before the query, the second half for keys after it. One-sided: keys
    after the query are in bucket 0. T5 shares one such bias among all layers and uses Dot,
    unscaled. A read needs an axis of heads unless num_heads is None.

    Parameters: table (num_heads, buckets), or (buckets) if num_heads is None; initially zero.
    Raises: ValueError unless num_heads >= 1, buckets >= 2 (even and >= 4 if two-sided), and
            max_distance exceeds the distances that have a bucket to themselves.
    Source: raffel2020, section 2.1.
    """

    def __init__(
        self,
        num_heads: int | None,
        buckets: int = 32,
        max_distance: int = 128,
        two_sided: bool = True,
    ):
        super().__init__()
        check_integer("num_heads", 1 if num_heads is None else num_heads, 1)
        check_integer("buckets", buckets, 4 if two_sided else 2)
        check_integer("max_distance", max_distance, 1)
        if two_sided and buckets % 2:
            raise ValueError(f"buckets must be even when two-sided (half per side), got {buckets}")
        self.two_sided, self.max_distance = two_sided, max_distance
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, buckets))
        self._bounds = tuple(_bounds(buckets // 2 if two_sided else buckets, max_distance))

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the bucket of each distance, position of the key minus position of the query."""
        past = distance.abs() if self.two_sided else (-distance).clamp(min=0)
        if torch.compiler.is_exporting():  # by numbers: a scan takes no constant tensors
            bucket = torch.stack([past >= bound for bound in self._bounds]).sum(0)
        else:
            bounds = constant(tensor_of, self._bounds, device=past.device, dtype=torch.int64)
            bucket = torch.bucketize(past, bounds, right=True)
        return bucket + (distance > 0) * (self.table.shape[-1] // 2) if self.two_sided else bucket

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        return self.table[..., self.bucket(distance)].to(dtype)

    def extra_repr(self) -> str:
        num_heads, buckets = self.table.shape if self.table.dim() == 2 else (None, len(self.table))
        sides = "" if self.two_sided else ", two_sided=False"
        return f"num_heads={num_heads}, buckets={buckets}, max_distance={self.max_distance}{sides}"


def _bounds(buckets: int, max_distance: int) -> list[int]:
    """Compute the least distance of each bucket but the first: T5's logarithms, in integers.

    Bucket e + t of e exact and w wide ones begins at the least d with w log(d / e) /
    log(max_distance / e) >= t, which is d^w >= e^(w - t) max_distance^t.
    """
    exact = buckets // 2
    wide = buckets - exact
    if max_distance <= exact:
        raise ValueError(f"max_distance must exceed {exact}, half of buckets, got {max_distance}")
    bounds = list(range(1, exact + 1))
    for step in range(1, wide):
        least, reach = bounds[-1], exact ** (wide - step) * max_distance**step
        while least**wide < reach:
            least += 1
        bounds.append(least)
    return bounds
