"""Loss of a model on evaluation data, and log p of detected sets."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import EncodedPairs, TokenBatches
from regard.models.model import Model
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import EmptyAnswerError
from regard.system.progress import track


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def loss_per_token(model: Model, pairs: EncodedPairs) -> float:
    """Return the mean of -log p over target tokens, EOS included, in nats; needs eval mode."""
    longest = max(max(pair) for pair in pairs.lengths)
    batches = TokenBatches(pairs, batch_tokens=max(4096, longest), seed=0)
    plan = track(batches.plan(0), "texts (loss)", len(pairs))
    return mean_nll(model, (batches.collate(0, indices) for indices in plan))


@torch.no_grad()
def mean_nll(model: Model, batches: Iterable[Any]) -> float:
    """Return the mean of -log p over the predictions of batches, in nats; needs eval mode."""
    total, count = 0.0, 0
    for batch in batches:
        loss = model.loss(batch.to(device_of(model)))
        total, count = total + float(loss.nll), count + loss.count
    return total / count


def set_log_prob(
    predictions: SetPredictions, elements: Iterable[tuple[int, int]], noun: str
) -> Tensor:
    """Return the sum of log p of elements of one row, given as (query, class).

    noun:   for an element in messages, such as "box".
    Raises: EmptyAnswerError if there is none.
    """
    pairs = torch.tensor(list(elements), device=predictions.logits.device)
    if not len(pairs):
        raise EmptyAnswerError(
            f"no {noun} is detected in it, so there is no probability to differentiate: a lower "
            "threshold (a setting of the run) detects more"
        )
    return nn.functional.logsigmoid(predictions.logits[0].float())[pairs[:, 0], pairs[:, 1]].sum()
