"""Multi-label head: an independent probability for each label.

    p_l = sigmoid(W h + b)_l        loss = -sum_l [y_l log p_l + (1 - y_l) log (1 - p_l)]

Label smoothing moves y_l from 0 or 1 toward a half, in training: (1 - e) y_l + e / 2.

Source: lectures, E.1 (sequence to vector); sigmoid and cross-entropy per label nam2014, section 3.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.attention.axes import widen
from regard.models.writers.vector import VectorWriter
from regard.ops.token_loss import TokenLoss


class LabelWriter(VectorWriter):
    """Multi-label head for vectors (batch, dim)."""

    def answer(self, hidden: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch labels"]:
        return widen(self.scores(hidden)).sigmoid()

    def loss(
        self, hidden: Float[Tensor, "batch dim"], target: Float[Tensor, "batch labels"]
    ) -> TokenLoss:
        scores = widen(self.scores(hidden))
        target = target.to(scores.dtype)
        nll = functional.binary_cross_entropy_with_logits(scores, target, reduction="sum")
        if not self.training or self.label_smoothing == 0:
            return TokenLoss(nll, nll.detach())
        smoothed = (1 - self.label_smoothing) * target + self.label_smoothing / 2
        total = functional.binary_cross_entropy_with_logits(scores, smoothed, reduction="sum")
        return TokenLoss(total, nll.detach())
