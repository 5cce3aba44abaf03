"""Norms of items, each over its numbers.

    LayerNorm    (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias       torch.nn.LayerNorm
    RMSNorm      x / sqrt(mean(x^2) + eps) * weight                            no mean, no bias

Source: layer ba2016; RMS zhang2019.
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
