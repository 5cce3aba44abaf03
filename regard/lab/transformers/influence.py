"""Norms of du_i / dx_j of 9 random inputs in 8 untrained encoders of each depth: plain (f(x),
without W_o), residual (x + f(x)), or with residual connections and norms (pre, post)."""

import torch
from torch.autograd.functional import jacobian

from regard.attention.masks import Padded
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import mean
from regard.layers.residual import Residual
from regard.models.cores.transformer import Transformer

ORDERS = {"plain": "none", "residual": "pre", "pre": "pre", "post": "post"}


def dependence(arm: str, layers: int) -> torch.Tensor:
    """Return |du_i / dx_j| of a new encoder for random inputs, divided by the largest of its i."""
    order, is_bare = ORDERS[arm], arm in ("plain", "residual")
    sizes = {"layers": layers, "width": 32, "heads": 4, "feedforward": 64}
    core = Transformer(**sizes, norm_order=order, output_projection=not is_bare, positions="none")
    for part in core.double().modules():
        if isinstance(part, Residual) and is_bare:
            part.norm = core.encoder_norm = torch.nn.Identity()
    x, lengths = torch.randn(1, 9, 32, dtype=torch.float64), torch.tensor([9])
    derivatives = jacobian(lambda x: core.encode(Padded(x, lengths)).items, x, vectorize=True)
    norms = derivatives[0, :, :, 0].norm(dim=(1, 3))
    return norms / norms.amax(-1, keepdim=True)


def run(trial: Trial) -> Numbers:
    """Return the share of i whose largest |du_i / dx_j| is that of j = i (chance: 1/9)."""
    arm, numbers = "plain" if trial.sabotage else trial.arm, {}
    for layers in (1, 2, 4, 6):
        ratios = torch.stack([dependence(arm, layers) for _ in range(8)])
        numbers[f"share at {layers}"] = mean((ratios == 1).diagonal(dim1=1, dim2=2))
    return numbers | {"smallest / largest, 6 layers": float(ratios.min())}


CLAIM = Claim(
    entry=("D.8", "depends on every input x_j, and most on x_i"),
    sabotage={"residual": "has no residual connections"},
    arms=tuple(ORDERS),
    x_name="number of layers",
    hypotheses=(
        Bound("smallest / largest, 6 layers", "plain", at_least=0.001),
        Bound("share at 1", "plain", at_least=0.9),
        Bound("share at 6", "plain", at_least=0.9),
        Difference("share at 2", more="residual", less="plain", margin=0.5),
    ),
    controls=(Bound("share at 1", "residual", at_least=0.9),),
    remark="u_i depends on every input, but most on its own only by the residual connection: of "
    "two plain layers no more often than by chance. Six layers need norms, too.",
)
