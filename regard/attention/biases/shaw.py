"""Relative position representations: a learned vector for each distance, times the query."""

import math
from typing import final

import torch
from torch import nn

from regard.attention.axes import Keys, Pairs, Queries, check_integer
from regard.attention.biases.base import Bias
from regard.attention.positions import Positions


@final
class ShawBias(Bias):
    """Relative position representations: bias = q_i . a[clip(j - p_i, -k, k)] / sqrt(d).

    k is max_distance, and a learned. With ScaledDot the sum is shaw2018's equation 4,
    q_i . (key_j + a_ij) / sqrt(d). The query is the one passed to the read; in MultiHead, the
    projected query of a head.
    Their equation 3 also adds vectors a_ij to the values, which no bias can do; in their ablation
    (section 4.3) the vectors of the keys alone were sufficient.
    Parameters: table (2 k + 1, query_dim), shared by all heads as in the paper, or
    (num_heads, 2 k + 1, query_dim) if num_heads is given; initially zero.
    Cost: time O(query * (k * query_dim + key)); no tensor (query, key, query_dim) is stored.
    Raises: ValueError unless all sizes are at least 1 and the query fits the table.
    Source: shaw2018, sections 3.1 to 3.3.
    """

    def __init__(self, query_dim: int, max_distance: int, num_heads: int | None = None):
        super().__init__()
        check_integer("query_dim", query_dim, 1)
        check_integer("max_distance", max_distance, 1)
        check_integer("num_heads", 1 if num_heads is None else num_heads, 1)
        heads = () if num_heads is None else (num_heads,)
        self.table = nn.Parameter(torch.zeros(*heads, 2 * max_distance + 1, query_dim))

    def materialize(self, query: Queries, keys: Keys, positions: Positions) -> Pairs:
        size = self.table.shape[-1]
        if query.shape[-1] != size:
            raise ValueError(f"query must have size {size}, got {query.shape[-1]}")
        if self.table.dim() == 3 and (query.dim() < 3 or query.shape[-3] != self.table.shape[0]):
            sizes = f"{self.table.shape[0]} heads, query, {size}"
            raise ValueError(f"query must be (..., {sizes}), got {tuple(query.shape)}")
        reach = self.table.shape[-2] // 2
        # Products with all 2 k + 1 vectors, then for each key the one at its distance.
        scaled = query * (1 / math.sqrt(query.shape[-1]))
        products = scaled @ self.table.to(query.dtype).transpose(-2, -1)
        index = (positions.key - positions.query).clamp(-reach, reach) + reach
        return products.gather(-1, index.expand(*products.shape[:-1], positions.num_keys))

    def extra_repr(self) -> str:
        heads = f", num_heads={self.table.shape[0]}" if self.table.dim() == 3 else ""
        return f"query_dim={self.table.shape[-1]}, max_distance={self.table.shape[-2] // 2}{heads}"
