"""Attention layers of your own: a norm of queries and keys, a gate, and differential attention.

A subclass of MultiHead replaces one of its steps, `project` (items to the heads' queries, keys and
values) or `merge` (the heads' results to the vectors before W_o), and keeps the others: fused
projections, all memories, recorded weights. The class is passed as `Transformer(attention=...)`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import MultiHead, RMSNorm, testing


class NormedAttention(MultiHead):
    """Queries and keys of each head are normalized, so that scores stay bounded."""

    def __init__(self, width: int, num_heads: int, **options: Any) -> None:
        super().__init__(width, num_heads, **options)
        self.norm = RMSNorm(self.query.out_features // num_heads)

    def project(self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None):
        queries, keys, own_values = super().project(query, source, values)
        queries = None if queries is None else self.norm(queries)
        keys = None if keys is None else self.norm(keys)
        return queries, keys, own_values


class GatedAttention(MultiHead):
    """W_o (sigmoid(W_g x') * [head_1, ..., head_l]). Source: Gated Attention (Qiu et al. 2025)."""

    def __init__(self, width: int, num_heads: int, **options: Any) -> None:
        super().__init__(width, num_heads, **options)
        self.gate = nn.Linear(width, self.value.out_features)

    def merge(self, heads: Tensor, query: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(query)) * super().merge(heads, query)


class DifferentialAttention(MultiHead):
    """head_h = norm(A_1 V - lambda_h A_2 V), of two reads with half the size each.

    Source: Differential Transformer (Ye et al. 2025), with lambda as a parameter.
    """

    def __init__(self, width: int, num_heads: int, **options: Any) -> None:
        super().__init__(width, 2 * num_heads, **options)
        self.weight = nn.Parameter(torch.full((num_heads, 1, 1), 0.8))
        self.norm = RMSNorm(self.value.out_features // num_heads)

    def project(self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None):
        queries, keys, own_values = super().project(query, source, values)
        if own_values is not None:  # two heads read the same values, of twice the size
            own_values = torch.cat(own_values.unflatten(1, (-1, 2)).unbind(2), -1)
        return queries, keys, own_values

    def merge(self, heads: Tensor, query: Tensor) -> Tensor:
        first, second = heads.unflatten(1, (-1, 2)).unbind(2)
        return super().merge(self.norm(first - self.weight * second), query)


if __name__ == "__main__":
    for kind in (NormedAttention, GatedAttention, DifferentialAttention):
        testing.check(kind(16, 2))
