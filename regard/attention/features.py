"""Features: scores that are products of features of the query and of the key, none of them negative.

    score(q, k) = <phi_q(q), phi_k(k)> >= 0

    FeatureMap(phi)     the same function of both: elu(x) + 1, relu, softmax, one that learns
    RandomFeatures      exp(<q, k> / sqrt(d)) on average: the softmax's weights, approximately

With `choose=Proportional()` such a read can be had without forming pairs: see regard.attention.linear.

Source: katharopoulos2020, section 3.2; RandomFeatures choromanski2021, sections 2.3 and 2.4.
"""

from abc import ABC
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import can_look_at
from regard.attention.scores import Form, InnerProduct, Score


def elu_plus_one(x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
    """elu(x) + 1 = x + 1 above zero, exp(x) below. (katharopoulos2020, section 3.2.1)

    Written so that it stays positive: elu(x) + 1 taken literally is zero from x = -17 on in float32.
    """
    return x.clamp(max=0).exp() + x.relu()


def softmax(x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
    """exp(x) over its sum over the features: exp that cannot overflow. (zhang2024, section 4)"""
    return x.softmax(-1)


_NEVER_NEGATIVE = (elu_plus_one, softmax, torch.relu, torch.exp)


class Features(Score, ABC):
    """score = <phi_q(q), phi_k(k)> of features that are never negative: what the kernel "linear" can sum."""

    def compare(
        self, query: Float[Tensor, "... query features"], keys: Float[Tensor, "... key features"]
    ) -> Float[Tensor, "... query key"]:
        """Inner products of features. Raises ValueError if queries and keys have unequal numbers of them."""
        if query.shape[-1] != keys.shape[-1]:
            raise ValueError(
                f"{type(self).__name__} needs as many features of queries as of keys, but has {query.shape[-1]} "
                f"and {keys.shape[-1]}"
            )
        return query @ keys.transpose(-2, -1)

    def form(self, dim: int) -> Form:
        """The inner product as it is."""
        return InnerProduct(1.0)


@final
class FeatureMap(Features):
    """score = <phi(q), phi(k)>, phi any function (..., dim) -> (..., features) that is never negative.

    phi: elu_plus_one (the default), softmax, torch.relu, or one of your own; a module, whose parameters then learn.
    Raises: ValueError if phi gives a negative number, on a CPU; elsewhere looking would wait for the device.
    Source: katharopoulos2020, section 3.2.
    """

    def __init__(self, phi: Callable[[Tensor], Tensor] = elu_plus_one):
        super().__init__()
        self.phi = phi

    def map_query(self, query: Float[Tensor, "... query dim"]) -> Float[Tensor, "... query features"]:
        """phi(q)."""
        return self._mapped(query)

    def map_keys(self, keys: Float[Tensor, "... key dim"]) -> Float[Tensor, "... key features"]:
        """phi(k)."""
        return self._mapped(keys)

    def extra_repr(self) -> str:
        """The function, unless it is a module and shows anyway."""
        return "" if isinstance(self.phi, torch.nn.Module) else f"phi={getattr(self.phi, '__name__', self.phi)}"

    def _mapped(self, x: Tensor) -> Tensor:
        features = self.phi(x)
        if self.phi not in _NEVER_NEGATIVE:
            check_not_negative("features", features)
        return features


@final
class RandomFeatures(Features):
    """<phi_q(q), phi_k(k)> is, up to a factor a query, an unbiased estimate of exp(<q, k> / sqrt(dim)).

        phi_k(k)_f = exp(<w_f, k'> - |k'|^2 / 2 + c)        phi_q(q)_f = exp(<w_f, q'> - max_g <w_g, q'>)

    with x' = x / dim^(1/4), so that `choose=Proportional()` approximates Soft with ScaledDot: the error falls as
    1 / sqrt(num_features), and grows exponentially with the sizes of queries and keys. The w_f are as normal vectors
    are, but orthogonal to each other in blocks of dim, which makes the error smaller.

    The factors that keep exp in range cancel in Proportional. That of a query is its own. That of keys must be the
    same for all of them, today's and those to come, so it cannot look at them: <w, k'> - |k'|^2 / 2 <= |w|^2 / 2
    whatever k is, and c makes the largest of these bounds 60. A key many times larger than the others may vanish.

    Buffers: directions (num_features, dim), a function of (dim, num_features, seed), saved with the model.
    Raises:  TypeError for float16, whose range is too small for exp; bfloat16 will do.
    Source:  choromanski2021, sections 2.3 (positive features) and 2.4 (orthogonal ones); our w is their omega.
    """

    directions: Tensor

    def __init__(self, dim: int, num_features: int, *, seed: int = 0):
        super().__init__()
        for name, number in (("dim", dim), ("num_features", num_features)):
            if number < 1:
                raise ValueError(f"{name} of RandomFeatures must be at least 1, but is {number}")
        self.register_buffer("directions", _orthogonal(dim, num_features, seed))

    def map_query(self, query: Float[Tensor, "... query dim"]) -> Float[Tensor, "... query features"]:
        """Features of queries, the largest of each query one."""
        _, inner = self._inner(query, "query")
        return (inner - inner.detach().amax(-1, keepdim=True)).exp().to(query.dtype)

    def map_keys(self, keys: Float[Tensor, "... key dim"]) -> Float[Tensor, "... key features"]:
        """Features of keys, none above e^60."""
        scaled, inner = self._inner(keys, "keys")
        bound = self.directions.to(inner.dtype).square().sum(-1).amax() / 2
        return (inner - scaled.square().sum(-1, keepdim=True) / 2 + (60 - bound)).exp().to(keys.dtype)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"dim={self.directions.shape[1]}, num_features={self.directions.shape[0]}"

    def _inner(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """x' and <w, x'>, in float32 at least: rounding errors of an exponent become factors."""
        dim = self.directions.shape[1]
        if x.shape[-1] != dim:
            raise ValueError(f"{name} must have size {dim}, but has {x.shape[-1]}")
        if x.dtype == torch.float16:
            raise TypeError(f"{name} of RandomFeatures must not be float16, whose range is too small; see bfloat16")
        with torch.autocast(x.device.type, enabled=False):
            scaled = widen(x) * dim**-0.25
            return scaled, scaled @ self.directions.to(scaled.dtype).T


def check_not_negative(name: str, numbers: Float[Tensor, "..."]) -> None:
    """Raise ValueError if a number is negative, where looking is free of waiting."""
    if can_look_at(numbers) and numbers.numel() and bool(numbers.detach().amin() < 0):
        raise ValueError(f"{name} must not be negative, but the smallest is {float(numbers.detach().amin())}")


def widen(tensor: Tensor) -> Tensor:
    """In float32 at least: long sums of half precision stop growing."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _orthogonal(dim: int, count: int, seed: int) -> Tensor:
    """Rows distributed as standard normal vectors, orthogonal to each other in blocks of `dim`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        normal = torch.randn(dim, dim, dtype=torch.float64, device="cpu", generator=generator)
        turned, upper = torch.linalg.qr(normal)
        turned = turned * upper.diagonal().sign()  # without it the turn is not uniform
        norms = torch.randn(dim, dim, dtype=torch.float64, device="cpu", generator=generator).norm(dim=-1)
        blocks.append(norms.unsqueeze(-1) * turned.T)
    return torch.cat(blocks)[:count].float()
