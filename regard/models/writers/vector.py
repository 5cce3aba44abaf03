"""Base class of output heads that predict from one vector per row.

    h  = pool(core.encode(items))                            one vector per row (regard.layers.pool)
    h' = dropout(LayerNorm(h))      scores = W h' + b        subclasses define the prediction and the loss

Source: lectures, E.1 (sequence to vector).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.pool import AttentionPooling, ClassToken
from regard.models.cores.core import Core
from regard.models.writers.writer import Writer


class VectorWriter(Writer):
    """Output head for one vector per row (batch, dim).

    pool: module from the encoded items (Padded) to one vector per row; by default a learned query that attends to them.
          A ClassToken is put before the items that the core encodes.
    """

    part = "encoder"

    def __init__(self, dim: int, size: int, *, pool: nn.Module | None = None, dropout: float = 0.0):
        super().__init__()
        self.dim = dim
        self.pool = AttentionPooling(dim, num_heads=1) if pool is None else pool
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, size)

    def encode(self, core: Core, items: Padded) -> Padded:
        """Return the encoded items, after the encoded class token if there is one."""
        return core.encode(self.pool.prepend(items) if isinstance(self.pool, ClassToken) else items)

    def read(self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None) -> Any:
        """Return the pooled vector of each row."""
        return self.pool(encoded)

    def scores(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch size"]:
        """Return the scores of the output layer."""
        return self.output(self.dropout(self.norm(vector)))
