"""Weights proportional to scores >= 0, without a softmax: the choice of linear attention."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import Allowed, Pairs, widen
from regard.attention.choices.base import Choice
from regard.attention.scores.features import check_not_negative

_SCALE = 2.0**-64


@final
class Proportional(Choice):
    """weight_j = a_j / sum_i a_i over the allowed keys; zero if the scores of a row are zero.

    For non-negative scores, such as products of features. Scores that underflow their dtype (below
    6e-8 in float16) are zero.
    Raises: ValueError for a negative score, on a CPU.
    Source: katharopoulos2020, equation 3 (with sim = score).
    """

    def weights(self, scores: Pairs, allowed: Allowed) -> Pairs:
        if allowed is not None:
            scores = torch.where(allowed, scores, 0.0)
        check_not_negative("scores for Proportional", scores)
        parts = widen(scores)
        # Where the sum of a row overflows, its scores are scaled by a power of two.
        parts = torch.where(parts.sum(-1, keepdim=True).isinf(), parts * _SCALE, parts)
        return divide(parts, parts.sum(-1, keepdim=True)).to(scores.dtype)


def divide(
    parts: Float[Tensor, "... item"], total: Float[Tensor, "... 1"]
) -> Float[Tensor, "... item"]:
    """Compute parts / total: zeros without a gradient where the total is zero."""
    return parts / total.masked_fill(total.isinf(), math.nan).masked_fill(total == 0, math.inf)
