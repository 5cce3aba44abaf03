"""Classification head: probabilities of the classes from one vector per row.

    p(c | x) = softmax(W h + b)_c        loss = -log p(right class)

In training, the labels may be smoothed, and the loss of each row is multiplied by the weight of its
class, if there are class weights. The target may be probabilities of the classes (mixup): the loss
is the sum of the losses of the classes, weighted by them.

Source: lectures, E.1 (sequence to vector); label smoothing szegedy2016, section 7.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import widen
from regard.models.writers.vector import VectorWriter
from regard.models.writers.writer import check_target
from regard.ops.constants import constant, tensor_of
from regard.ops.token_loss import TokenLoss


class ClassWriter(VectorWriter):
    """Classification head for vectors (batch, dim).

    class_weights: weight of each class in the loss; all 1 if empty. options: of VectorWriter.
    """

    def __init__(
        self, dim: int, num_classes: int, *, class_weights: Sequence[float] = (), **options: Any
    ):
        super().__init__(dim, num_classes, **options)
        if len(class_weights) not in (0, num_classes):
            raise ValueError(
                f"class_weights must have {num_classes} numbers, or none, got {len(class_weights)}"
            )
        self.class_weights = tuple(class_weights)

    def divide_scores(self, temperature: float) -> None:
        """Divide the parameters of which the scores are a linear function."""
        for parameter in self.output.parameters():
            parameter.data /= temperature

    def answer(self, hidden: Any) -> Float[Tensor, "batch classes"]:
        return widen(self.scores(hidden)).softmax(-1)

    def loss(
        self, hidden: Any, target: Int[Tensor, " batch"] | Float[Tensor, "batch classes"]
    ) -> TokenLoss:
        log_p = widen(self.scores(hidden)).log_softmax(-1)
        is_mixed = target.is_floating_point()
        check_target(self, target, log_p.shape if is_mixed else log_p.shape[:1])
        losses = -log_p if is_mixed else -log_p.gather(1, target[:, None]).squeeze(1)
        nll = (target * losses).sum() if is_mixed else losses.sum()
        if not self.training:
            return TokenLoss(nll, nll.detach())
        if self.label_smoothing:
            mean = log_p.mean(-1, keepdim=is_mixed)
            losses = (1 - self.label_smoothing) * losses - self.label_smoothing * mean
        if self.class_weights:
            weights = constant(
                tensor_of, self.class_weights, device=losses.device, dtype=losses.dtype
            )
            losses = losses * (weights if is_mixed else weights[target])
        losses = target * losses if is_mixed else losses
        return TokenLoss(losses.sum(), nll.detach())
