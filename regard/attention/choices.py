"""Choices: from the scores of a query's keys to the weights of its read.

    Soft(beta)   weight_j = exp(beta a_j) / sum_i exp(beta a_i)     softargmax with inverse temperature beta

A row with no key to see has zero weights, in every choice: the read gives zeros and no gradient, never NaN.

Source: lectures, A (soft attention: weights >= 0 that sum to one).
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.masks import can_look_at

__all__ = ["Choice", "Soft"]


class Choice(nn.Module, ABC):
    """Weights from scores."""

    @abstractmethod
    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Weights (..., query, key) of scores; `allowed` broadcasts to them, None allows all."""

    def forward(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "... query key"]:
        """`weights`."""
        return self.weights(scores, allowed)


@final
class Soft(Choice):
    """weight_j = exp(beta a_j) / sum_i exp(beta a_i); beta > 0 is an inverse temperature. (lectures, A)

    beta: a number; or a tensor that broadcasts to (..., query, 1), such as (head, 1, 1) for a beta a head or what a
          network gives for each query (the key strength of graves2014); with learn=True it is where learning starts.
    Parameters: log_beta, if learnt: a beta that learns stays positive.
    Raises: ValueError if a beta is not positive and finite, or a tensor of it tells keys apart.
    """

    def __init__(self, beta: float | Tensor = 1.0, *, learn: bool = False):
        super().__init__()
        if isinstance(beta, Tensor):
            _check_tensor(beta)
        elif not (0 < beta < float("inf")):
            raise ValueError(f"beta must be a positive number, but is {beta}")
        self._given = None if learn else beta
        self.log_beta = nn.Parameter(torch.as_tensor(beta, dtype=torch.float32).log()) if learn else None

    @property
    def beta(self) -> float | Tensor:
        """The inverse temperature."""
        if self.log_beta is not None:
            return self.log_beta.exp()
        assert self._given is not None
        return self._given

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Softmax over the keys; torch sums in float32 whatever the dtype of the scores."""
        beta = self.beta
        if isinstance(beta, Tensor):
            scores = scores * beta.to(scores.dtype)
        elif beta != 1:
            scores = scores * beta
        if allowed is None:
            return scores.softmax(-1)
        # Closed rows are opened before the softmax: afterwards the NaN would already be in the gradient.
        # The mask is added as a small tensor that broadcasts: filling is six times slower on the CPU.
        closed = ~allowed.any(-1, keepdim=True)
        barrier = torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~(allowed | closed), float("-inf"))
        return (scores + barrier).softmax(-1) * ~closed

    def extra_repr(self) -> str:
        """Beta, and whether it learns."""
        if self.log_beta is not None:
            return f"beta={self.log_beta.detach().exp().tolist()}, learn=True"
        return f"beta={tuple(self._given.shape) if isinstance(self._given, Tensor) else self._given}"


def _check_tensor(beta: Tensor) -> None:
    if not beta.is_floating_point():
        raise TypeError(f"beta must be floating point, but has dtype {beta.dtype}")
    if beta.dim() > 0 and beta.shape[-1] != 1:
        raise ValueError(f"beta must broadcast to (..., query, 1), but has shape {tuple(beta.shape)}")
    if can_look_at(beta) and not bool(((beta > 0) & beta.isfinite()).all()):
        raise ValueError(f"beta must be positive and finite everywhere, but goes from {beta.min()} to {beta.max()}")
