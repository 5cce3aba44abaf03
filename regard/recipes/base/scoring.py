"""Loss of a model on evaluation data, log p of given texts, and log p of detected sets."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, TokenBatches, pad, plan_by_length
from regard.models.model import Model
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.answers import TextScore, text_score
from regard.recipes.base.recipe import EmptyAnswerError, Example
from regard.system.progress import track

COSTS_AT_ONCE = 2048
"""Maximum number of padded tokens of a batch of `token_costs`, each with all of its logits."""


class TeacherInputs(NamedTuple):
    """Ids of a source (None without one) and of a target, as the model reads them."""

    source: Sequence[int] | None
    target: Sequence[int]
    unknown: int = 0
    """Number of unknown tokens of a given text."""


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


@torch.no_grad()
def token_costs(model: Model, source: Padded | None, target: Padded) -> NDArray[np.float64]:
    """Return -log p of the tokens of targets but the first of each, row by row, in nats."""
    costs = model.writer.costs(model.hidden(source, target), target).to("cpu")
    is_token = torch.arange(costs.items.shape[1]) < costs.lengths[:, None]
    return costs.items[is_token].double().numpy()


@torch.no_grad()
def score_texts(model: Model, texts: Sequence[Example]) -> list[TextScore]:
    """Return the log-probability of each text, whose rows are `TeacherInputs`: that of all tokens
    but the first of each row. Needs eval mode."""
    rows: list[TeacherInputs] = [row for text in texts for row in text.rows]
    lengths = [max(len(row.source or ()), len(row.target)) for row in rows]
    order = [i for i in range(len(rows)) if len(rows[i].target) > 1]
    order.sort(key=lengths.__getitem__)
    log_probs, device = [0.0] * len(rows), device_of(model)
    for part in plan_by_length([lengths[i] for i in order], COSTS_AT_ONCE):
        indices = order[part.start : part.stop]
        target = pad([rows[i].target for i in indices]).to(device)
        source, sources = None, [rows[i].source for i in indices]
        if sources[0] is not None:
            source = pad([own or () for own in sources]).to(device)
        costs = token_costs(model, source, target)
        ends = np.cumsum([len(rows[i].target) - 1 for i in indices])
        for i, own in zip(indices, np.split(costs, ends[:-1]), strict=True):
            log_probs[i] = -float(own.sum())
    rest, scores = iter(log_probs), []
    for text in texts:
        log_prob = math.fsum(next(rest) for _ in text.rows)
        tokens = sum(len(row.target) - 1 for row in text.rows)
        scores.append(text_score(log_prob, tokens, sum(row.unknown for row in text.rows)))
    return scores


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
