"""Writes an answer from one vector a row: what every such writer has, and is asked.

    h' = dropout(LayerNorm(h))      scores = W h' + b        what the scores mean, and what is lost, is the writer's own

Source: lectures, E (sequence to vector).
"""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.cross_entropy import TokenLoss
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear


class VectorWriter(nn.Module, ABC):
    """Vectors (batch, dim) to an answer a row, and its loss."""

    def __init__(self, dim: int, size: int, *, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, size)

    def scores(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch size"]:
        """What the output layer says."""
        return self.output(self.dropout(self.norm(vector)))

    @abstractmethod
    def forward(self, vector: Float[Tensor, "batch dim"]) -> Tensor:
        """The answer of each row."""

    @abstractmethod
    def loss(self, vector: Float[Tensor, "batch dim"], target: Tensor) -> TokenLoss:
        """What is minimized and what is reported, summed over the rows."""
