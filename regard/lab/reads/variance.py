"""Inner products of 20,000 standard normal queries and keys of size d; in the third arm, all
components of a vector are equal."""

import math

import torch

from regard.attention.scores import Dot, ScaledDot
from regard.lab.protocol import Bound, Claim, Numbers, Trial
from regard.lab.tasks import generator


def run(trial: Trial) -> Numbers:
    """Return the variance for each size d, and the largest relative error of d or, scaled, 1."""
    draw = generator(trial.seed)
    score = ScaledDot() if trial.arm == "scaled" else Dot()
    curve, error = {}, 0.0
    for size in (4, 16, 64, 256, 1024):
        query = torch.randn(20_000, 1, size, generator=draw)
        keys = torch.randn(20_000, 1, size, generator=draw)
        if trial.arm == "equal components" or trial.sabotage:
            query, keys = query[..., :1].expand_as(query), keys[..., :1].expand_as(keys)
        variance = float(score(query, keys).double().var())
        expected = 1 if trial.arm == "scaled" else size
        curve[f"log2 of the variance at {size}"] = math.log2(variance)
        error = max(error, abs(variance / expected - 1))
    return curve | {"relative error": error}


CLAIM = Claim(
    entry=("A.12", "For independent components of mean 0 and variance 1, Var(<q, k>) = d_k."),
    sabotage={"all": "have vectors of equal components"},
    arms=("unscaled", "scaled", "equal components"),
    x_name="size d of queries and keys",
    remark="A theorem, seen in samples. Equal components, far from independent, have variance d^2.",
    hypotheses=[Bound("relative error", arm, at_most=0.1) for arm in ("unscaled", "scaled")],
    controls=(Bound("relative error", "equal components", at_least=1),),
)
