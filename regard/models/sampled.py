"""Gradient of sampled keys (hard attention trained by REINFORCE), added to the loss of a model.

    L         = sum over rows and predictions of the cost c_t
    surrogate = sum over the sampled keys k of A_k (log p_k - stop_gradient(log p_k))        value 0
    A_k       = sum over the predictions t that k can change of (c_t - b_t)
    b_t       = mean of c_t over the other rows of the batch that have a prediction t; 0 if there
              are none

so that grad E[L] = E[grad L + grad surrogate]: the second term is the score function estimator. The
key that a decoder samples at step t changes the predictions from t on, keys sampled in the encoder
change all of their row. A row's baseline does not depend on its own samples, so that it only
reduces the variance. xu2015 have a moving average as baseline, and add the entropy of the weights.

Source: williams1992; xu2015, section 4.1; costs that a sample can change schulman2015, theorem 1;
baseline of the other samples kool2019.
"""

import torch
from torch import Tensor, nn

from regard.attention.choices import Choice, ReinforceSamples
from regard.attention.masks import Padded
from regard.layers.read import INPUT_AFTER_STATE, Read

_STEPS = {"output", "decoder input", INPUT_AFTER_STATE}
"""Axes of queries (Role.queries) that are the steps of a decoder."""


def step_wise_choices(model: nn.Module) -> set[Choice]:
    """Return the choices of the reads whose queries are the steps of a decoder."""
    reads = [module for module in model.modules() if isinstance(module, Read)]
    return {read.choice for read in reads if read.role is not None and read.role.queries in _STEPS}


def advantages(costs: Padded) -> Tensor:
    """Return c_t - b_t (rows, predictions), summed over this and the later predictions."""
    absent = torch.arange(costs.items.shape[1], device=costs.items.device) >= costs.lengths[:, None]
    own = costs.items.masked_fill(absent, 0)
    others = (~absent).sum(0) - 1
    difference = own - (own.sum(0) - own) / others.clamp(min=1)
    return difference.masked_fill(absent, 0).flip(1).cumsum(1).flip(1)


def surrogate(samples: ReinforceSamples, costs: Padded, step_wise: set[Choice]) -> Tensor:
    """Return the surrogate of all sampled keys for the cost of each prediction (rows, predictions).

    step_wise: choices that sampled at the steps of a decoder, the last at the last prediction.
               Those of further reads before the first step, such as that of an initial state,
               change every prediction.
    """
    by_choice: dict[Choice, list[Tensor]] = {}
    for choice, log_prob in zip(samples.choices, samples.log_probs, strict=True):
        by_choice.setdefault(choice, []).append(
            log_prob.flatten(1, -2).sum(1) if log_prob.dim() > 2 else log_prob
        )
    advantage = advantages(costs)
    total = advantage.new_zeros(())
    for choice, log_probs in by_choice.items():
        log_prob = torch.cat(log_probs, -1)  # (rows, queries)
        count, steps = log_prob.shape[1], advantage.shape[1]
        of_queries = advantage[:, :1]
        if choice in step_wise:
            before = of_queries.expand(-1, max(0, count - steps))
            of_queries = torch.cat((before, advantage), 1)[:, -count:]
        total = total + (of_queries * (log_prob - log_prob.detach())).sum()
    return total
