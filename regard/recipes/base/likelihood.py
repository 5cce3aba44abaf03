"""Differentiable log-probability of a detected set: the sum of log p of its elements, each by its query."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import EmptyAnswerError


def set_log_prob(predictions: SetPredictions, elements: Iterable[tuple[int, int]], noun: str) -> Tensor:
    """Return the sum of log p of elements of one row, given as (query, class).

    noun:   for an element in messages, such as "box".
    Raises: EmptyAnswerError if there is none.
    """
    pairs = torch.tensor(list(elements), device=predictions.logits.device)
    if not len(pairs):
        raise EmptyAnswerError(
            f"no {noun} is detected in it, so there is no probability to differentiate: a lower threshold (a setting "
            "of the run) detects more"
        )
    return nn.functional.logsigmoid(predictions.logits[0].float())[pairs[:, 0], pairs[:, 1]].sum()
