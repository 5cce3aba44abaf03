"""Choices: from the scores of a query's keys to the weights of its read.

    Soft(beta)   weight_j = exp(beta a_j) / sum_i exp(beta a_i)     softargmax with inverse temperature beta

A row with no key to see has zero weights, in every choice: the read gives zeros and no gradient, never NaN.

Source: lectures, A (soft attention: weights >= 0 that sum to one).
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["Choice", "Soft"]


class Choice(ABC):
    """Weights from scores."""

    @abstractmethod
    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Weights (..., query, key) of scores; `allowed` broadcasts to them, None allows all."""


@final
class Soft(Choice):
    """weight_j = exp(beta a_j) / sum_i exp(beta a_i); beta > 0 is an inverse temperature. (lectures, A)

    Raises: ValueError if beta is not a positive number.
    """

    def __init__(self, beta: float = 1.0):
        if not (0 < beta < float("inf")):
            raise ValueError(f"beta must be a positive number, but is {beta}")
        self.beta = beta

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Softmax over the keys; torch sums in float32 whatever the dtype of the scores."""
        if self.beta != 1:
            scores = scores * self.beta
        if allowed is None:
            return scores.softmax(-1)
        # Closed rows are opened before the softmax: afterwards the NaN would already be in the gradient.
        # The mask is added as a small tensor that broadcasts: filling is six times slower on the CPU.
        closed = ~allowed.any(-1, keepdim=True)
        barrier = torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~(allowed | closed), float("-inf"))
        return (scores + barrier).softmax(-1) * ~closed

    def __repr__(self) -> str:
        return f"Soft(beta={self.beta})"
