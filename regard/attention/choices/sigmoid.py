"""Sigmoid attention: the weight of a key depends on its own score, and not on the other keys."""

from typing import final

import torch
from torch import Tensor

from regard.attention.axes import Allowed, Pairs
from regard.attention.choices.base import Choice, Soft
from regard.compat.torch import run_pre_hooks


@final
class Sigmoid(Choice):
    """weight_j = 1 / (1 + n exp(-beta a_j)), the sigmoid of beta a_j - log n. (ramapuram2025, 2)

    n is the number of keys that the query may read, so that the weights of scores around zero sum
    to about one, whatever their number; in the paper n is the length of the sequence.

    beta: factor of the scores, as in Soft, but the same for all queries.
    """

    def __init__(self, *, beta: float | Tensor = 1.0, learn: bool = False):
        super().__init__()
        self.soft = Soft(beta, learn=learn)

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        self.soft.check(leading, num_queries)

    def weights(self, scores: Pairs, allowed: Allowed) -> Pairs:
        run_pre_hooks(self.soft, scores)
        scores = self.soft.scale_scores(scores)
        if allowed is None:
            return torch.sigmoid(scores - (scores.new_ones(()) * scores.shape[-1]).log())
        allowed = allowed.expand(*allowed.shape[:-1], scores.shape[-1])
        count = allowed.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
        return torch.sigmoid(scores - count.log()).masked_fill(~allowed, 0.0)
