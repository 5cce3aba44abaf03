"""Feature maps for linear attention: scores that are inner products of non-negative features.

    score(q, k) = <phi_q(q), phi_k(k)> >= 0

    FeatureMap(phi)     the same function for both: elu(x) + 1, relu, softmax, a learned module
    RandomFeatures      exp(<q, k> / sqrt(d)) in expectation: approximates softmax attention
                        (Performer)

With `choice=Proportional()` such a read needs no (query, key) matrix.

Source: katharopoulos2020, section 3.2; RandomFeatures choromanski2021, sections 2.3 and 2.4.
"""

from abc import ABC
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import MappedQueries, Queries, check_integer, is_inspectable, widen
from regard.attention.scores.base import Form, InnerProduct, Score


def elu_plus_one(x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
    """Compute elu(x) + 1 = x + 1 above zero, exp(x) below. (katharopoulos2020, section 3.2.1)

    The result stays positive: elu(x) + 1 computed literally is zero below x = -17 in float32.
    """
    return x.clamp(max=0).exp() + x.relu()


def softmax(x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
    """Compute the softmax over the features: an exp that cannot overflow. (zhang2024, section 4)"""
    return x.softmax(-1)


_NEVER_NEGATIVE = (elu_plus_one, softmax, torch.relu, torch.exp)


class Features(Score, ABC):
    """Base class of scores <phi_q(q), phi_k(k)> of non-negative features (kernel "linear")."""

    def form(self, dim: int) -> Form:
        return InnerProduct(1.0)


@final
class FeatureMap(Features):
    """score = <phi(q), phi(k)> for any non-negative function phi: (..., dim) -> (..., features).

    phi: elu_plus_one (the default), softmax, torch.relu, or any function or module; parameters of a
    module are learned.
    Raises: ValueError if phi gives a negative number, on a CPU only: elsewhere the check would
    synchronize the device.
    Source: katharopoulos2020, section 3.2.
    """

    def __init__(self, phi: Callable[[Tensor], Tensor] = elu_plus_one):
        super().__init__()
        self.phi = phi

    def map_query(self, query: Queries) -> MappedQueries:
        return self._apply_phi(query)

    def map_keys(self, keys: Float[Tensor, "... key dim"]) -> Float[Tensor, "... key features"]:
        return self._apply_phi(keys)

    def extra_repr(self) -> str:
        is_module = isinstance(self.phi, torch.nn.Module)
        return "" if is_module else f"phi={getattr(self.phi, '__name__', self.phi)}"

    def _apply_phi(self, x: Tensor) -> Tensor:
        features = self.phi(x)
        if self.phi not in _NEVER_NEGATIVE:
            check_not_negative("features", features)
        return features


@final
class RandomFeatures(Features):
    """<phi_q(q), phi_k(k)>: up to a factor, unbiased for exp(<q, k> / sqrt(dim)). (FAVOR+)

        phi_k(k)_f = exp(<w_f, k'> - |k'|^2 / 2 + c)
        phi_q(q)_f = exp(<w_f, q'> - max_g <w_g, q'>)

    with x' = x / dim^(1/4), so that `choice=Proportional()` approximates Soft with ScaledDot: the
    error decreases as 1 / sqrt(num_features), and grows exponentially with the norms of queries and
    keys. The w_f are distributed as standard normal vectors, but orthogonal to each other in blocks
    of dim, which reduces the error.

    The factors that keep exp in range cancel in Proportional. Each query has its own. The factor of
    the keys must be the same for all keys, including later ones, and so must not depend on them:
    <w, k'> - |k'|^2 / 2 <= |w|^2 / 2 for every k, and c makes the largest of these bounds 60, but
    is at least 0: the bounds of sizes above 100 are larger, and only a key along w attains them.

    Buffers: directions (num_features, dim), a function of (dim, num_features, seed), saved with the
    model.
    Raises:  TypeError for float16, whose range is too small for exp; use bfloat16. ValueError for a
             key so large that all of its features underflow, or one overflows, on a CPU; and for a
             seed that is negative or not below 2^32.
    Source:  choromanski2021, sections 2.3 (positive features) and 2.4 (orthogonal ones); our w is
             their omega.
    """

    directions: Tensor

    def __init__(self, dim: int, num_features: int, *, seed: int = 0):
        super().__init__()
        check_integer("dim", dim, 1)
        check_integer("num_features", num_features, 1)
        check_integer("seed", seed, 0, 2**32 - 1)  # torch takes others modulo 2^32
        self.register_buffer("directions", _orthogonal(dim, num_features, seed))

    def map_query(self, query: Queries) -> MappedQueries:
        _, inner = self._inner(query, "query")
        return (inner - inner.detach().amax(-1, keepdim=True)).exp().to(query.dtype)

    def map_keys(self, keys: Float[Tensor, "... key dim"]) -> Float[Tensor, "... key features"]:
        scaled, inner = self._inner(keys, "keys")
        bound = self.directions.to(inner.dtype).square().sum(-1).amax() / 2
        shift = (60 - bound).clamp(min=0)
        exponents = inner - scaled.square().sum(-1, keepdim=True) / 2 + shift
        features = exponents.exp().to(keys.dtype)
        if is_inspectable(features) and features.numel():
            largest = features.detach().amax(-1)
            tiny = torch.finfo(features.dtype).tiny
            if bool(((largest < tiny) | largest.isinf()).any()):
                raise ValueError("keys of RandomFeatures must be smaller: one is out of range")
        return features

    def extra_repr(self) -> str:
        return f"dim={self.directions.shape[1]}, num_features={self.directions.shape[0]}"

    def _inner(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return x' and <w, x'>, at least in float32."""
        dim = self.directions.shape[1]
        if x.shape[-1] != dim:
            raise ValueError(f"{name} must have size {dim}, got {x.shape[-1]}")
        if x.dtype == torch.float16:
            range_ = "whose range is too small; use bfloat16"
            raise TypeError(f"{name} of RandomFeatures must not be float16, {range_}")
        with torch.autocast(x.device.type, enabled=False):
            scaled = widen(x) * dim**-0.25
            return scaled, scaled @ self.directions.to(scaled.dtype).T


def check_not_negative(name: str, numbers: Float[Tensor, "..."]) -> None:
    """Raise ValueError if a number is negative; on a CPU only, where no device waits."""
    if is_inspectable(numbers) and numbers.numel() and bool(numbers.detach().amin() < 0):
        raise ValueError(f"{name} must not be negative, got {float(numbers.detach().amin())}")


def _orthogonal(dim: int, count: int, seed: int) -> Tensor:
    """Draw standard normal rows, orthogonal to each other in blocks of `dim`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        normal = torch.randn(dim, dim, dtype=torch.float64, device="cpu", generator=generator)
        rotation, upper = torch.linalg.qr(normal)
        # Without the signs the rotation is not uniformly distributed.
        rotation = rotation * upper.diagonal().sign()
        normal = torch.randn(dim, dim, dtype=torch.float64, device="cpu", generator=generator)
        blocks.append(normal.norm(dim=-1, keepdim=True) * rotation.T)
    return torch.cat(blocks)[:count].float()
