"""Weights of 7 targets for 5 states by an untrained additive score, over source or targets."""

import torch
from scipy.optimize import nnls
from torch.nn.functional import pad

from regard.attention.attend import attention_weights
from regard.attention.scores import Additive
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest


def run(trial: Trial) -> Numbers:
    """Return their sums, and the distance of the outputs from the convex hull of the values."""
    source, target = torch.randn(12, 8, dtype=torch.float64).mul(3).split([5, 7])
    score = Additive(8, 8, hidden=8).double().requires_grad_(False)
    weights = attention_weights(target, (source, source), score=score)
    if trial.arm == "over targets" or trial.sabotage:
        exponentials = score(target, source).exp()
        weights = exponentials / exponentials.sum(0)
    sums, with_ones = weights.sum(1), pad(source, (0, 1), value=1.0).T.numpy()
    # The least |sum_j x_j (v_j, 1) - (output, 1)| for x_j >= 0 is 0 inside the convex hull.
    distances = [nnls(with_ones, [*output.tolist(), 1.0])[1] for output in weights @ source]
    return {
        "smallest weight": float(weights.min()),
        "smallest sum": float(sums.min()),
        "largest sum": float(sums.max()),
        "error of the sums": largest(sums - 1),
        "distance from the hull": max(distances),
    }


CLAIM = Claim(
    entry=("A.3", "The weights are positive and sum to one, ||b||_1 = 1"),
    sabotage={"over source": "divides by the sum over target positions, too"},
    arms=("over source", "over targets"),
    remark="By definition over the source; over targets, as in deck 003, the weights are no "
    "shares.",
    hypotheses=(
        Bound("smallest weight", "over source", at_least=1e-6),
        Bound("error of the sums", "over source", at_most=EXACT),
        Bound("distance from the hull", "over source", at_most=EXACT),
        Bound("error of the sums", "over targets", at_least=0.1),
        Bound("distance from the hull", "over targets", at_least=0.01),
    ),
)
