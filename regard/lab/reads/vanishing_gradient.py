"""Gradient of the softmax over the size of the keys, with and without 1 / sqrt(d)."""

import torch

from regard.attention.choices import Soft
from regard.attention.scores import Dot, ScaledDot
from regard.lab.protocol import EXACT, Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, largest

SIZES = (4, 16, 64, 256, 1024)
KEYS = 16


def run(trial: Trial) -> Numbers:
    """Return norms of the derivatives of 16 weights for their scores, at each size."""
    draw = generator(trial.seed)
    score = Dot() if trial.arm == "unscaled" or trial.sabotage else ScaledDot()
    means, shares, error = {}, {}, 0.0
    for size in SIZES:
        query = torch.randn(500, 1, size, dtype=torch.float64, generator=draw)
        keys = torch.randn(500, KEYS, size, dtype=torch.float64, generator=draw)
        scores = score(query, keys).squeeze(1)
        derivatives = torch.func.vmap(torch.func.jacrev(lambda a: Soft()(a[None])[0]))(scores)
        norms = derivatives.norm(dim=(-2, -1))
        means[f"gradient at {size}"] = float(norms.mean())
        shares[f"share below 0.01 at {size}"] = float((norms < 0.01).double().mean())
        weights = Soft()(scores)
        formula = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
        error = max(error, largest(derivatives - formula))
    return means | shares | {"error of the formula": error}


CLAIM = Claim(
    key="A.12",
    quote="Large scores saturate the softmax, whose gradient then vanishes.",
    experiment="500 queries and 16 keys each, with components of mean 0 and variance 1: norm of "
    "db/da, the derivatives of the weights b for the scores a, over the size d of the keys, by "
    "autograd and by its formula diag(b) - b b^T.",
    sabotage="The scale 1 / sqrt(d) is removed from the arm that has it.",
    sabotaged=("scaled",),
    run=run,
    arms=("unscaled", "scaled"),
    x_name="size d of queries and keys",
    remark="Shown for random queries and keys. The unscaled mean at 1024 comes from the few "
    "queries whose two best scores are close.",
    hypotheses=(
        Difference(measure="gradient at 1024", more="scaled", less="unscaled", margin=0.1),
        Difference(measure="gradient at 64", more="scaled", less="unscaled", margin=0.05),
        Bound(measure="error of the formula", arm="scaled", at_most=EXACT),
    ),
    controls=(Bound(measure="gradient at 4", arm="unscaled", at_least=0.1),),
)
