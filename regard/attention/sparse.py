"""Choices whose weights are exactly zero for most keys.

    Sparse(alpha)   weight = argmax over shares p of <p, a> + H_alpha(p)      alpha-entmax; alpha = 2 is sparsemax
                    weight_j = [(alpha - 1) a_j - tau]_+^(1 / (alpha - 1))    tau such that they sum to one
    TopK(k)         weight = softmax over the k best scores, 0 for the others

H_alpha(p) = sum_j (p_j - p_j^alpha) / (alpha (alpha - 1)) is Tsallis' entropy: Shannon's as alpha tends to 1, where
the choice is softmax; Gini's at alpha = 2; none as alpha grows, where the choice tends to Hard. Sparse decides from
the scores how many keys it reads, TopK is told.

Source: martins2016 (sparsemax: definition 1, algorithm 1), peters2019 (entmax: equation 10; gradient: proposition 2).
"""

import math
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.best import best_keys
from regard.attention.choices import Choice, Few, Picked, Soft, hide


@final
class Sparse(Choice):
    """weight = entmax_alpha(beta a): zeros for all keys that score too far below the best. (peters2019)

    alpha: at least 1: 1 softmax, 1.5 half-way, 2 sparsemax, and sparser still above.
    beta:  the inverse temperature, as Soft's, learned with learn=True.
    Cost:  a sort of the scores at alpha = 1.5 and 2, a bisection of some 30 (float32) or 60 (float64) rounds at other
           alphas. Raises ValueError if alpha is below 1 or not finite, and for a beta that Soft refuses.
    """

    def __init__(self, alpha: float = 2.0, *, beta: float | Tensor = 1.0, learn: bool = False):
        super().__init__()
        _check_alpha(alpha)
        self.alpha = alpha
        self.soft = Soft(beta, learn=learn)

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        """Raise ValueError unless beta broadcasts to the rows of the scores."""
        self.soft.check(leading, num_queries)

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """entmax over the keys, computed in float32 where scores are coarser."""
        if self.alpha == 1:
            return self.soft.weights(scores, allowed)
        scores = self.soft.scaled(scores)
        if allowed is None:
            return entmax(scores, alpha=self.alpha)
        closed = ~allowed.any(-1, keepdim=True)
        return entmax(hide(scores, allowed | closed), alpha=self.alpha) * ~closed

    def tile(self, first: int, last: int) -> "Sparse":
        """Those rows of a beta that is told for each query."""
        tiled = Sparse(self.alpha)
        tiled.soft = self.soft.tile(first, last)
        return tiled

    def extra_repr(self) -> str:
        """Alpha (beta is the submodule's)."""
        return f"alpha={self.alpha}"


@final
class TopK(Few):
    """weight = softmax(beta a) over the k best keys, 0 for the others; of equal scores the first are kept.

    k:    at least 1; queries that may see fewer keys read all of those, and k >= key is Soft.
    beta: the inverse temperature, as Soft's, learned with learn=True.
    Gradient through the kept keys alone. Raises ValueError if k is below 1, and for a beta that Soft refuses.
    """

    def __init__(self, k: int, *, beta: float | Tensor = 1.0, learn: bool = False):
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, but is {k}")
        self.k = k
        self.soft = Soft(beta, learn=learn)

    @property
    def num_kept(self) -> int:
        """k."""
        return self.k

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        """Raise ValueError unless beta broadcasts to the rows of the scores."""
        self.soft.check(leading, num_queries)

    def pick(self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None) -> Picked:
        """The k best keys, and Soft over their scores."""
        open_scores = scores if allowed is None else hide(scores, allowed)
        index = best_keys(open_scores.detach(), self.k)
        kept = None if allowed is None else allowed.expand(scores.shape).gather(-1, index)
        return Picked(index, self.soft.weights(scores.gather(-1, index), kept))

    def tile(self, first: int, last: int) -> "TopK":
        """Those rows of a beta that is told for each query."""
        tiled = TopK(self.k)
        tiled.soft = self.soft.tile(first, last)
        return tiled

    def extra_repr(self) -> str:
        """K (beta is the submodule's)."""
        return f"k={self.k}"


def entmax(scores: Float[Tensor, "... key"], *, alpha: float) -> Float[Tensor, "... key"]:
    """p_j = [(alpha - 1) a_j - tau]_+^(1 / (alpha - 1)) along the last axis; scores of -inf get exactly zero.

    Each row needs one finite score. The gradient is the closed form: with s_j = p_j^(2 - alpha) where p_j > 0, else 0,
    d<p, g>/da_j = s_j (g_j - <s, g> / sum s); above alpha = 2 it has no bound as a key leaves the support.
    Raises: ValueError if alpha is not in (1, inf). Source: peters2019, equation 10 and proposition 2.
    """
    _check_alpha(alpha)
    if alpha == 1:
        return scores.softmax(-1)
    if scores.shape[-1] == 0:
        return scores
    wide = torch.promote_types(scores.dtype, torch.float32)
    return _Entmax.apply(scores.to(wide), alpha).to(scores.dtype)  # pyrefly: ignore


