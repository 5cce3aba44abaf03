"""Hard attention: each query reads one key.

    weight_j = 1 if j = argmax_i a_i, else 0          ||weight||_0 = 1; of equal scores the first

The argmax has no gradient, so training needs one that stands in for it. Three are known, chosen by name (T is the
temperature, g_j = -log(-log u_j) Gumbel noise of uniform u_j):

    straight-through   reads argmax_j a_j;           gradient of softmax(a / T)                          bengio2013
    gumbel             reads argmax_j (a_j + g_j);   gradient of softmax((a + g) / T)                    jang2017
    reinforce          reads j ~ softmax(a / T);     (cost - baseline) grad log softmax(a / T)_j         williams1992

The last two draw from torch's generator in training and read argmax_j a_j in evaluation. The first two are biased
and need nothing more; the third is unbiased, and needs to be told what the read has cost: see `reinforce`.

Source: lectures, A (hard attention); xu2015, section 4.1 (a caption's words each look at one place of the image).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.best import best_keys
from regard.attention.choices import Few, Picked, Soft, hide

GRADIENTS = ("straight-through", "gumbel", "reinforce")
"""What may stand in for the gradient of the argmax."""


@final
class Hard(Few):
    """weight = 1 for the best key, 0 for the others. (lectures, A; the table above)

    gradient:    "straight-through", "gumbel" or "reinforce".
    temperature: T > 0 of the softmax whose gradient is used, and from which "reinforce" draws. Small T makes that
                 softmax resemble the read, and its gradient vanish or vary more.
    Random:      masked keys are never drawn. The numbers are drawn query by query, so every kernel draws the same
                 ones on a CPU, however it cuts the read into tiles.
    Gradient:    of the first order only, and values get theirs from the key that was read. With "reinforce" in
                 evaluation, scores get none.
    Raises:      ValueError for another gradient, or a temperature that is not positive and finite.
    """

    def __init__(self, gradient: str = "straight-through", *, temperature: float = 1.0):
        super().__init__()
        if gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, but is {gradient!r}")
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, but is {temperature}")
        self.gradient = gradient
        self.temperature = temperature
        self.soft = Soft(1 / temperature)
        self._listener: Sampled | None = None

    @property
    def num_kept(self) -> int:
        """One key a query."""
        return 1

    @property
    def draws(self) -> bool:
        """In training, unless the gradient is straight-through."""
        return self.training and self.gradient != "straight-through"

    def pick(self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None) -> Picked:
        """The best key, or the one that is drawn."""
        if self.draws and self.gradient == "reinforce":
            return self._drawn(scores, allowed)
        dtype = scores.dtype
        if self.draws:
            wide = torch.promote_types(dtype, torch.float32)
            uniform = _uniform(scores, scores.shape[-1], wide).clamp(min=torch.finfo(wide).tiny)
            scores = scores.to(wide) - torch.log(-torch.log(uniform))
        open_scores = (scores if allowed is None else hide(scores, allowed)).detach()
        index = best_keys(open_scores, 1)
        share = _share(open_scores.gather(-1, index), allowed).to(dtype)
        slope = None
        if self.gradient != "reinforce" and _may_want_gradient(scores):
            slope = self.soft.weights(scores, allowed).to(dtype)
        return Picked(index, share, slope)

    def settle(self, log_prob: Float[Tensor, "..."] | None) -> None:
        """Hand the log-probabilities of a read's picks to whoever listens.

        Raises: ValueError if scores want a gradient and nobody listens: they would silently get none.
        """
        if log_prob is None:
            return
        if self._listener is not None:
            self._listener.log_probs.append(log_prob)
        elif log_prob.requires_grad:
            raise ValueError(
                "Hard(gradient='reinforce') must run in training inside `with reinforce(model) as sampled`, but did "
                "not: the scores would get no gradient; detach them, or call .eval(), if they should not"
            )

    def extra_repr(self) -> str:
        """Gradient and temperature."""
        return f"gradient={self.gradient!r}, temperature={self.temperature}"

    def _drawn(self, scores: Tensor, allowed: Tensor | None) -> Picked:
        """Key j with probability softmax(a / T)_j, by one uniform number a query."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        probabilities = self.soft.weights(scores.detach().to(wide), allowed)
        total = probabilities.cumsum(-1)  # (..., query, key)
        # Below the last total, so that rounding cannot lead past the last key that may be read.
        mark = _uniform(scores, 1, wide) * total[..., -1:]
        mark = torch.minimum(mark, torch.nextafter(total[..., -1:], torch.zeros_like(mark)))
        index = (total <= mark).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
        share = (total[..., -1:] != 0).to(scores.dtype)  # closed rows have no probability at all
        share = torch.where(total[..., -1:].isnan(), float("nan"), share)
        if not torch.is_grad_enabled():
            return Picked(index, share)
        soft = self.soft.scaled(scores.to(wide))
        if allowed is not None:
            soft = hide(soft, allowed | (share == 0))
        log_prob = soft.gather(-1, index) - soft.logsumexp(-1, keepdim=True)
        return Picked(index, share, log_prob=(log_prob * (share != 0)).squeeze(-1))


