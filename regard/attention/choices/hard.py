"""Hard attention: each query reads exactly one key.

    weight_j = 1 if j = argmax_i a_i, else 0          ||weight||_0 = 1; of equal scores the first

The argmax has no gradient, so training of the scores needs a gradient estimator, selected by name
(T is the temperature, g_j = -log(-log u_j) Gumbel noise of uniform u_j):

    none               reads argmax_j a_j;           no gradient of the scores
    straight-through   reads argmax_j a_j;           gradient of softmax(a / T)         bengio2013
    gumbel             reads argmax_j (a_j + g_j);   gradient of softmax((a + g) / T)   jang2017
    reinforce          reads j ~ softmax(a / T);     (cost - baseline) grad log softmax(a / T)_j
                                                                                        williams1992

The last two sample from torch's generator in training and read argmax_j a_j in evaluation.
straight-through and gumbel are biased and need nothing else; reinforce is unbiased, and needs the
cost of each row: see `reinforce`.

Source: lectures, A.4; xu2015, section 4.1 (each word of a caption attends to one location of the
        image).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import Allowed, Pairs
from regard.attention.choices.base import Soft, mask_scores
from regard.attention.choices.top_k import KeySelection, SelectedKeys, best_keys
from regard.compat.torch import is_transformed

GRADIENTS = ("none", "straight-through", "gumbel", "reinforce")
"""Gradient estimators for the argmax."""


@final
class Hard(KeySelection):
    """weight = 1 for the best key, 0 for the others. (lectures, A.4)

    gradient:    "straight-through", "gumbel", "reinforce", or "none": the argmax as it is.
    temperature: T > 0 of the softmax whose gradient is used, and from which "reinforce" samples.
                 With a small T the softmax is closer to the argmax, but its gradient vanishes or
                 has a higher variance. Not with "none", which has no softmax.
    Random:      masked keys are never sampled. Random numbers are drawn query by query, so on a CPU
                 every kernel draws the same ones, however it tiles the read.
    Gradient:    first order only; values get the gradient of the key that was read. Scores get
                 none with "none", and with "reinforce" in evaluation.
    Raises:      ValueError for an unknown gradient, or a temperature that is not positive and
                 finite, or has no effect.
    """

    k = 1

    def __init__(self, gradient: str = "straight-through", *, temperature: float = 1.0):
        super().__init__()
        if gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        if gradient == "none" and temperature != 1:
            raise ValueError(f"temperature must be 1 with gradient='none', got {temperature}")
        self.gradient = gradient
        self.temperature = temperature
        self.soft = Soft(1 / temperature)
        self._samples: ReinforceSamples | None = None

    @property
    def is_random(self) -> bool:
        return self.training and self.gradient in ("gumbel", "reinforce")

    def select_keys(self, scores: Pairs, allowed: Allowed) -> SelectedKeys:
        if self.is_random and self.gradient == "reinforce":
            return self._sample(scores, allowed)
        dtype = scores.dtype
        if self.is_random:
            wide = torch.promote_types(dtype, torch.float32)
            uniform = _uniform(scores, scores.shape[-1], wide).clamp(min=torch.finfo(wide).tiny)
            scores = scores.to(wide) - torch.log(-torch.log(uniform))
        masked_scores = (scores if allowed is None else mask_scores(scores, allowed)).detach()
        index = best_keys(masked_scores, 1)
        weight = torch.ones_like(index, dtype=dtype)
        if allowed is not None:  # zero for fully masked rows
            weight = weight * allowed.any(-1, keepdim=True)
        weight = weight.masked_fill(masked_scores.gather(-1, index).isnan(), float("nan"))
        soft_weights = None
        # Inside torch.func, requires_grad only refers to the innermost transform.
        needs_gradient = torch.is_grad_enabled() and (
            scores.requires_grad or (not torch.compiler.is_compiling() and is_transformed())
        )
        if self.gradient in ("straight-through", "gumbel") and needs_gradient:
            soft_weights = self.soft.weights(scores, allowed).to(dtype)
        return SelectedKeys(index, weight, soft_weights)

    def accumulate_log_prob(self, log_prob: Float[Tensor, "..."] | None) -> None:
        """Append the log-probabilities of a read to the samples of the `reinforce` context.

        Raises: ValueError outside of one if the scores require a gradient: they would get none.
        """
        if log_prob is None:
            return
        if self._samples is not None:
            self._samples.log_probs.append(log_prob)
            self._samples.choices.append(self)
        elif log_prob.requires_grad:
            raise ValueError("Hard(gradient='reinforce') must run inside `with reinforce(model)`")

    def extra_repr(self) -> str:
        return f"gradient={self.gradient!r}, temperature={self.temperature}"

    def _sample(self, scores: Tensor, allowed: Tensor | None) -> SelectedKeys:
        """Sample key j with probability softmax(a / T)_j (inverse CDF)."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        probabilities = self.soft.weights(scores.detach().to(wide), allowed)
        total = probabilities.cumsum(-1)  # (..., query, key)
        # Below the last total, so that rounding cannot select a key after the last allowed one.
        threshold = _uniform(scores, 1, wide) * total[..., -1:]
        below = torch.nextafter(total[..., -1:], torch.zeros_like(threshold))
        threshold = torch.minimum(threshold, below)
        index = (total <= threshold).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
        # Fully masked rows have probability zero everywhere.
        weight = (total[..., -1:] != 0).to(scores.dtype)
        weight = weight.masked_fill(total[..., -1:].isnan(), float("nan"))
        if not torch.is_grad_enabled():
            return SelectedKeys(index, weight)
        soft = self.soft.scale_scores(scores.to(wide))
        if allowed is not None:
            soft = mask_scores(soft, allowed | (weight == 0))
        log_prob = soft.gather(-1, index) - soft.logsumexp(-1, keepdim=True)
        return SelectedKeys(index, weight, log_prob=(log_prob * (weight != 0)).squeeze(-1))


