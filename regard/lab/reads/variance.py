"""Variance of inner products over the size of the keys, with and without 1 / sqrt(d)."""

import math

import torch

from regard.attention.scores import Dot, ScaledDot
from regard.lab.protocol import Bound, Claim, Numbers, Trial
from regard.lab.tasks import generator

SIZES = (4, 16, 64, 256, 1024)


def run(trial: Trial) -> Numbers:
    """Return the variance of 20,000 inner products at each size."""
    draw = generator(trial.seed)
    score = ScaledDot() if trial.arm == "scaled" else Dot()
    curve, error = {}, 0.0
    for size in SIZES:
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
    key="A.12",
    quote="For independent components of mean 0 and variance 1, Var(<q, k>) = d_k.",
    experiment="20,000 queries and keys with components of mean 0 and variance 1: largest relative "
    "error of Var(<q, k>) = d and, scaled, of Var(<q, k> / sqrt(d)) = 1, over sizes d of 4 to "
    "1024. In a third arm, all components of a vector are the same number.",
    sabotage="The components of each vector are equal.",
    run=run,
    arms=("unscaled", "scaled", "equal components"),
    x_name="size d of queries and keys",
    remark="It needs the independence: with equal components the variance is d^2, and dividing by "
    "sqrt(d) leaves d. Queries and keys of a trained model are not independent.",
    hypotheses=(
        Bound(measure="relative error", arm="unscaled", at_most=0.1),
        Bound(measure="relative error", arm="scaled", at_most=0.1),
    ),
    controls=(Bound(measure="relative error", arm="equal components", at_least=1),),
)
