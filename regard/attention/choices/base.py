"""Base class of choices, the formula that fused kernels support, and soft attention.

A fully masked row has zero weights with every choice: the read gives zeros and no gradient, never
NaN.

Source: lectures, A.3 (soft attention: weights >= 0 that sum to one).
"""

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention.axes import Allowed, Pairs, is_inspectable


class SoftmaxForm(NamedTuple):
    """Formula of a choice: weight_j = e_j / (e_sink + sum_i e_i), e_j = exp(beta a_j).

    beta, sink: a number, or a tensor that broadcasts to (..., query, 1), aligned from the right.
    """

    beta: float | Tensor = 1.0
    sink: float | Tensor | None = None
    """Score of one more key, whose value is zero; None: there is no such key."""


class Choice(nn.Module):
    """Base class of choices, which turn scores into attention weights.

    A subclass defines `weights`, or `form`, from which they follow, so that fused kernels compute
    them.
    Raises: TypeError for a class outside of this package that defines both, which may differ.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        weights, form = cls.weights, cls.form
        modules = {weights.__module__.split(".")[0], form.__module__.split(".")[0]}
        if weights is not Choice.weights and form is not Choice.form and modules != {"regard"}:
            raise TypeError(f"choice {cls.__name__} must define weights or form, not both")

    @property
    def is_random(self) -> bool:
        """True if the weights depend on random numbers, in the current mode."""
        return False

    def tile(self, first: int, last: int) -> "Choice":
        """Return the choice for queries first .. last - 1 of a read."""
        return self

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        """Raise ValueError unless the tensors of the form fit a read of this shape."""
        form, rows = self.form() or SoftmaxForm(), (*leading, num_queries, 1)
        for name, value in zip(form._fields, form, strict=True):
            if not isinstance(value, Tensor):
                continue
            sizes = tuple(value.shape)
            fits = all(size in (1, row) for size, row in zip(sizes[::-1], rows[::-1], strict=False))
            if len(sizes) > len(rows) or not fits:
                raise ValueError(f"{name} must broadcast to the rows {rows}, got shape {sizes}")

    def form(self) -> SoftmaxForm | None:
        """Return the formula of the weights for fused kernels; None if they support none of it."""
        return None

    def weights(self, scores: Pairs, allowed: Allowed) -> Pairs:
        """Return weights (..., query, key) of scores; `allowed` is the mask, None allows all.

        The mask broadcasts: an axis of it may have size 1. By default computed from `form`.
        """
        form = self.form()
        if form is None:
            raise TypeError(
                f"{type(self).__name__} must define weights(scores, allowed), or a form"
            )
        if form.sink is None:
            return _softmax(_scale(scores, form.beta), allowed)
        sink = form.sink if isinstance(form.sink, Tensor) else scores.new_full((), form.sink)
        columns = scores, sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
        if allowed is not None:
            allowed = pad(allowed.expand(*allowed.shape[:-1], scores.shape[-1]), (0, 1), value=True)
        return _softmax(_scale(torch.cat(columns, -1), form.beta), allowed)[..., :-1]

    def forward(self, scores: Pairs, allowed: Allowed = None) -> Pairs:
        return self.weights(scores, allowed)


@final
class Soft(Choice):
    """weight_j = exp(beta a_j) / sum_i exp(beta a_i). (lectures, A.5)

    With beta = 0 all keys have the same weight; for large beta the largest score has all of it.

    beta: inverse temperature: a number, at least 0; or a tensor that broadcasts to (..., query, 1),
          such as (head, 1, 1) for one beta per head or the output of a network for each query (the
          key strength of graves2014), aligned from the right; with learn=True, the initial value.
    Parameters: log_beta, if learned: so beta stays positive; (1) for a number.
    Raises: ValueError if beta is negative or not finite, or 0 and learned, or differs between keys.
    """

    def __init__(self, beta: float | Tensor = 1.0, *, learn: bool = False):
        super().__init__()
        if isinstance(beta, Tensor):
            if not beta.is_floating_point():
                raise TypeError(f"beta must be floating point, got dtype {beta.dtype}")
            if beta.dim() > 0 and beta.shape[-1] != 1:
                shape = tuple(beta.shape)
                raise ValueError(f"beta must broadcast to (..., query, 1), got shape {shape}")
            if is_inspectable(beta) and not bool(((beta >= 0) & beta.isfinite()).all()):
                raise ValueError("beta must be at least 0 and finite")
        elif not isinstance(beta, int | float) or not 0 <= beta < float("inf"):
            raise ValueError(f"beta must be at least 0 and finite, or a tensor, got {beta!r}")
        if learn and not isinstance(beta, Tensor) and not beta:
            raise ValueError("a learned beta must start above 0, got 0")
        self._fixed_beta = beta
        self.log_beta = None
        if learn:
            log_beta = torch.as_tensor(beta, dtype=torch.float32).log()
            self.log_beta = nn.Parameter(torch.atleast_1d(log_beta))  # FSDP shards an axis

    @property
    def beta(self) -> float | Tensor:
        return self._fixed_beta if self.log_beta is None else self.log_beta.exp()

    def form(self) -> SoftmaxForm:
        return SoftmaxForm(self.beta)

    def scale_scores(self, scores: Pairs) -> Pairs:
        return _scale(scores, self.beta)

    def tile(self, first: int, last: int) -> "Soft":
        beta = self.beta
        if not isinstance(beta, Tensor) or beta.dim() < 2 or beta.shape[-2] == 1:
            return self
        return Soft(beta[..., first:last, :])

    def extra_repr(self) -> str:
        if self.log_beta is not None:
            return f"beta={self.log_beta.detach().exp().tolist()}, learn=True"
        beta = self._fixed_beta
        return f"beta={tuple(beta.shape) if isinstance(beta, Tensor) else beta}"


def _scale(scores: Pairs, beta: float | Tensor) -> Pairs:
    if isinstance(beta, Tensor):
        return scores * beta.to(scores.dtype)
    return scores if beta == 1 else scores * beta


def _softmax(scores: Pairs, allowed: Allowed) -> Pairs:
    if allowed is None:
        return scores.softmax(-1)
    # Fully masked rows are unmasked: after the softmax NaN would already be in the gradient.
    masked = ~allowed.any(-1, keepdim=True)
    return mask_scores(scores, allowed | masked).softmax(-1) * ~masked


def mask_scores(scores: Pairs, allowed: Bool[Tensor, "..."]) -> Pairs:
    """Return the scores, -inf where they are not allowed."""
    # The mask is added as a small tensor: masked_fill of the scores is six times slower on a CPU.
    added = torch.zeros_like(allowed, dtype=scores.dtype)
    return scores + added.masked_fill_(~allowed, float("-inf"))
