"""Jacobians of the softmax of 16 scores, q . k or q . k / sqrt(d), of 500 queries and 16 keys each,
with standard normal components."""

import torch

from regard.attention.choices import Soft
from regard.attention.scores import Dot, ScaledDot
from regard.lab.protocol import EXACT, Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, largest, mean


def run(trial: Trial) -> Numbers:
    """Return mean norms (Frobenius) by autograd, and the error of diag(b) - b b^T, 0 by algebra."""
    draw = generator(trial.seed)
    score = Dot() if trial.arm == "unscaled" or trial.sabotage else ScaledDot()
    means, shares, error = {}, {}, 0.0
    for size in (4, 16, 64, 256, 1024):
        query = torch.randn(500, 1, size, dtype=torch.float64, generator=draw)
        keys = torch.randn(500, 16, size, dtype=torch.float64, generator=draw)
        scores = score(query, keys).squeeze(1)
        derivatives = torch.func.vmap(torch.func.jacrev(lambda a: Soft()(a[None])[0]))(scores)
        norms = derivatives.norm(dim=(-2, -1))
        means[f"gradient at {size}"] = mean(norms)
        shares[f"share below 0.01 at {size}"] = mean(norms < 0.01)
        weights = Soft()(scores)
        formula = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
        error = max(error, largest(derivatives - formula))
    return means | shares | {"error of the formula": error}


CLAIM = Claim(
    entry=("A.12", "Large scores saturate the softmax, whose gradient then vanishes."),
    sabotage={"scaled": "has no scale 1 / sqrt(d)"},
    arms=("unscaled", "scaled"),
    x_name="size d of queries and keys",
    remark="The unscaled mean at 1024 comes from the few queries whose two best scores are close.",
    hypotheses=(
        Difference("gradient at 1024", more="scaled", less="unscaled", margin=0.1),
        Difference("gradient at 64", more="scaled", less="unscaled", margin=0.05),
        Bound("error of the formula", "scaled", at_most=EXACT),
    ),
    controls=(Bound("gradient at 4", "unscaled", at_least=0.1),),
)
