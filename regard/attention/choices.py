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
        """Softmax over the keys, in float32 at least: a sum of many small terms needs the digits."""
        if scores.dtype in (torch.float16, torch.bfloat16):
            return self.weights(scores.float(), allowed).to(scores.dtype)
        if self.beta != 1:
            scores = scores * self.beta
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        # Closed rows are opened before the softmax: afterwards the NaN would already be in the gradient.
        # They are looked for in the scores, as a bias of minus infinity closes a row as well.
        closed = (scores == float("-inf")).all(-1, keepdim=True)
        return scores.masked_fill(closed, 0.0).softmax(-1).masked_fill(closed, 0.0)

    def __repr__(self) -> str:
        return f"Soft(beta={self.beta})"

