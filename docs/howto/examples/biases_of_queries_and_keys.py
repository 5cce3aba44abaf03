"""Biases that read queries and keys: contextual positions (CoPE) and selective attention.

    CoPE        p_ij = sum of sigmoid(q_i . k_l), j <= l <= i     bias_ij = q_i . e(p_ij)
    selective   s_lj = max(0, q_l . k_j / sqrt(d)) of head 1      bias_ij = -sum of s_lj, j < l < i

Only positions tell the order of keys: those of a ring buffer lie in another one, those of a sliding
window begin later. Source: Golovneva et al. 2024; Leviathan et al. 2025.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import Bias, MultiHead, Positions, testing
from regard.attention.memory import KeyValueCache


class ContextualPositions(Bias):
    """CoPE: a position counts the keys in between that the query opens a gate for."""

    def __init__(self, head_dim: int, num_positions: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(num_positions, head_dim))

    def materialize(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        gates = torch.sigmoid(query @ keys.mT) * (positions.key <= positions.query)
        order = positions.key.argsort(descending=True)
        counts = gates[..., order].cumsum(-1)[..., order.argsort()]
        counts = counts.clamp(max=len(self.vectors) - 1)
        products = query @ self.vectors.to(query.dtype).mT
        below = products.gather(-1, counts.floor().long())
        above = products.gather(-1, counts.ceil().long())
        return below + (counts - counts.floor()) * (above - below)


class Selection(Bias):
    """Minus what queries between key and query gave to the key; keys hold [k, q] of each item."""

    def materialize(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        own_keys, own_queries = keys[..., :1, :, :].chunk(2, -1)
        given = torch.relu(own_queries @ own_keys.mT) * own_keys.shape[-1] ** -0.5
        given = given * (positions.key < positions.key[:, None])
        return -((positions.key < positions.query).to(given.dtype) @ given)


class SelectiveAttention(MultiHead):
    """Attention whose memory holds the query of each item beside its key, without rotations."""

    def __init__(self, width: int, num_heads: int, **options: Any) -> None:
        super().__init__(width, num_heads, **options | {"bias": Selection()})

    def project(self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None):
        queries, keys, own_values = super().project(query, source, values)
        if source is not None:
            keys = torch.cat((keys, super().project(source, None)[0]), -1)
        return queries, keys, own_values

    def pairs(self, memory: KeyValueCache) -> KeyValueCache:
        return memory.with_pairs(memory.keys.chunk(2, -1)[0], memory.values)


if __name__ == "__main__":
    testing.check(ContextualPositions(8, num_positions=4))
    testing.check(SelectiveAttention(16, 2))
