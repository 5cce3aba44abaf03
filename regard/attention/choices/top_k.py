"""Selection of a few keys per query, and top-k attention.

    weight_j = exp(beta a_j) / sum_{i in S} exp(beta a_i) for j in S, else 0
               S: the k keys with the largest a

Of equal scores, the first keys are selected.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import Allowed, Pairs, check_integer
from regard.attention.choices.base import Choice, Soft, mask_scores

BLOCK = 64
"""Keys per block: below 64 the maximum over blocks is no faster than a plain scan."""


def best_keys(scores: Pairs, k: int) -> Int[Tensor, "... query selected"]:
    """Return the different indices (..., query, min(k, key)) of the k best keys.

    Cost: one pass over the scores if key is at least 256 k, then O(64 k) per query; otherwise a few
          passes.
    """
    num_keys = scores.shape[-1]
    if torch.compiler.is_exporting():  # without a condition on the number of keys
        first = torch.arange(torch.sym_min(k, num_keys), device=scores.device)
        return scores.sort(dim=-1, descending=True, stable=True).indices.index_select(-1, first)
    num_blocks = num_keys // BLOCK
    if num_blocks < 4 * k:
        return _best(scores, min(k, num_keys))
    in_blocks = num_blocks * BLOCK
    largest = scores[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK)).amax(-1)
    # In the order of the keys, so that ties go to the first.
    blocks = _best(largest, k).sort(-1).values
    offsets = torch.arange(BLOCK, device=scores.device)
    candidates = (blocks.unsqueeze(-1) * BLOCK + offsets).flatten(-2)  # (..., query, k * BLOCK)
    if in_blocks < num_keys:
        rest = torch.arange(in_blocks, num_keys, device=scores.device)
        candidates = torch.cat((candidates, rest.expand(*candidates.shape[:-1], -1)), -1)
    return candidates.gather(-1, _best(scores.gather(-1, candidates), k))


class SelectedKeys(NamedTuple):
    """Selected keys of each query, and their weights."""

    index: Tensor
    """(..., query, selected) int64: indices of the keys, all different within a query."""
    weight: Tensor
    """(..., query, selected): weight of each; zeros where a query may attend to fewer keys."""
    soft_weights: Tensor | None = None
    """(..., query, key): soft weights whose gradient replaces that of the selection."""
    log_prob: Tensor | None = None
    """(..., query): log-probability of the selection, if it was sampled and may need a gradient."""


class KeySelection(Choice, ABC):
    """Base class of choices that give weight to at most k keys per query."""

    k: int

    @abstractmethod
    def select_keys(self, scores: Pairs, allowed: Allowed) -> SelectedKeys:
        """Select keys and compute their weights, of scores with at least one key."""

    def accumulate_log_prob(self, log_prob: Float[Tensor, "..."] | None) -> None:
        """Take the log-probabilities of all selections of a read."""

    def weights(self, scores: Pairs, allowed: Allowed) -> Pairs:
        if scores.shape[-1] == 0:
            return scores
        selected = self.select_keys(scores, allowed)
        self.accumulate_log_prob(selected.log_prob)
        weights = torch.zeros_like(scores).scatter(-1, selected.index, selected.weight)
        if selected.soft_weights is None:
            return weights
        # The difference is zero: only its gradient counts.
        return weights + (selected.soft_weights - selected.soft_weights.detach())


@final
class TopK(KeySelection):
    """weight = softmax(beta a) over the k best keys, 0 for the others.

    k:    at least 1; queries with fewer allowed keys read all of them, and k >= key is Soft.
    beta: inverse temperature, as in Soft; learned with learn=True.
    Gradients flow through the selected keys only.
    """

    def __init__(self, k: int, *, beta: float | Tensor = 1.0, learn: bool = False):
        super().__init__()
        check_integer("k", k, 1)
        self.k = k
        self.soft = Soft(beta, learn=learn)

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        self.soft.check(leading, num_queries)

    def select_keys(self, scores: Pairs, allowed: Allowed) -> SelectedKeys:
        masked_scores = scores if allowed is None else mask_scores(scores, allowed)
        index = best_keys(masked_scores.detach(), self.k)
        if allowed is not None:
            allowed = allowed.expand(scores.shape).gather(-1, index)
        return SelectedKeys(index, self.soft(scores.gather(-1, index), allowed))

    def tile(self, first: int, last: int) -> "TopK":
        return TopK(self.k, beta=self.soft.tile(first, last).beta)

    def extra_repr(self) -> str:
        return f"k={self.k}"


def _best(scores: Tensor, k: int) -> Tensor:
    if k == 1:
        return scores.argmax(-1, keepdim=True)
    if k == scores.shape[-1]:
        return torch.arange(k, device=scores.device).expand(scores.shape)
    top = scores.topk(k)
    # All keys above the smallest selected score are in; of those equal to it, the first ones fill
    # the rest.
    edge = top.values[..., -1:]
    above = ~(top.values <= edge)  # NaN counts as the largest, so that it shows in the output
    # Number of scores so far that equal the smallest.
    count = (scores == edge).cumsum(-1, dtype=torch.int32)
    rank = torch.arange(1, k + 1, device=scores.device, dtype=torch.int32)
    rank = rank - above.sum(-1, keepdim=True)
    first = torch.searchsorted(count, rank.to(torch.int32).clamp(min=1))
    first = first.clamp(max=scores.shape[-1] - 1)  # no number equals NaN
    return torch.where(above, top.indices, first)
