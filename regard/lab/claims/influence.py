"""Derivatives of the outputs of a new stack of self-attention for its inputs, by autograd."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.layers.residual import Residual
from regard.models.cores.transformer import Transformer

ORDERS: dict[str, Any] = {"plain": "none", "residual": "pre", "pre": "pre", "post": "post"}


def dependence(arm: str, layers: int) -> Tensor:
    """Return |du_i / dx_j| of a new encoder for random inputs, divided by the largest of its i."""
    order, is_bare = ORDERS[arm], arm in ("plain", "residual")
    sizes = {"layers": layers, "width": 32, "heads": 4, "feedforward": 64}
    core = Transformer(**sizes, norm_order=order, output_projection=not is_bare, positions="none")
    for part in core.double().modules():
        if isinstance(part, Residual) and is_bare:
            part.norm = core.encoder_norm = nn.Identity()

    def encode(x: Tensor) -> Tensor:
        return core.encode(Padded(x[None], torch.tensor([9]))).items[0]

    x = torch.randn(9, 32, dtype=torch.float64)
    norms = torch.autograd.functional.jacobian(encode, x, vectorize=True).norm(dim=(1, 3))
    return norms / norms.amax(-1, keepdim=True)


def run(trial: Trial) -> Numbers:
    """Return the share of i whose largest |du_i / dx_j| is that of j = i, of 8 encoders."""
    arm, numbers = "plain" if trial.sabotage else trial.arm, {}
    for layers in (1, 2, 4, 6):
        ratios = torch.stack([dependence(arm, layers) for _ in range(8)])
        shares = (ratios == 1).double().mean(0)
        numbers[f"share at {layers}"] = float(shares.diagonal().mean())
    return numbers | {"smallest / largest, 6 layers": float(ratios.min())}


CLAIM = Claim(
    key="D.8",
    quote="depends on every input x_j, and most on x_i",
    experiment="Norms of du_i / dx_j of 9 random inputs in 8 new encoders (width 32, 4 heads): the "
    "share of i whose largest is that of j = i; chance is 0.11. Plain is deck 001's stack, f(x); "
    "residual is x + f(x); pre and post are Transformers, with norms.",
    sabotage="The arm residual has no residual connections.",
    sabotaged=("residual",),
    run=run,
    arms=tuple(ORDERS),
    x_name="number of layers",
    hypotheses=(
        Bound(measure="smallest / largest, 6 layers", arm="plain", at_least=0.001),
        Bound(measure="share at 1", arm="plain", at_least=0.9),
        Bound(measure="share at 6", arm="plain", at_least=0.9),
        Difference(measure="share at 2", more="residual", less="plain", margin=0.5),
    ),
    controls=(Bound(measure="share at 1", arm="residual", at_least=0.9),),
    remark="u_i depends on every input, but most on its own only through the residual connection. "
    "Without it, that is so no more often than by chance from the second layer on; in six layers "
    "the norms are needed, too. The encoders are not trained.",
)
