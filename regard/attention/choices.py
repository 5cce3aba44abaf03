"""Choices: from the scores of a query's keys to the weights of its read.

    Soft(beta)     weight_j = exp(beta a_j) / sum_i exp(beta a_i)     softargmax with inverse temperature beta
    Hard()         weight_j = 1 for the best j, 0 for the others      (regard.attention.hard)
    Sparse(alpha)  the alpha-entmax: exact zeros, more as alpha grows (regard.attention.sparse)
    TopK(k)        Soft over the k best keys                          (regard.attention.sparse)

A row with no key to see has zero weights, in every choice: the read gives zeros and no gradient, never NaN.

Source: lectures, A (soft attention: weights >= 0 that sum to one; hard attention: one key).
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.axes import can_look_at


class Choice(nn.Module, ABC):
    """Weights from scores."""

    @property
    def draws(self) -> bool:
        """Whether the weights, as the module is set now, depend on random numbers."""
        return False

    def tile(self, first: int, last: int) -> "Choice":
        """The same choice for the queries first .. last - 1 of a read alone; itself if all queries choose alike."""
        return self

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        """Raise ValueError unless it can choose for so many queries of a read of these leading axes."""

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
          Its axes line up from the right, as those of parameters do.
    Parameters: log_beta, if learned: a beta that learns stays positive.
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

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        """Raise ValueError unless beta broadcasts to the rows of the scores."""
        beta = self._given if self.log_beta is None else self.log_beta
        if not isinstance(beta, Tensor):
            return
        sizes, rows = tuple(beta.shape), (*leading, num_queries, 1)
        fits = all(size in (1, row) for size, row in zip(sizes[::-1], rows[::-1], strict=False))
        if len(sizes) > len(rows) or not fits:
            raise ValueError(f"beta must broadcast to the rows {rows} of this read, but has shape {sizes}")

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Softmax over the keys; torch sums in float32 whatever the dtype of the scores."""
        scores = self.scaled(scores)
        if allowed is None:
            return scores.softmax(-1)
        # Closed rows are opened before the softmax: afterwards the NaN would already be in the gradient.
        closed = ~allowed.any(-1, keepdim=True)
        return hide(scores, allowed | closed).softmax(-1) * ~closed

    def scaled(self, scores: Float[Tensor, "... query key"]) -> Float[Tensor, "... query key"]:
        """beta a."""
        beta = self.beta
        if isinstance(beta, Tensor):
            return scores * beta.to(scores.dtype)
        return scores if beta == 1 else scores * beta

    def tile(self, first: int, last: int) -> "Soft":
        """Those rows of a beta that is told for each query."""
        beta = self.beta
        if not isinstance(beta, Tensor) or beta.dim() < 2 or beta.shape[-2] == 1:
            return self
        return Soft(beta[..., first:last, :])

    def extra_repr(self) -> str:
        """Beta, and whether it learns."""
        if self.log_beta is not None:
            return f"beta={self.log_beta.detach().exp().tolist()}, learn=True"
        return f"beta={tuple(self._given.shape) if isinstance(self._given, Tensor) else self._given}"


class Picked(NamedTuple):
    """What a query reads when it reads only a few keys."""

    index: Tensor
    """(..., query, kept) int64: which keys; those of one query differ."""
    share: Tensor
    """(..., query, kept): the weight of each; zeros where a query may see fewer keys."""
    slope: Tensor | None = None
    """(..., query, key): soft weights whose gradient stands in for that of the pick, which has none."""
    log_prob: Tensor | None = None
    """(..., query): log-probability of the pick, if it was drawn and something may want its gradient."""


class Few(Choice):
    """A choice of at most k keys a query, all other weights zero: a kernel may gather what it picks."""

    @property
    @abstractmethod
    def num_kept(self) -> int:
        """k, at most so many keys a query."""

    @abstractmethod
    def pick(self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None) -> Picked:
        """Keys and their shares, of scores with at least one key."""

    def settle(self, log_prob: Float[Tensor, "..."] | None) -> None:
        """Called once a read with the log-probabilities of all its picks, for choices that learn from them."""

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """The shares at their keys, zeros elsewhere."""
        if scores.shape[-1] == 0:
            return scores
        picked = self.pick(scores, allowed)
        self.settle(picked.log_prob)
        weights = torch.zeros_like(scores).scatter(-1, picked.index, picked.share)
        if picked.slope is None:
            return weights
        return weights + (picked.slope - picked.slope.detach())  # exactly zero: only its gradient counts


def hide(scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."]) -> Float[Tensor, "... query key"]:
    """The scores, -inf where they are not allowed."""
    # The mask is added as a small tensor that broadcasts: filling is six times slower on the CPU.
    return scores + torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~allowed, float("-inf"))


def _check_tensor(beta: Tensor) -> None:
    if not beta.is_floating_point():
        raise TypeError(f"beta must be floating point, but has dtype {beta.dtype}")
    if beta.dim() > 0 and beta.shape[-1] != 1:
        raise ValueError(f"beta must broadcast to (..., query, 1), but has shape {tuple(beta.shape)}")
    if can_look_at(beta) and not bool(((beta > 0) & beta.isfinite()).all()):
        raise ValueError(f"beta must be positive and finite everywhere, but goes from {beta.min()} to {beta.max()}")
