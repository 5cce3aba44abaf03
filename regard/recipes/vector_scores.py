"""How good the answers of one vector an input are: a class, several labels, numbers.

accuracy   = 100 * inputs whose likeliest class is right / all
nll        = mean of -log p(what is right), nats
F1         = 2 TP / (2 TP + FP + FN), percent; macro: mean over the classes or labels; micro: of all counts together
exact      = 100 * inputs of which every label is right / all
AP         = sum over thresholds of (recall - recall before) * precision; mean over the labels that occur, percent
R^2        = 1 - sum (y - y')^2 / sum (y' - mean of y')^2

A label is said if its probability is at least a half.

Source: manning2008, sections 8.3 (F1), 8.4 (average precision) and 13.6 (micro and macro).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.classifier import Classifier

SAID = 0.5
"""The probability from which on a label is said to be there."""
_TINY = 1e-38


@torch.no_grad()
def measured(model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Answers (rows, ...) and right targets (rows, ...) of all rows, in the order of their indices."""
    assert isinstance(model, Classifier)
    device = next(model.parameters()).device
    answers, right, order = [], [], []
    for given in batches:
        batch = given.to(device)
        answers.append(model(batch.source).cpu())
        right.append(batch.target.cpu())
        order += batch.indices
    back = torch.tensor(order).argsort()
    return torch.cat(answers)[back], torch.cat(right)[back]


def class_scores(probabilities: Tensor, right: Tensor) -> dict[str, float]:
    """Accuracy, macro F1 and nll, of probabilities (rows, classes) and right classes (rows,)."""
    said, classes = probabilities.argmax(-1), probabilities.shape[1]
    hits, *sizes = (part.bincount(minlength=classes) for part in (right[said == right], said, right))
    return {
        "accuracy": 100 * (said == right).double().mean().item(),
        "macro_f1": _mean(_f1s(hits, sizes[0] + sizes[1])),
        "nll": -probabilities.gather(1, right[:, None]).clamp(min=_TINY).log().mean().item(),
    }


def label_scores(probabilities: Tensor, right: Tensor) -> dict[str, float]:
    """Micro and macro F1, exact match, mean average precision and nll, of (rows, labels) both."""
    said, there = probabilities >= SAID, right.bool()
    precisions = [
        average_precision(*column) for column in zip(probabilities.T, there.T, strict=True) if column[1].any()
    ]
    likelihood = torch.where(there, probabilities, 1 - probabilities).double().clamp(min=_TINY)
    return {
        "micro_f1": _mean(_f1s(*_counts(said.reshape(-1, 1), there.reshape(-1, 1)))),
        "macro_f1": _mean(_f1s(*_counts(said, there))),
        "exact": 100 * (said == there).all(-1).double().mean().item(),
        "average_precision": _mean(precisions),
        "nll": -likelihood.log().sum(-1).mean().item(),
    }


def average_precision(scores: Tensor, there: Tensor) -> float:
    """Of one label, in percent: scores (rows,) and whether it is there (rows,); equal scores are one threshold."""
    scores, order = scores.sort(descending=True)
    found = there[order].double().cumsum(0)
    last = torch.cat((scores[1:] != scores[:-1], torch.tensor([True])))  # of each threshold, the last row
    found, said = found[last], last.nonzero().squeeze(1).double() + 1
    recall = found / found[-1]
    before = torch.cat((torch.zeros(1, dtype=recall.dtype), recall[:-1]))
    return 100 * float(((recall - before) * found / said).sum())


def number_scores(numbers: Tensor, right: Tensor) -> dict[str, float]:
    """Mean absolute error, root mean squared error and R^2, of (rows, numbers) both, over all numbers.

    R^2 is the mean of each number's; it is left out where the right ones do not vary.
    """
    off, right = numbers.double() - right.double(), right.double()
    found = {"mae": off.abs().mean().item(), "rmse": off.square().mean().sqrt().item()}
    spread = (right - right.mean(0)).square().sum(0)
    if (spread > 0).all():
        found["r2"] = float((1 - off.square().sum(0) / spread).mean())
    return found


def _counts(said: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """TP, and 2 TP + FP + FN, of each column."""
    return (said & there).sum(0), said.sum(0) + there.sum(0)


def _f1s(hits: Tensor, sizes: Tensor) -> list[float]:
    """Of each, in percent; none of one that neither is nor is said anywhere."""
    return [200 * hit / size for hit, size in zip(hits.tolist(), sizes.tolist(), strict=True) if size]


def _mean(values: list[float]) -> float:
    """The mean; all is right where there was nothing to find, and nothing said."""
    return math.fsum(values) / len(values) if values else 100.0
