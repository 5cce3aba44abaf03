"""Attention pooling: a learned query reads a set of any number of items into one vector.

    out = [head_1; ...; head_l] W_o      head_h = attend(q_h, (W_k^h X, W_v^h X))       q_h learned

A mean weights all items equally; the query learns which ones matter. The result does not depend on the order of items.

Source: lectures, A (one query reads a memory); ilse2018; lee2019, section 3.2 (pooling by multi-head attention).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.multihead import MultiHead
from regard.layers.read import Role


class AttentionPooling(nn.Module):
    """Multi-head attention of one learned query over items (batch, time, dim), giving (batch, dim).

    A row without items gives the bias of the output projection.
    """

    def __init__(self, dim: int, *, num_heads: int, kernel: str = "auto"):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.attention = MultiHead(dim, num_heads=num_heads, kernel=kernel, role=Role("pooling"))

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        """Return the pooled vector of each row."""
        query = self.query.expand(items.items.shape[0], 1, -1)
        return self.attention(query, self.attention.memory(items.items, items.mask)).squeeze(1)


class FirstItem(nn.Module):
    """The first of the items (batch, time, dim), giving (batch, dim)."""

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        """Return the first item of each row."""
        return items.items[:, 0]
