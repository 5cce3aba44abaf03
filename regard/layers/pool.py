"""Attention pooling: a learned query reads a set of items, of any number, into one vector.

    out = [head_1; ...; head_l] W_o      head_h = attend(q_h, (W_k^h X, W_v^h X))       q_h learned

Where a mean weights all items alike, the query learns which ones matter. An order of the items plays no part.

Source: lectures, A (one query reads a memory); ilse2018; lee2019, section 3.2 (pooling by multi-head attention).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.multihead import MultiHead


class Pool(nn.Module):
    """Items (batch, time, dim) to (batch, dim), by one learned query in so many heads.

    A row without items gives the output's offset alone.
    """

    def __init__(self, dim: int, *, num_heads: int, kernel: str = "auto"):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.attention = MultiHead(dim, num_heads=num_heads, kernel=kernel)

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        """What the query reads of each row."""
        query = self.query.expand(items.items.shape[0], 1, -1)
        return self.attention(query, self.attention.memory(items.items, items.mask)).squeeze(1)
