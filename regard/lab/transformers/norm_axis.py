"""Layer norm and batch norm against batch norm with its axes exchanged."""

import torch
from torch import Tensor, nn

from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest
from regard.layers.residual import Residual


def batch_norm(items: Tensor) -> Tensor:
    """Return the batch norm of items (rows, numbers), with mean and variance over the rows."""
    return nn.BatchNorm1d(items.shape[1], eps=1e-5, affine=False).double().train()(items)


def run(trial: Trial) -> Numbers:
    """Return the difference from the exchanged batch norm, and the effect of the other rows."""
    residual = Residual(6, order="post").double().requires_grad_(False)
    items = 2 + 3 * torch.randn(9, 6, dtype=torch.float64)

    def norm(items: Tensor) -> Tensor:
        if trial.arm == "batch norm" or trial.sabotage:
            return batch_norm(items)
        return residual(items, torch.zeros_like)  # LayerNorm(x + f(x)) with f(x) = 0

    return {
        "error": largest(norm(items) - batch_norm(items.T).T),
        "effect of others": largest(norm(items)[:4] - norm(items[:4])),
    }


CLAIM = Claim(
    key="D.6",
    quote="LayerNorm takes mean and variance over the last axis, batch norm over the batch axis; "
    "otherwise they are the same.",
    experiment="The norm of add & norm for 9 rows of 6 numbers: error against torch's batch norm "
    "of the transposed rows, and the effect on 4 rows of removing the other 5. The second arm is "
    "batch norm of the rows.",
    sabotage="Layer norm is replaced by batch norm of the rows.",
    sabotaged=("layer norm",),
    run=run,
    arms=("layer norm", "batch norm"),
    remark="In training, without learned scales. In use, batch norm has fixed means instead.",
    hypotheses=(
        Bound(measure="error", arm="layer norm", at_most=EXACT),
        Bound(measure="effect of others", arm="layer norm", at_most=EXACT),
    ),
    controls=(
        Bound(measure="error", arm="batch norm", at_least=0.1),
        Bound(measure="effect of others", arm="batch norm", at_least=0.1),
    ),
)
