"""Inputs to classes: how good a classifier is, and its answers; shared by the recipes that end in a class.

accuracy = 100 * inputs whose likeliest class is right / all
nll      = mean of -log p(right class), nats
macro F1 = mean over the classes of 2 TP / (2 TP + FP + FN), percent
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.classifier import Classifier

__all__ = ["Answer", "measured", "ranked", "report", "samples"]

_SAMPLES = 5


class Answer(NamedTuple):
    """A class and its probability."""

    text: str
    score: float


@torch.no_grad()
def measured(model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Probabilities (rows, classes) and right classes (rows,) of all rows, in the order of their indices."""
    assert isinstance(model, Classifier)
    device = next(model.parameters()).device
    probabilities, right, order = [], [], []
    for given in batches:
        batch = given.to(device)
        probabilities.append(model(batch.source).cpu())
        right.append(batch.target.cpu())
        order += batch.indices
    back = torch.tensor(order).argsort()
    return torch.cat(probabilities)[back], torch.cat(right)[back]


def report(probabilities: Tensor, right: Tensor) -> dict[str, float]:
    """Accuracy, macro F1 and nll."""
    said = probabilities.argmax(-1)
    nll = -probabilities.gather(1, right[:, None]).clamp(min=1e-38).log().mean().item()
    scores = []
    for number in range(probabilities.shape[1]):
        hit = int(((said == number) & (right == number)).sum())
        wrong = int((said == number).sum()) + int((right == number).sum())
        if wrong:
            scores.append(2 * hit / wrong)
    return {
        "accuracy": 100 * (said == right).double().mean().item(),
        "macro_f1": 100 * math.fsum(scores) / len(scores),
        "nll": nll,
    }


def ranked(probabilities: Tensor, names: Sequence[str], n_best: int) -> list[list[Answer]]:
    """The likeliest classes of each row, best first."""
    values, numbers = probabilities.topk(min(n_best, len(names)), dim=-1)
    rows = zip(values.tolist(), numbers.tolist(), strict=True)
    return [[Answer(names[i], value) for value, i in zip(*row, strict=True)] for row in rows]


def samples(inputs: Sequence[str], probabilities: Tensor, right: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    """A few inputs with what was said of them."""
    said = probabilities.argmax(-1).tolist()
    rows = zip(inputs[:_SAMPLES], said, right.tolist(), strict=False)
    return [{"source": text, "output": names[i], "reference": names[j]} for text, i, j in rows]
