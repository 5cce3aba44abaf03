"""Distance of soft attention to hard attention over the inverse temperature."""

import torch

from regard.attention.choices import Hard, Soft
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial

BETAS = (1, 3, 10, 30, 100, 300, 1000)
KEYS = 16


def run(trial: Trial) -> Numbers:
    """Return the mean distance of the weights of 500 queries at each beta, and its bound."""
    scores = torch.randn(500, KEYS, dtype=torch.float64)
    if trial.arm == "two equal":
        scores.scatter_(1, scores.topk(2).indices, float(scores.max()))
    best, second = scores.topk(2).values.unbind(1)
    curve, above = {}, -1.0
    for beta in BETAS:
        weights = Soft(1.0 if trial.sabotage else beta)(scores)
        distances = (weights - Hard()(scores)).abs().sum(1) / 2
        bounds = (KEYS - 1) * (-beta * (best - second)).exp()
        curve[f"distance at {beta}"] = float(distances.mean())
        above = max(above, float((distances - bounds).max()))
    return curve | {"distance - bound": above}


CLAIM = Claim(
    key="A.5",
    quote="as beta grows, soft attention becomes hard attention.",
    experiment="500 queries with 16 random scores: distance sum_i |b_i - h_i| / 2 of the weights b "
    "of softargmax_beta from those of hard attention, which is 1 - max_i b_i, and its bound "
    "(n - 1) exp(-beta g) for n keys, with the gap g of the best two scores. In the second arm, "
    "the best two are equal.",
    sabotage="beta remains 1.",
    run=run,
    arms=("all different", "two equal"),
    x_name="inverse temperature beta",
    remark="It needs one best key: of two equal best scores both keep weight 1/2 at every beta, "
    "and hard attention takes the first.",
    hypotheses=(
        Bound(measure="distance - bound", arm="all different", at_most=EXACT),
        Bound(measure="distance at 1000", arm="all different", at_most=0.01),
    ),
    controls=(
        Bound(measure="distance at 1", arm="all different", at_least=0.1),
        Bound(measure="distance at 1000", arm="two equal", at_least=0.5 - EXACT),
    ),
)