class _Entmax(torch.autograd.Function):
    # No jvp: torch.compile refuses functions that have one.
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        # Scaled, and from the best score downwards. No key below -1 is in the support; with them at -1 rather than
        # -inf, sums stay finite and small, and lose no digits.
        scaled = ((alpha - 1) * (scores - scores.amax(-1, keepdim=True))).clamp(min=-1)
        if alpha == 2:
            return (scaled - _sparsemax_threshold(scaled)).clamp(min=0)
        if alpha == 1.5:
            return (scaled - _half_way_threshold(scaled)).clamp(min=0).square()
        return _bisected(scaled, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sloped(ctx.saved_tensors[0], gradient, ctx.alpha), None


def _sloped(shares: Tensor, vector: Tensor, alpha: float) -> Tensor:
    """The Jacobian times a vector: s_j (g_j - <s, g> / sum s)."""
    held = shares > 0
    slope = torch.where(held, shares, 1.0).pow(2 - alpha) * held
    if alpha > 2:
        # Slopes grow without bound as a share tends to zero. The vector relative to its number at the steepest key
        # keeps the mean exact where that key alone makes it.
        slope = slope.clamp(max=torch.finfo(slope.dtype).max / (4 * slope.shape[-1]))
        vector = vector - vector.gather(-1, slope.argmax(-1, keepdim=True))
    mean = (slope / slope.sum(-1, keepdim=True) * vector).sum(-1, keepdim=True)
    return slope * (vector - mean)


def _sparsemax_threshold(scaled: Tensor) -> Tensor:
    """tau of alpha = 2: the mean of the kept scores, less 1 / (how many are kept). (martins2016, algorithm 1)"""
    ordered = scaled.sort(-1, descending=True).values
    number = torch.arange(1, scaled.shape[-1] + 1, dtype=scaled.dtype, device=scaled.device)
    thresholds = (ordered.cumsum(-1) - 1) / number  # if the first 1, 2, 3 ... are kept
    return _last_that_holds(thresholds, ordered)


def _half_way_threshold(scaled: Tensor) -> Tensor:
    """tau of alpha = 1.5: the root of sum_j (x_j - tau)^2 = 1 over the kept scores. (peters2019, algorithm 2)"""
    ordered = scaled.sort(-1, descending=True).values
    number = torch.arange(1, scaled.shape[-1] + 1, dtype=scaled.dtype, device=scaled.device)
    mean = ordered.cumsum(-1) / number
    spread = ordered.square().cumsum(-1) / number - mean.square()  # the variance of the kept scores
    return _last_that_holds(mean - (1 / number - spread).clamp(min=0).sqrt(), ordered)


def _last_that_holds(thresholds: Tensor, ordered: Tensor) -> Tensor:
    """The threshold of the largest support whose every score is above its threshold; at least -1, the lowest."""
    size = (thresholds < ordered).sum(-1, keepdim=True).clamp(min=1)
    return thresholds.gather(-1, size - 1).clamp(min=-1)


def _bisected(scaled: Tensor, alpha: float) -> Tensor:
    """Shares q (1 + x_j q^(1 - alpha))_+^(1 / (alpha - 1)) at the root in t of their sum = 1; q = e^-t.

    q is the share of the best key: 1 if it is read alone, 1 / n of n equal ones; tau = -q^(alpha - 1) could be too
    small a number, however, for so large an alpha.
    """
    largest = math.log(torch.finfo(scaled.dtype).max) - 1

    def shares_at(t: Tensor) -> Tensor:
        steep = ((alpha - 1) * t).clamp(max=largest).exp()
        return (1 + scaled * steep).clamp(min=0).pow(1 / (alpha - 1)) * (-t).exp()

    t, step = torch.zeros_like(scaled[..., :1]), math.log(scaled.shape[-1])
    for _ in range(math.ceil(math.log2(max(step, 1.0) / torch.finfo(scaled.dtype).eps))):
        step /= 2
        further = t + step
        t = torch.where(shares_at(further).sum(-1, keepdim=True) >= 1, further, t)
    shares = shares_at(t)
    return shares / shares.sum(-1, keepdim=True)


def _check_alpha(alpha: float) -> None:
    if not 1 <= alpha < math.inf:
        raise ValueError(f"alpha must be at least 1 and finite, but is {alpha}")
