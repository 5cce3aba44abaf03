"""Classification head: probabilities of the classes from one vector per row.

    p(c | x) = softmax(W h + b)_c        loss = -log p(right class), with label smoothing in training

Source: lectures, E.1 (sequence to vector); label smoothing szegedy2016, section 7.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.models.writers.vector import VectorWriter
from regard.ops.token_loss import TokenLoss


class ClassWriter(VectorWriter):
    """Classification head for vectors (batch, dim)."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        pool: nn.Module | None = None,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__(dim, num_classes, pool=pool, dropout=dropout)
        self.label_smoothing = label_smoothing

    def answer(self, hidden: Any) -> Float[Tensor, "batch classes"]:
        """Return the probabilities of the classes."""
        return widen(self.scores(hidden)).softmax(-1)

    def loss(self, hidden: Any, target: Int[Tensor, " batch"]) -> TokenLoss:
        """Return the loss summed over the rows, in nats; label smoothing in training only."""
        log_p = widen(self.scores(hidden)).log_softmax(-1)
        nll = -log_p.gather(1, target[:, None]).sum()
        if not self.training or self.label_smoothing == 0:
            return TokenLoss(nll, nll.detach())
        total = (1 - self.label_smoothing) * nll - self.label_smoothing * log_p.mean(-1).sum()
        return TokenLoss(total, nll.detach())
