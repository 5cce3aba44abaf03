"""Base class of output heads that predict from one vector per row.

    h' = dropout(LayerNorm(h))      scores = W h' + b        subclasses define the prediction and the loss

Source: lectures, E (sequence to vector).
"""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.ops.token_loss import TokenLoss


class VectorWriter(nn.Module, ABC):
    """Output head for vectors (batch, dim): one prediction per row, and its loss."""

    def __init__(self, dim: int, size: int, *, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, size)

    def scores(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch size"]:
        """Return the scores of the output layer."""
        return self.output(self.dropout(self.norm(vector)))

    @abstractmethod
    def forward(self, vector: Float[Tensor, "batch dim"]) -> Tensor:
        """Return the prediction of each row."""

    @abstractmethod
    def loss(self, vector: Float[Tensor, "batch dim"], target: Tensor) -> TokenLoss:
        """Return the training objective and the reported loss, summed over the rows."""
