"""Differentiable log-probabilities of answers (regard.look.measures).

    class     log p of the most likely class           labels    sum of log p of the predicted labels
    a set     sum of log p of the predicted elements, each by its query

Numbers and positions have no probability.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import EmptyAnswerError
from regard.recipes.metrics.vectors import LABEL_THRESHOLD
from regard.recipes.targets.base import Target
from regard.recipes.targets.labels import LabelsTarget


def answer_log_prob(target: Target, answers: Tensor) -> Tensor:
    """Return log p of the predicted class or labels of one row. Raises EmptyAnswerError if no label is predicted."""
    if not isinstance(target, LabelsTarget):
        return answers[0].max().log()
    predicted = answers[0] >= LABEL_THRESHOLD
    if not predicted.any():
        raise EmptyAnswerError("no label is predicted for it, so there is no probability to differentiate")
    return answers[0][predicted].log().sum()


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
