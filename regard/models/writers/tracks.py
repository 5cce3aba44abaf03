"""Trajectory head: positions at the next steps, or corrections to a baseline such as constant velocity.

    y_t = (W h + b)_t        loss = mean over t of |y_t - target_t|, which is the metric ADE, in meters

Initially all outputs are zero, so that corrections start at the baseline.

Source: lectures, E (set to set); the error pellegrini2009.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.models.writers.vector import VectorWriter
from regard.ops.token_loss import TokenLoss


class TrackWriter(VectorWriter):
    """Trajectory head for vectors (batch, dim), giving tracks (batch, predicted, 2)."""

    def __init__(self, dim: int, predicted: int, *, dropout: float = 0.0):
        super().__init__(dim, 2 * predicted, dropout=dropout)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch predicted 2"]:
        """Return the positions at each step."""
        return widen(self.scores(vector)).unflatten(-1, (-1, 2))

    def loss(self, vector: Float[Tensor, "batch dim"], target: Float[Tensor, "batch predicted 2"]) -> TokenLoss:
        """Return the distance averaged over time and summed over the rows."""
        total = (self(vector) - target).norm(dim=-1).mean(-1).sum()
        return TokenLoss(total, total.detach())
