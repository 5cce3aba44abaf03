"""Four readings of a mask that multiplies with 0, against removing the later items."""

import torch
from torch import Tensor

from regard.attention.attend import attention_weights
from regard.attention.masks import causal
from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest


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
    """Return the difference of a reading from a decoder that has no later items."""
    queries, items = torch.randn(2, 6, 4, dtype=torch.float64).mul(1.5)
    weights, error = masked_weights(queries, items, trial), 0.0
    for position, query in enumerate(queries):
        seen = items[: position + 1]
        alone = (seen @ query / 2).softmax(0) @ seen
        error = max(error, largest(weights[position] @ items - alone))
    return {"error": error, "error of the sums": largest(weights.sum(1) - 1)}


CLAIM = Claim(
    key="C.10",
    quote='Deck 003 masks "by multiplying with 0"',
    experiment="Weights of 6 queries for 6 items by four readings of the sentence: error of the "
    "outputs against those for only the items up to the query's own, and of the sums of weights.",
    sabotage="The mask of -infinity hides nothing.",
    sabotaged=("scores -infinity",),
    run=run,
    arms=("weights x 0", "scores x 0", "weights x 0, rescaled", "scores -infinity"),
    remark="Neither product alone is a mask: the other weights no longer sum to one, or a score of "
    "0 still has a weight. Weights x 0, divided by their new sum, equal those of -infinity.",
    hypotheses=(
        Bound(measure="error", arm="weights x 0", at_most=EXACT),
        Bound(measure="error", arm="scores x 0", at_most=EXACT),
        Bound(measure="error", arm="weights x 0, rescaled", at_most=EXACT),
    ),
    controls=(Bound(measure="error", arm="scores -infinity", at_most=EXACT),),
)