@final
class Sampled:
    """What the choices of a model drew inside `reinforce`, in the order of its reads."""

    def __init__(self) -> None:
        self.log_probs: list[Tensor] = []
        """(..., query) of each read: the log-probability of what each query drew; 0 where it may see no key."""

    def surrogate(
        self, cost: Float[Tensor, "*rows"], *, baseline: Float[Tensor, "*rows"] | float = 0.0
    ) -> Float[Tensor, "*rows"]:
        """Add this to a cost, and the gradient of the sum is an unbiased one of the expected cost. (williams1992)

            surrogate = (cost - baseline) (L - L')      L = sum of a row's log-probabilities, L' the same number
            grad E[cost] = E[grad cost + (cost - baseline) grad L]

        Its value is zero, so `(cost + sampled.surrogate(cost)).mean()` has the value of `cost.mean()`. A cost is to be
        made small: of a reward, give the negative. A baseline changes no expectation and, near the cost, makes the
        estimator vary less; it may depend on anything but on what was drawn in its own row (xu2015 take a moving
        average of past costs). Neither gets a gradient from here.

        Shapes:  cost (), (batch,) or more leading axes of the reads: log-probabilities of all further axes (heads,
                 queries), and of all reads, are added up.
        Raises:  ValueError if nothing was drawn, or a read does not begin with the axes of the cost.
        """
        if not self.log_probs:
            raise ValueError(
                "nothing was drawn: no Hard(gradient='reinforce') ran in training, with gradients, inside the context"
            )
        rows = cost.shape
        total = torch.zeros_like(cost)
        for log_prob in self.log_probs:
            if log_prob.shape[: len(rows)] != rows:
                raise ValueError(
                    f"cost must have the first axes of every read, but has shape {tuple(rows)} and a read "
                    f"(..., query) has {tuple(log_prob.shape)}"
                )
            total = total + log_prob.flatten(len(rows)).sum(-1) if log_prob.dim() > len(rows) else total + log_prob
        advantage = cost.detach() - (baseline.detach() if isinstance(baseline, Tensor) else baseline)
        return advantage * (total - total.detach())


@contextmanager
def reinforce(model: nn.Module) -> Iterator[Sampled]:
    """Listen to what every `Hard(gradient="reinforce")` inside `model` draws, until the context ends.

        with reinforce(model) as sampled:
            cost = model.loss_of_each_row(batch)                              # (batch,)
        (cost + sampled.surrogate(cost, baseline=moving_average)).mean().backward()

    Reads without gradients (torch.no_grad) are not listened to. Of two contexts, the inner one listens.
    Raises: ValueError if the model has no such choice.
    """
    choices = [module for module in model.modules() if isinstance(module, Hard) and module.gradient == "reinforce"]
    if not choices:
        raise ValueError(f"model must have a Hard(gradient='reinforce') inside, but {type(model).__name__} has none")
    sampled = Sampled()
    before = [choice._listener for choice in choices]
    for choice in choices:
        choice._listener = sampled
    try:
        yield sampled
    finally:
        for choice, listener in zip(choices, before, strict=True):
            choice._listener = listener


def _share(best: Tensor, allowed: Tensor | None) -> Tensor:
    """One, but zero where no key is allowed, and NaN where the best score is not finite: a spoilt row must look it.

    An infinite score is one that left the range of its dtype: the keys that are beyond it can no longer be told apart.
    """
    spoilt = ~best.isfinite()
    if allowed is None:
        return torch.where(spoilt, float("nan"), torch.ones_like(best))
    closed = ~allowed.any(-1, keepdim=True)
    return torch.where(spoilt & ~closed, float("nan"), (~closed).to(best.dtype).expand_as(best))


def _uniform(scores: Tensor, num_numbers: int, dtype: torch.dtype) -> Tensor:
    """Uniform numbers (..., query, number), drawn query by query: the tiles of a read go on where the last ended."""
    shape = (scores.shape[-2], *scores.shape[:-2], num_numbers)
    return torch.rand(shape, dtype=dtype, device=scores.device).movedim(0, -2)


def _may_want_gradient(scores: Tensor) -> bool:
    if not torch.is_grad_enabled():
        return False
    # Inside torch.func, requires_grad tells of the innermost transform alone; while compiling, it is to be trusted.
    return scores.requires_grad or (
        not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
    )
