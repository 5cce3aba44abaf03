"""Biases that read queries and keys: CoPE, and selective attention.

CoPE        p_ij = sum of sigmoid(q_i . k_l), j <= l <= i     bias_ij = q_i . e(p_ij)
selective   s_lj = max(0, q_l . k_j / sqrt(d)) of head 1      bias_ij = -sum of s_lj, j < l < i
"""

import torch
from torch import Tensor, nn

from regard import Bias, MultiHead, Positions, testing


class ContextualPositions(Bias):
    """CoPE: positions count the keys with an open gate. Source: Golovneva et al. 2024."""

    def __init__(self, head_dim: int, num_positions: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(num_positions, head_dim))

    def materialize(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        gates = torch.sigmoid(query @ keys.mT) * (positions.key <= positions.query)
        order = positions.key.argsort(descending=True)  # keys of a ring buffer lie in another
        counts = gates[..., order].cumsum(-1)[..., order.argsort()]
        counts = counts.clamp(max=len(self.vectors) - 1)
        products = query @ self.vectors.to(query.dtype).mT
        below, above = counts.floor().long(), counts.ceil().long()
        return products.gather(-1, below).lerp(products.gather(-1, above), counts.frac())


class Selection(Bias):
    """Minus what queries in between gave to the key. Source: Leviathan et al. 2025."""

    def materialize(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        own_keys, own_queries = keys[..., :1, :, :].chunk(2, -1)
        given = torch.relu(own_queries @ own_keys.mT) * own_keys.shape[-1] ** -0.5
        given = given * (positions.key < positions.key[:, None])
        return -((positions.key < positions.query).to(given.dtype) @ given)


class SelectiveAttention(MultiHead):
    """Attention whose memory holds the query of each item beside its key, without rotations."""

    def create_bias(self):
        return Selection()

    def project(self, query, source, values=None):
        queries, keys, own_values = super().project(query, source, values)
        if source is not None:
            own_queries = super().project(source, None)[0][:, : self.key_heads]
            keys = torch.cat((keys, own_queries), -1)
        return queries, keys, own_values

    def pairs(self, memory):
        return memory.with_pairs(memory.keys.chunk(2, -1)[0], memory.values)


if __name__ == "__main__":
    testing.check(ContextualPositions(8, num_positions=4))
    testing.check(SelectiveAttention(16, 2))
