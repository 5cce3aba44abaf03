"""Norms of items, each over its numbers.

    LayerNorm    (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias       torch.nn.LayerNorm
    RMSNorm      x / sqrt(mean(x^2) + eps) * weight                            no mean, no bias
    L2Norm       x / sqrt(sum(x^2) + eps) * weight                             vectors of length 1

Source: layer ba2016; RMS zhang2019; L2, of queries and keys, henry2020.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.norm import rms_norm


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm over the last axis, with a faster gradient on CPUs."""

    def __init__(self, dim: int, *, eps: float = 1e-5):
        super().__init__(dim, eps=eps)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        weight, eps = self.weight, self.eps
        return super().forward(x) if weight is None or eps is None else rms_norm(x, weight, eps)


class L2Norm(RMSNorm):
    """Division by the length of each vector, times learned gains: x / |x| * weight.

    The gains are initially (100 dim)^(1/4), so that scaled inner products of vectors of equal size
    are ten times their cosines, of which a softmax can choose. (henry2020)
    """

    def __init__(self, dim: int, *, eps: float = 1e-5):
        super().__init__(dim, eps=eps)
        nn.init.constant_(self.weight, (100.0 * dim) ** 0.25)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        size, eps = x.shape[-1], self.eps or 0.0
        return rms_norm(x, self.weight * size**-0.5, eps / size)
