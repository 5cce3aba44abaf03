"""Sums of the weights of Bahdanau's attention, over the source and as deck 003 prints them."""

import torch
from scipy.optimize import nnls
from torch.nn.functional import pad

from regard.attention.attend import attention_weights
from regard.attention.scores import Additive
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest


def run(trial: Trial) -> Numbers:
    """Return the sums of the weights of 7 targets over 5 source positions, and their outputs."""
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
    key="A.3",
    quote="The weights are positive and sum to one, ||b||_1 = 1: the output is a convex "
    "combination of the values.",
    experiment="Weights of 7 target states for 5 source states of 8 numbers by the additive score: "
    "sums of each row, and the distance of the outputs from the convex hull of the values. The "
    "second arm divides by the sum over target positions i that deck 003 prints.",
    sabotage="Both arms divide by the sum over target positions.",
    sabotaged=("over source",),
    run=run,
    arms=("over source", "over targets"),
    remark="With the sum over targets that deck 003 prints, the weights of a target are no shares.",
    hypotheses=(
        Bound(measure="smallest weight", arm="over source", at_least=1e-6),
        Bound(measure="error of the sums", arm="over source", at_most=EXACT),
        Bound(measure="distance from the hull", arm="over source", at_most=EXACT),
        Bound(measure="error of the sums", arm="over targets", at_least=0.1),
        Bound(measure="distance from the hull", arm="over targets", at_least=0.01),
    ),
)
