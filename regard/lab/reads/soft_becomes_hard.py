"""Weights b of softargmax_beta and h of hard attention for 500 queries with 16 random scores."""

import torch

from regard.attention.choices import Hard, Soft
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import mean


def run(trial: Trial) -> Numbers:
    """Return means of sum_i |b_i - h_i| / 2, and excess over 15 exp(-beta (best - second))."""
    scores = torch.randn(500, 16, dtype=torch.float64)
    if trial.arm == "two equal":
        scores.scatter_(1, scores.topk(2).indices, float(scores.max()))
    best, second = scores.topk(2).values.unbind(1)
    curve, above = {}, -1.0
    for beta in (1, 3, 10, 30, 100, 300, 1000):
        weights = Soft(1.0 if trial.sabotage else beta)(scores)
        distances = (weights - Hard()(scores)).abs().sum(1) / 2
        bounds = (scores.shape[1] - 1) * (-beta * (best - second)).exp()
        curve[f"distance at {beta}"] = mean(distances)
        above = max(above, float((distances - bounds).max()))
    return curve | {"distance - bound": above}


CLAIM = Claim(
    entry=("A.5", "as beta grows, soft attention becomes hard attention."),
    sabotage={"all": "keep beta at 1"},
    arms=("all different", "two equal"),
    x_name="inverse temperature beta",
    remark="The bound is a theorem. It needs one best key: two equal ones keep 1/2 at every beta.",
    hypotheses=(
        Bound("distance - bound", "all different", at_most=EXACT),
        Bound("distance at 1000", "all different", at_most=0.01),
    ),
    controls=(
        Bound("distance at 1", "all different", at_least=0.1),
        Bound("distance at 1000", "two equal", at_least=0.5 - EXACT),
    ),
)
