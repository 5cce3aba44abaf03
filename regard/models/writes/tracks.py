"""Writes where somebody goes: a vector to the places of the next steps, or to how they differ from an expected way.

    y_t = (W h + b)_t        loss = mean over t of |y_t - target_t|, the metric itself (ADE), in meters

As fresh, all places are nought: who adds them to an expected way begins with that.

Source: lectures, E (set to set); the error pellegrini2009.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.features import widen
from regard.layers.cross_entropy import TokenLoss
from regard.models.writes.vector import VectorWriter


class TrackWriter(VectorWriter):
    """Vectors (batch, dim) to tracks (batch, predicted, 2) and their loss."""

    def __init__(self, dim: int, predicted: int, *, dropout: float = 0.0):
        super().__init__(dim, 2 * predicted, dropout=dropout)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch predicted 2"]:
        """The places, step by step."""
        return widen(self.scores(vector)).unflatten(-1, (-1, 2))

    def loss(self, vector: Float[Tensor, "batch dim"], target: Float[Tensor, "batch predicted 2"]) -> TokenLoss:
        """The mean distance over time, summed over the rows."""
        total = (self(vector) - target).norm(dim=-1).mean(-1).sum()
        return TokenLoss(total, total.detach())
