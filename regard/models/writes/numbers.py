"""Writes numbers, one or several a row, in the units of their targets.

    z = W h + b        y = mean + deviation z        loss = mean over a row's numbers of (z - z')^2, or of |z - z'|

where z' = (target - mean) / deviation, by the mean and deviation of the training targets: so numbers of any size are
learned at one rate, and those of different units count alike. Squares lead to the mean of what a target may be,
absolute errors to its median, which a few wild targets do not move.

Source: lectures, E (sequence to vector).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.features import widen
from regard.layers.cross_entropy import TokenLoss
from regard.models.writes.vector import VectorWriter


class NumberWriter(VectorWriter):
    """Vectors (batch, dim) to numbers (batch, numbers) and their loss.

    means, deviations: of the training targets, one a number.
    error: squared or absolute.
    Raises: ValueError if there are no numbers, unequally many, or a deviation is not positive.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        dim: int,
        *,
        means: Sequence[float] = (0.0,),
        deviations: Sequence[float] = (1.0,),
        error: str = "squared",
        dropout: float = 0.0,
    ):
        if not means or len(means) != len(deviations):
            raise ValueError(f"means and deviations must be equally many, but are {len(means)} and {len(deviations)}")
        if not all(deviation > 0 for deviation in deviations):
            raise ValueError(f"deviations must be positive, but are {tuple(deviations)}")
        if error not in ("squared", "absolute"):
            raise ValueError(f"error must be squared or absolute, but is {error!r}")
        super().__init__(dim, len(means), dropout=dropout)
        self.error = error
        # The run folder tells them; a copy among the weights could only disagree.
        self.register_buffer("mean", torch.tensor(means), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviations), persistent=False)

    def forward(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch numbers"]:
        """The numbers, in the units of the targets."""
        return self.mean + self.deviation * widen(self.scores(vector))

    def loss(self, vector: Float[Tensor, "batch dim"], target: Float[Tensor, "batch numbers"]) -> TokenLoss:
        """Sums over the rows of the mean over the numbers, in deviations."""
        off = widen(self.scores(vector)) - (target - self.mean) / self.deviation
        total = (off.square() if self.error == "squared" else off.abs()).mean(-1).sum()
        return TokenLoss(total, total.detach())
