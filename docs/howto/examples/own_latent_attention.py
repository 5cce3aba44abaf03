"""Multi-head latent attention: the KV cache holds one short vector for each item.

    [r_j, c_j] = W_k x_j                            all that is cached; r_j is rotated
    k_hj = [r_j, U_h^T c_j]     v_hj = V_h^T c_j    keys and values of head h

Scores q . U_h^T c are (U_h q) . c, and results sum_j a_j V_h^T c_j are V_h^T sum_j a_j c_j: queries
read the cached vectors themselves, and no key or value of a head is ever computed.
Source: DeepSeek-V2 (2024), section 2.1.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import MultiHead, Rotary, testing
from regard.attention.memory import KeyValueCache


class LatentAttention(MultiHead):
    """Latent attention: c_j has `latent` numbers, r_j `rotary`, which positions rotate."""

    def __init__(
        self, width: int, num_heads: int, *, latent: int = 8, rotary: int = 4, **options: Any
    ) -> None:
        size = -(-width // num_heads)
        sizes = {"key_heads": 1, "head_dim": rotary + latent, "head_value_dim": size}
        super().__init__(width, num_heads, **options | sizes)
        self.rotary, self.factor = rotary, ((rotary + latent) / (rotary + size)) ** 0.5
        self.query = nn.Linear(width, num_heads * (rotary + size))
        self.value = nn.Identity()  # values are made of the keys
        self.up_key = nn.Parameter(torch.randn(num_heads, size, latent) * size**-0.5)
        self.up_value = nn.Parameter(torch.randn(num_heads, latent, size) * latent**-0.5)

    def project(self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None):
        queries, keys = None, None
        if query is not None:
            heads = self.query(query).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            rotated, plain = heads[..., : self.rotary], heads[..., self.rotary :]
            queries = torch.cat((rotated, plain @ self.up_key), -1) * self.factor
        if source is not None:
            keys = self.key(source).unsqueeze(1)  # one head, which all heads read
        return queries, keys, None

    def pairs(self, memory: KeyValueCache) -> KeyValueCache:
        return memory.with_pairs(memory.keys, memory.keys[..., self.rotary :])

    def merge(self, heads: Tensor, query: Tensor) -> Tensor:
        return super().merge(heads @ self.up_value, query)


if __name__ == "__main__":
    testing.check(LatentAttention(16, 2, positions=Rotary(4)))