@final
class ReinforceSamples:
    """Log-probabilities of the keys sampled inside a `reinforce` context."""

    def __init__(self) -> None:
        self.log_probs: list[Tensor] = []
        """(..., query) for each read: of the key of each query; 0 in fully masked rows."""
        self.choices: list[Hard] = []
        """The choice that sampled, for each read."""

    def surrogate(
        self, cost: Float[Tensor, "*rows"], *, baseline: Float[Tensor, "*rows"] | float = 0.0
    ) -> Float[Tensor, "*rows"]:
        """Return a surrogate loss, whose gradient makes that of the cost unbiased. (williams1992)

            surrogate    = (cost - baseline) (L - L')      L: log-probability of a row, L' detached
            grad E[cost] = E[grad cost + (cost - baseline) grad L]

        Its value is zero, so `(cost + samples.surrogate(cost)).mean()` has the value of
        `cost.mean()`. The cost is minimized: pass the negative of a reward. A baseline does not
        change the expectation; close to the cost, it reduces the variance. It may depend on
        anything but the samples of its own row (xu2015 use a moving average of past costs). Neither
        cost nor baseline gets a gradient from here.

        Shapes:  cost (), (batch,) or more leading axes of the reads: log-probabilities of all
                 further axes (heads, queries), and of all reads, are summed.
        Raises:  ValueError if nothing was sampled, or a read does not begin with the axes of the
                 cost.
        """
        if not self.log_probs:
            raise ValueError("nothing was sampled in training, with gradients")
        rows = cost.shape
        total = torch.zeros_like(cost)
        for log_prob in self.log_probs:
            if log_prob.shape[: len(rows)] != rows:
                shapes = f"{tuple(rows)} for a read {tuple(log_prob.shape)}"
                raise ValueError(f"cost must have the first axes of every read, got {shapes}")
            has_more_axes = log_prob.dim() > len(rows)
            total = total + (log_prob.flatten(len(rows)).sum(-1) if has_more_axes else log_prob)
        if isinstance(baseline, Tensor):
            baseline = baseline.detach()
        return (cost.detach() - baseline) * (total - total.detach())


def sampling_choices(model: nn.Module) -> list[Hard]:
    """Return every `Hard(gradient="reinforce")` inside `model`."""
    choices = [module for module in model.modules() if isinstance(module, Hard)]
    return [choice for choice in choices if choice.gradient == "reinforce"]


@contextmanager
def reinforce(model: nn.Module) -> Iterator[ReinforceSamples]:
    """Collect the samples of every `Hard(gradient="reinforce")` inside `model`.

        with reinforce(model) as samples:
            cost = model.loss_of_each_row(batch)                              # (batch,)
        (cost + samples.surrogate(cost, baseline=moving_average)).mean().backward()

    Reads without gradients (torch.no_grad) are not collected. Of nested contexts, the inner one
    collects.
    Raises: ValueError if the model has no such choice.
    """
    choices = sampling_choices(model)
    if not choices:
        raise ValueError("model must contain a Hard(gradient='reinforce'), got none")
    samples = ReinforceSamples()
    outer = [choice._samples for choice in choices]
    for choice in choices:
        choice._samples = samples
    try:
        yield samples
    finally:
        for choice, previous in zip(choices, outer, strict=True):
            choice._samples = previous


def _uniform(scores: Tensor, num_numbers: int, dtype: torch.dtype) -> Tensor:
    """Draw uniform numbers (..., query, number), query by query, so that tiles draw the same."""
    shape = (scores.shape[-2], *scores.shape[:-2], num_numbers)
    return torch.rand(shape, dtype=dtype, device=scores.device).movedim(0, -2)
