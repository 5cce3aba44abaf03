"""RMS norm over the last axis; in float32 training on a CPU with a faster gradient than torch's.

    y = x / sqrt(mean(x^2) + eps) * weight

Source: zhang2019.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager, is_forward_ad


def rms_norm(
    x: Float[Tensor, "*batch dim"], weight: Float[Tensor, " dim"], eps: float
) -> Float[Tensor, "*batch dim"]:
    """Return x / sqrt(mean(x^2) + eps) * weight, computed in at least float32."""
    is_training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    is_float32_cpu = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if is_training and is_float32_cpu and is_eager() and not is_forward_ad():
        return _RMSNorm.apply(x, weight, eps)
    dtype = torch.promote_types(x.dtype, weight.dtype)  # torch warns of two dtypes
    return nn.functional.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    # With n = x / rms, dL/dx = (g w - n mean(g w n)) / rms and dL/dw = sum of g n over the items.
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse(x, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients: from differentiable operations
            normed = x * _inverse(x, ctx.eps)
            products, scaled = gradient * normed, gradient * weight
            mean = (products * weight).mean(-1, keepdim=True)
            return (
                (scaled - normed * mean) * _inverse(x, ctx.eps),
                products.flatten(0, -2).sum(0),
                None,
            )
        normed = x * inverse  # in place from here on: fresh memory costs more than the computation
        products = gradient * normed
        to_weight = products.flatten(0, -2).sum(0)
        mean = (products @ weight).div_(len(weight)).unsqueeze_(-1)
        torch.mul(gradient, weight, out=products)
        return products.sub_(normed.mul_(mean)).mul_(inverse), to_weight, None


def _inverse(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()
