"""Regression head: one or several numbers per row, in the units of their targets.

    z = W h + b        y = mean + deviation z
    loss = mean over the numbers of a row of (z - z')^2, or of |z - z'|

where z' = (target - mean) / deviation, with the mean and standard deviation of the training
targets. Squared errors estimate the mean of a target, absolute errors its median.

Source: lectures, E.1 (sequence to vector).
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import widen
from regard.models.writers.vector import VectorWriter
from regard.models.writers.writer import check_target
from regard.ops.constants import constant, tensor_of
from regard.ops.token_loss import TokenLoss


class NumberWriter(VectorWriter):
    """Regression head for vectors (batch, dim), giving numbers (batch, numbers).

    means, deviations: of the training targets, one for each number.
    error: squared or absolute. options: of VectorWriter.
    Raises: ValueError if means is empty or differs from deviations in length, or a deviation is not
            positive.
    """

    def __init__(
        self,
        dim: int,
        *,
        means: Sequence[float] = (0.0,),
        deviations: Sequence[float] = (1.0,),
        error: str = "squared",
        **options: Any,
    ):
        if not means or len(means) != len(deviations):
            raise ValueError(
                f"means and deviations must be equally many and at least one, got {len(means)} and "
                f"{len(deviations)}"
            )
        if not all(deviation > 0 for deviation in deviations):
            raise ValueError(f"deviations must be positive, got {tuple(deviations)}")
        if error not in ("squared", "absolute"):
            raise ValueError(f"error must be squared or absolute, got {error!r}")
        super().__init__(dim, len(means), **options)
        self.error, self.means, self.deviations = error, tuple(means), tuple(deviations)

    def answer(self, hidden: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch numbers"]:
        scores = widen(self.scores(hidden))
        mean, deviation = self._statistics(scores)
        return mean + deviation * scores

    def loss(
        self, hidden: Float[Tensor, "batch dim"], target: Float[Tensor, "batch numbers"]
    ) -> TokenLoss:
        scores = widen(self.scores(hidden))
        check_target(self, target, scores.shape)
        mean, deviation = self._statistics(scores)
        difference = scores - (target - mean) / deviation
        error = difference.square() if self.error == "squared" else difference.abs()
        total = error.mean(-1).sum()
        return TokenLoss(total, total.detach())

    def _statistics(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        mean = constant(tensor_of, self.means, device=scores.device, dtype=scores.dtype)
        return mean, constant(tensor_of, self.deviations, device=scores.device, dtype=scores.dtype)
