"""Costs C(y, y~) and regularizers R(h) of autoencoders; their sum is the energy F(y).

    squared         (y_i - y~_i)^2                                  summed over i
    absolute        |y_i - y~_i|
    cross-entropy   -y_i log y~_i - (1 - y_i) log(1 - y~_i)         y~ = sigmoid(o), from o

    l1              |h_j|                                           summed over j
    l2              h_j^2
    contractive     sum_i (dh_j / dy_i)^2                          one layer: f'(a_j)^2 sum_i W_ji^2
    kl              KL(rho || mean over the batch of h_j)           h = sigmoid(a), from a

All functions return the terms before summation. That of `kl` is no function of one y.

Source: lectures, E.8, E.9 (autoencoders, energies); rifai2011, equations 2 and 5; ng2011.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.linear import Linear

Function = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Function] = {
    "identity": lambda a: a,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}
"""f and g by name."""
_DERIVATIVES: dict[str, Function] = {
    "identity": torch.ones_like,
    "sigmoid": lambda a: a.sigmoid() * (-a).sigmoid(),
    "tanh": lambda a: 1 - a.tanh().square(),
    "relu": lambda a: (a > 0).to(a.dtype),
}


def contraction(
    layers: Sequence[Linear], activation: str, inputs: Float[Tensor, "batch size"]
) -> Float[Tensor, "batch code"]:
    """Return sum_i (dh_j / dy_i)^2 for each number j of the codes of these inputs, differentiable.

    The encoder is h = f(a_L), a_l = W_l gelu(a_{l-1}) + b_l, a_1 = W_1 y + b_1. Its Jacobian is the
    product diag(f'(a_L)) W_L diag(gelu'(a_{L-1})) W_{L-1} ... W_1, multiplied from the left.
    """
    before = [layers[0](inputs)]
    for layer in layers[1:]:
        before.append(layer(nn.functional.gelu(before[-1])))
    slope = _DERIVATIVES[activation](before[-1])
    if len(layers) == 1:
        return slope.square() * layers[0].weight.square().sum(1)
    jacobian = slope[..., None] * layers[-1].weight  # (batch, code, hidden)
    for layer, a in zip(layers[-2::-1], before[-2::-1], strict=True):
        density = torch.exp(-a.square() / 2) / math.sqrt(2 * math.pi)
        gelu_slope = (1 + torch.erf(a / math.sqrt(2))) / 2 + a * density
        jacobian = (jacobian * gelu_slope[:, None]) @ layer.weight
    return jacobian.square().sum(-1)


def mean_activation_divergence(
    a: Float[Tensor, "batch code"], target: float
) -> Float[Tensor, " code"]:
    """Return KL(rho || m_j) for each number j of the codes sigmoid(a), with batch means m_j.

    KL(rho || m) = rho log(rho / m) + (1 - rho) log((1 - rho) / (1 - m)). The logarithms of m and 1
    - m are computed from a, and finite for means that round to 0 or 1.
    """
    log_count = math.log(len(a))
    log_mean = nn.functional.logsigmoid(a).logsumexp(0) - log_count
    log_rest = nn.functional.logsigmoid(-a).logsumexp(0) - log_count
    entropy = target * math.log(target) + (1 - target) * math.log1p(-target)
    return entropy - target * log_mean - (1 - target) * log_rest
