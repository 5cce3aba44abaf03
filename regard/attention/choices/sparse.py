"""Sparse attention (alpha-entmax), whose weights are exactly zero for most keys.

    Sparse(alpha)   weight   = argmax over distributions p of <p, a> + H_alpha(p)
                    weight_j = [(alpha - 1) a_j - tau]_+^(1 / (alpha - 1)), which sum to one

H_alpha(p) = sum_j (p_j - p_j^alpha) / (alpha (alpha - 1)) is the Tsallis entropy. As alpha tends to
1 it is Shannon's and the choice is softmax; at alpha = 2 it is the Gini index; as alpha grows it
vanishes and the choice tends to Hard. The number of keys depends on the scores; with TopK it is
fixed.

Source: martins2016 (sparsemax: definition 1, algorithm 1), peters2019 (entmax: equation 10;
        gradient: proposition 2).
"""

import math
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import Allowed, Pairs
from regard.attention.choices.base import Choice, Soft, mask_scores
from regard.compat.torch import run_pre_hooks


@final
class Sparse(Choice):
    """weight = entmax_alpha(beta a): zero for keys whose score is far below the best. (peters2019)

    alpha: at least 1: 1 is softmax, 1.5 in between, 2 sparsemax; larger values are sparser.
    beta:  inverse temperature, as in Soft; learned with learn=True.
    Cost:  a sort of the scores for alpha = 1.5 and 2, a bisection of about 30 (float32) or 60
           (float64) steps for other alphas.
    """

    def __init__(self, alpha: float = 2.0, *, beta: float | Tensor = 1.0, learn: bool = False):
        super().__init__()
        _check_alpha(alpha)
        self.alpha = alpha
        self.soft = Soft(beta, learn=learn)

    def check(self, leading: tuple[int, ...], num_queries: int) -> None:
        self.soft.check(leading, num_queries)

    def weights(self, scores: Pairs, allowed: Allowed) -> Pairs:
        if self.alpha == 1:
            return self.soft(scores, allowed)
        run_pre_hooks(self.soft, scores)
        scores = self.soft.scale_scores(scores)
        if allowed is None:
            return entmax(scores, alpha=self.alpha)
        masked = ~allowed.any(-1, keepdim=True)
        return entmax(mask_scores(scores, allowed | masked), alpha=self.alpha) * ~masked

    def tile(self, first: int, last: int) -> "Sparse":
        return Sparse(self.alpha, beta=self.soft.tile(first, last).beta)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


def entmax(scores: Float[Tensor, "... key"], *, alpha: float) -> Float[Tensor, "... key"]:
    """Compute p_j = [(alpha - 1) a_j - tau]_+^(1 / (alpha - 1)) along the last axis.

    Each row needs a finite score; -inf gives zero. The gradient is computed in closed form: with
    s_j = p_j^(2 - alpha) where p_j > 0, else 0, d<p, g>/da_j = s_j (g_j - <s, g> / sum s); for
    alpha > 2 it is unbounded as a key leaves the support.
    Source: peters2019, equation 10 and proposition 2.
    """
    _check_alpha(alpha)
    if alpha == 1:
        return scores.softmax(-1)
    if scores.shape[-1] == 0:
        return scores
    wide = torch.promote_types(scores.dtype, torch.float32)
    return _Entmax.apply(scores.to(wide), alpha).to(scores.dtype)  # pyrefly: ignore


class _Entmax(torch.autograd.Function):
    # No jvp: torch.compile does not support functions that have one.
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        # Scaled, relative to the best score. No key below -1 is in the support; clamping those to
        # -1 keeps the sums finite and small, so that they lose no digits.
        scaled = ((alpha - 1) * (scores - scores.amax(-1, keepdim=True))).clamp(min=-1)
        if alpha not in (1.5, 2):
            return _bisect(scaled, alpha)
        # tau for a support of the first 1, 2, 3 ... scores in descending order.
        ordered = scaled.sort(-1, descending=True).values
        number = torch.arange(1, scaled.shape[-1] + 1, dtype=scaled.dtype, device=scaled.device)
        if alpha == 2:  # martins2016, algorithm 1
            thresholds = (ordered.cumsum(-1) - 1) / number
        else:  # peters2019, algorithm 2
            mean = ordered.cumsum(-1) / number
            variance = ordered.square().cumsum(-1) / number - mean.square()
            thresholds = mean - (1 / number - variance).clamp(min=0).sqrt()
        # The largest support whose scores are all above its threshold.
        size = (thresholds < ordered).sum(-1, keepdim=True).clamp(min=1)
        weights = (scaled - thresholds.gather(-1, size - 1).clamp(min=-1)).clamp(min=0)
        return weights if alpha == 2 else weights.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        in_support = weights > 0
        slope = torch.where(in_support, weights, 1.0).pow(2 - ctx.alpha) * in_support
        if ctx.alpha > 2:
            # Slopes are unbounded as a weight tends to zero. Subtracting the gradient at the
            # steepest key keeps the mean exact where that key dominates.
            slope = slope.clamp(max=torch.finfo(slope.dtype).max / (4 * slope.shape[-1]))
            gradient = gradient - gradient.gather(-1, slope.argmax(-1, keepdim=True))
        mean = (slope / slope.sum(-1, keepdim=True) * gradient).sum(-1, keepdim=True)
        return slope * (gradient - mean), None


def _bisect(scaled: Tensor, alpha: float) -> Tensor:
    """Find the weights q (1 + x_j q^(1 - alpha))_+^(1 / (alpha - 1)), q = e^-t, that sum to one.

    q is the weight of the best key: 1 if it is the only one, 1 / n for n equal scores. Bisection
    over tau = -q^(alpha - 1) instead would underflow for large alpha.
    """
    largest = math.log(torch.finfo(scaled.dtype).max) - 1

    def weights_at(t: Tensor) -> Tensor:
        factor = ((alpha - 1) * t).clamp(max=largest).exp()
        return (1 + scaled * factor).clamp(min=0).pow(1 / (alpha - 1)) * (-t).exp()

    t, step = torch.zeros_like(scaled[..., :1]), math.log(scaled.shape[-1])
    for _ in range(math.ceil(math.log2(max(step, 1.0) / torch.finfo(scaled.dtype).eps))):
        step /= 2
        candidate = t + step
        t = torch.where(weights_at(candidate).sum(-1, keepdim=True) >= 1, candidate, t)
    weights = weights_at(t)
    return weights / weights.sum(-1, keepdim=True)


def _check_alpha(alpha: float) -> None:
    if not 1 <= alpha < math.inf:
        raise ValueError(f"alpha must be at least 1 and finite, got {alpha}")
