"""Metrics of classification, multi-label classification and regression.

accuracy   = 100 * inputs whose most likely class is correct / all
nll        = mean of -log p(target), nats
ECE        = sum over bins of |n_hits - sum of p| / n, percent: p is the probability of the most
             likely class; 15 bins of p of equal width, closed above; n_hits of a bin: its inputs
             whose most likely class is correct (expected calibration error)
F1         = 2 TP / (2 TP + FP + FN), percent; macro: mean over classes or labels; micro: of sums
exact      = 100 * inputs with all labels correct / all
AP         = sum over thresholds of (recall - previous recall) * precision, percent; mean over
             the labels that occur
R^2        = 1 - sum (y - y')^2 / sum (y' - mean of y')^2

coverage   = 100 * inputs whose most likely class has a probability of at least a threshold / all;
             answered accuracy: the accuracy of these

A label is predicted if its probability is at least a threshold, by default 0.5.

Source: manning2008, sections 8.3 (F1), 8.4 (average precision) and 13.6 (micro and macro); ECE
        guo2017, section 2.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.recipes.metrics.counts import count_scores

MAX_CONFUSION = 100
"""Largest number of classes of a confusion matrix."""
LABEL_THRESHOLD = 0.5
"""Lowest probability of a predicted label, by default."""
_BINS = 15
_TINY = 1e-38


@torch.no_grad()
def predict_all(model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Return answers (rows, ...) and targets (rows, ...) of all batches, by index."""
    device = next(model.parameters()).device
    answers, targets, order = [], [], []
    for batch in batches:
        answers.append(model(batch.to(device).source).cpu())
        targets.append(batch.target)
        order += batch.indices
    back = torch.tensor(order).argsort()
    return torch.cat(answers)[back], torch.cat(targets)[back]


def class_scores(
    probabilities: Tensor, target: Tensor, names: Sequence[str], *, threshold: float | None = None
) -> dict[str, Any]:
    """Return accuracy, macro F1, nll, ECE, the metrics of each class, and the confusion matrix.

    With a threshold, also coverage and the accuracy of the answered, if there are any.

    Shapes: probabilities (rows, classes), target (rows,). confusion[i][j]: number of examples of
            class i that are predicted as j.
    """
    predicted, count = probabilities.argmax(-1), len(names)
    confusion = (target * count + predicted).bincount(minlength=count * count).view(count, count)
    hits, present, found = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    scores: dict[str, Any] = {
        "accuracy": 100 * (predicted == target).double().mean().item(),
        "macro_f1": _mean(_f1s(hits, found + present)),
        "nll": -probabilities.gather(1, target[:, None]).clamp(min=_TINY).log().mean().item(),
        "ece": calibration_error(probabilities, target),
        "classes": count_scores(names, hits.tolist(), found.tolist(), present.tolist()),
    }
    if threshold is not None:
        is_answered = probabilities.max(-1).values >= threshold
        scores["coverage"] = 100 * is_answered.double().mean().item()
        if is_answered.any():
            is_hit = (predicted == target)[is_answered]
            scores["answered_accuracy"] = 100 * is_hit.double().mean().item()
    if count <= MAX_CONFUSION:
        scores["confusion"] = confusion.tolist()
    return scores


def calibration_error(probabilities: Tensor, target: Tensor) -> float:
    """Return the ECE in percent of probabilities (rows, classes) for classes (rows,)."""
    confidence, predicted = probabilities.double().max(-1)
    index = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
    gaps = torch.zeros(_BINS, dtype=confidence.dtype)
    gaps.index_add_(0, index, (predicted == target).double() - confidence)
    return 100 * gaps.abs().sum().item() / len(target)


def label_scores(
    probabilities: Tensor,
    target: Tensor,
    names: Sequence[str],
    *,
    threshold: float = LABEL_THRESHOLD,
) -> dict[str, Any]:
    """Return micro and macro F1, exact match, mean AP and nll of labels (rows, labels).

    Also precision, recall and F1 of each label. AP is left out if no label occurs.
    """
    predicted, present = probabilities >= threshold, target.bool()
    hits, found, count = (predicted & present).sum(0), predicted.sum(0), present.sum(0)
    precisions = []
    for scores, is_present in zip(probabilities.T, present.T, strict=True):
        if is_present.any():
            precisions.append(average_precision(scores, is_present))
    likelihood = torch.where(present, probabilities, 1 - probabilities).double().clamp(min=_TINY)
    average = {"average_precision": _mean(precisions)} if precisions else {}
    return average | {
        "micro_f1": _mean(_f1s(hits.sum()[None], (found + count).sum()[None])),
        "macro_f1": _mean(_f1s(hits, found + count)),
        "exact_match": 100 * (predicted == present).all(-1).double().mean().item(),
        "nll": -likelihood.log().sum(-1).mean().item(),
        "classes": count_scores(names, hits.tolist(), found.tolist(), count.tolist()),
    }


def average_precision(scores: Tensor, present: Tensor) -> float:
    """Return the average precision of a label in percent from scores (rows,), presence (rows,).

    Equal scores are one threshold.
    """
    scores, order = scores.sort(descending=True)
    hits = present[order].double().cumsum(0)
    # The last row of each threshold.
    last = torch.cat((scores[1:] != scores[:-1], torch.tensor([True])))
    hits, count = hits[last], last.nonzero().squeeze(1).double() + 1
    recall = hits / hits[-1]
    before = torch.cat((torch.zeros(1, dtype=recall.dtype), recall[:-1]))
    return 100 * float(((recall - before) * hits / count).sum())


def number_scores(numbers: Tensor, target: Tensor) -> dict[str, float]:
    """Return mean absolute error, root mean squared error and R^2 of all (rows, numbers).

    R^2 is averaged over the columns; it is left out if a column of the targets is constant.
    """
    error, target = numbers.double() - target.double(), target.double()
    scores = {"mae": error.abs().mean().item(), "rmse": error.square().mean().sqrt().item()}
    spread = (target - target.mean(0)).square().sum(0)
    if (spread > 0).all():
        scores["r2"] = float((1 - error.square().sum(0) / spread).mean())
    return scores


def _f1s(hits: Tensor, sizes: Tensor) -> list[float]:
    """Return F1 in percent of each label that is present or predicted anywhere."""
    pairs = zip(hits.tolist(), sizes.tolist(), strict=True)
    return [200 * hit / size for hit, size in pairs if size]


def _mean(values: list[float]) -> float:
    """Return the mean; 100 if there was nothing to predict and nothing was predicted."""
    return math.fsum(values) / len(values) if values else 100.0
