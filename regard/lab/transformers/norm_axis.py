"""Norm of add & norm (f(x) = 0), or batch norm, of 9 rows against batch norm of their transpose."""

import torch
from torch import Tensor, nn

from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest
from regard.layers.residual import Residual

MEASURES = ("error", "effect of others")


def batch_norm(items: Tensor) -> Tensor:
    """Return the batch norm of items (rows, numbers), with mean and variance over the rows."""
    return nn.BatchNorm1d(items.shape[1], eps=1e-5, affine=False).double().train()(items)


def run(trial: Trial) -> Numbers:
    """Return the largest difference, and the effect on 4 rows of removing the other 5."""
    residual = Residual(6, order="post").double().requires_grad_(False)
    items = 2 + 3 * torch.randn(9, 6, dtype=torch.float64)

    def norm(items: Tensor) -> Tensor:
        if trial.arm == "batch norm" or trial.sabotage:
            return batch_norm(items)
        return residual(items, torch.zeros_like)  # LayerNorm(x + f(x)) with f(x) = 0

    error = largest(norm(items) - batch_norm(items.T).T)
    return {"error": error, "effect of others": largest(norm(items)[:4] - norm(items[:4]))}


CLAIM = Claim(
    entry=("D.6", "batch norm over the batch axis; otherwise they are the same"),
    sabotage={"layer norm": "is batch norm of the rows"},
    arms=("layer norm", "batch norm"),
    remark="By definition, in training and without scales. In use, batch norm has fixed means.",
    hypotheses=[Bound(name, "layer norm", at_most=EXACT) for name in MEASURES],
    controls=[Bound(name, "batch norm", at_least=0.1) for name in MEASURES],
)
