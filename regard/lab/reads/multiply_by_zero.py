"""Causal weights of 6 random queries for 6 items, by four readings of the sentence on masks: times
0 after the softmax, before it, or after it and divided by the new sum; or scores of -infinity."""

import torch
from torch import Tensor

from regard.attention.attend import attention_weights
from regard.attention.masks import causal
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest

PRODUCTS = ("weights x 0", "scores x 0", "weights x 0, rescaled")


def masked_weights(queries: Tensor, items: Tensor, trial: Trial) -> Tensor:
    """Return the weights (query, key) by one of the readings."""
    if trial.arm == "scores -infinity":
        mask = None if trial.sabotage else causal()
        return attention_weights(queries, (items, items), mask=mask)
    scores, allowed = queries @ items.T / 2, torch.ones(6, 6, dtype=items.dtype).tril()
    if trial.arm == "scores x 0":
        return (scores * allowed).softmax(1)
    weights = scores.softmax(1) * allowed
    return weights / weights.sum(1, keepdim=True) if "rescaled" in trial.arm else weights


def run(trial: Trial) -> Numbers:
    """Return the error against reads of only the items up to the query's own, and of the sums."""
    queries, items = torch.randn(2, 6, 4, dtype=torch.float64).mul(1.5)
    weights, error = masked_weights(queries, items, trial), 0.0
    for position, query in enumerate(queries):
        seen = items[: position + 1]
        alone = (seen @ query / 2).softmax(0) @ seen
        error = max(error, largest(weights[position] @ items - alone))
    return {"error": error, "error of the sums": largest(weights.sum(1) - 1)}


CLAIM = Claim(
    entry=("C.10", 'Deck 003 masks "by multiplying with 0"'),
    sabotage={"scores -infinity": "hides nothing"},
    arms=(*PRODUCTS, "scores -infinity"),
    remark="By arithmetic, only weights x 0 divided by their new sum equal those of -infinity.",
    hypotheses=[Bound("error", arm, at_most=EXACT) for arm in PRODUCTS],
    controls=(Bound("error", "scores -infinity", at_most=EXACT),),
)
