"""Scores: functions of a query and a key that measure how well they match.

    Dot            <q, k>                                  dot product; q and k of equal size
    ScaledDot      <q, k> / sqrt(d)                        scaled dot product
    General        <W_q q, W_k k>                          Luong's general score ("option 2")
    Additive       v . tanh(W_q q + W_k k)                 Bahdanau's additive score, an MLP on [q; k] ("option 1")
    Concat         v . tanh(W [q; k])                      the same, with both maps in one matrix
    BareAdditive   v . tanh(q + k)                         the same, for vectors that are mapped already

A score has two parts, so that the keys of a memory are mapped only once, however many queries read it: `map_query`
and `map_keys` project both into a common space, `compare` scores every pair there.

Scores with parameters may have them per head: num_heads=l gives every parameter a leading axis of heads, for queries
(..., head, query, query_dim) and keys (..., head, key, key_dim). A memory that all heads share has one head, or
key_heads of them (a divisor of l: grouped queries), each with a key map of its own.

Source: lectures, A; Additive bahdanau2015 (appendix A.1.2), Dot, General and Concat luong2015 (section 3.1),
ScaledDot vaswani2017 (section 3.2.1). More scores are in regard.attention.scores_more.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.maps import linear


class InnerProduct(NamedTuple):
    """Formula of a score: scale <q, k> of mapped vectors, then, if cap is set, cap tanh(. / cap)."""

    scale: float
    cap: float | None = None


class TanhSum(NamedTuple):
    """Formula of a score: v . tanh(q + k) of mapped vectors; v (hidden), or one per head, (head, hidden)."""

    v: Tensor


Form = InnerProduct | TanhSum
"""Formulas that fused kernels support; other scores are computed by the reference kernel."""


class Score(nn.Module, ABC):
    """Base class of scores: score(q, k) = compare(map_query(q), map_keys(k)) for every pair, (..., query, key)."""

    num_heads: int | None = None
    """Number of heads with parameters of their own; None: the score treats all heads alike."""

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """Project queries into the common space; by default the identity."""
        return query

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """Project keys into the common space, once per memory; by default the identity."""
        return keys

    @abstractmethod
    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return the scores of all pairs of mapped queries and mapped keys."""

    def form(self, dim: int) -> Form | None:
        """Return the formula of `compare` for mapped vectors of size `dim`; None if no fused kernel supports it."""
        return None

    def forward(
        self, query: Float[Tensor, "... query query_dim"], keys: Float[Tensor, "... key key_dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return the scores of all pairs."""
        return self.compare(self.map_query(query), self.map_keys(keys))


@final
class Dot(Score):
    """Dot-product score: <q, k>; q and k of equal size. (luong2015, "dot")"""

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return query keys^T. Raises ValueError if their sizes differ."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """Return the unscaled inner product."""
        return InnerProduct(1.0)


@final
class ScaledDot(Score):
    """Scaled dot-product score: <q, k> / sqrt(d), so that large d do not saturate the softmax. (vaswani2017)"""

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return query keys^T / sqrt(d). Raises ValueError if their sizes differ."""
        return inner_products(self, query * (1 / math.sqrt(query.shape[-1])), keys)

    def form(self, dim: int) -> Form:
        """Return the inner product scaled by 1 / sqrt(d)."""
        return InnerProduct(1 / math.sqrt(dim))


class _LinearMaps(Score):
    """Base class of General and Additive: linear maps of queries and of keys, both to size `hidden`."""

    def __init__(
        self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None, key_heads: int | None = None
    ):
        super().__init__()
        _check_sizes(self, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        key_heads = _check_heads(self, num_heads, key_heads)
        self.num_heads = num_heads
        self.query_weight = nn.Parameter(init_uniform(*_leading(num_heads), hidden, query_dim))
        self.key_weight = nn.Parameter(init_uniform(*_leading(key_heads), hidden, key_dim))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """Return W_q q."""
        return apply_weight(query, self.query_weight, "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        """Return W_k k."""
        return apply_weight(keys, self.key_weight, "keys")

    def extra_repr(self) -> str:
        """Sizes of the module."""
        hidden, query_dim = self.query_weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}, key_heads={len(self.key_weight)}"
        return f"query_dim={query_dim}, key_dim={self.key_weight.shape[-1]}, hidden={hidden}{heads}"


@final
class General(_LinearMaps):
    """General score: <W_q q, W_k k>, linear maps and an inner product. (lectures, "option 2"; luong2015, "general")

    Parameters: query_weight (hidden, query_dim), key_weight (hidden, key_dim). Luong's q^T W k is
    W = query_weight^T key_weight; `hidden` (default: the smaller of the two sizes) bounds its rank.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden: int | None = None,
        *,
        num_heads: int | None = None,
        key_heads: int | None = None,
    ):
        hidden = min(query_dim, key_dim) if hidden is None else hidden
        super().__init__(query_dim, key_dim, hidden, num_heads=num_heads, key_heads=key_heads)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return the inner products of mapped vectors."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """Return the unscaled inner product: the maps learn the scale."""
        return InnerProduct(1.0)


@final
class Additive(_LinearMaps):
    """Additive score: v . tanh(W_q q + W_k k), a network with one hidden layer on [q; k]. (lectures, "option 1")

    With normed=True, score = g (v / |v|) . tanh(W_q q + W_k k + b): weight normalization of v (salimans2016), which
    stabilizes the training of large models.
    Parameters: query_weight (hidden, query_dim), key_weight (hidden, key_dim), v (hidden); normed: gain (), bias
    (hidden). Cost: time O(query * key * hidden). Source: bahdanau2015, appendix A.1.2 (their W_a, U_a, v_a).
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden: int,
        *,
        num_heads: int | None = None,
        key_heads: int | None = None,
        normed: bool = False,
    ):
        super().__init__(query_dim, key_dim, hidden, num_heads=num_heads, key_heads=key_heads)
        leading = _leading(num_heads)
        self.v = nn.Parameter(init_uniform(*leading, hidden))
        self.gain = nn.Parameter(torch.full(leading, 1 / math.sqrt(hidden))) if normed else None
        self.bias = nn.Parameter(torch.zeros(*leading, hidden)) if normed else None

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """Return W_q q, or W_q q + b: adding b to queries is cheaper than to pairs, and keys stay mapped."""
        query = super().map_query(query)
        return query if self.bias is None else query + self.bias.unsqueeze(-2).to(query.dtype)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return v . tanh(q + k) for all pairs of mapped queries and keys."""
        return _compare_additive(query, keys, self._vector)

    def form(self, dim: int) -> Form:
        """Return v . tanh(q + k)."""
        return TanhSum(self._vector)

    @property
    def _vector(self) -> Tensor:
        if self.gain is None:
            return self.v
        return self.gain.unsqueeze(-1) * nn.functional.normalize(self.v, dim=-1)


@final
class Concat(Score):
    """Concat score: v . tanh(W [q; k]), which is Additive with W = [W_q W_k] as one matrix. (luong2015, "concat")

    Parameters: weight (hidden, query_dim + key_dim), v (hidden). The product with [q; k] is the sum of those with q and
    k, so keys are still mapped once per memory; only the initialization of W differs, that of one layer on both.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None):
        super().__init__()
        _check_sizes(self, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        _check_heads(self, num_heads, None)
        self.num_heads = num_heads
        self.query_dim = query_dim
        self.weight = nn.Parameter(init_uniform(*_leading(num_heads), hidden, query_dim + key_dim))
        self.v = nn.Parameter(init_uniform(*_leading(num_heads), hidden))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """Return the left part of W times q."""
        return apply_weight(query, self.weight[..., : self.query_dim], "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        """Return the right part of W times k."""
        return apply_weight(keys, self.weight[..., self.query_dim :], "keys")

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return v . tanh(q + k) for all pairs of mapped queries and keys."""
        return _compare_additive(query, keys, self.v)

    def form(self, dim: int) -> Form:
        """Return v . tanh(q + k)."""
        return TanhSum(self.v)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        hidden, both = self.weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"query_dim={self.query_dim}, key_dim={both - self.query_dim}, hidden={hidden}{heads}"


@final
class BareAdditive(Score):
    """Additive score without maps: v . tanh(q + k), for q and k that are projected already.

    The score of multi-head additive attention, in which the projections of the heads, W_q^h and W_k^h, are the maps.
    Parameters: v (dim), or (head, dim). Cost: time O(query * key * dim). Source: bahdanau2015, appendix A.1.2.
    """

    def __init__(self, dim: int, *, num_heads: int | None = None):
        super().__init__()
        _check_sizes(self, dim=dim)
        _check_heads(self, num_heads, None)
        self.num_heads = num_heads
        self.v = nn.Parameter(init_uniform(*_leading(num_heads), dim))

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return v . tanh(q + k) for all pairs. Raises ValueError if their sizes differ from that of v."""
        return _compare_additive(query, keys, self.v)

    def form(self, dim: int) -> Form:
        """Return v . tanh(q + k)."""
        return TanhSum(self.v)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"dim={self.v.shape[-1]}{heads}"


def inner_products(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    """Return query keys^T. Raises ValueError, naming the score, if their sizes differ."""
    if query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"queries and keys of {type(score).__name__} must have equal sizes, got {query.shape[-1]} "
            f"and {keys.shape[-1]}; General, Additive and Concat support unequal sizes"
        )
    return query @ keys.transpose(-2, -1)


def apply_weight(vectors: Tensor, weight: Tensor, name: str) -> Tensor:
    """Return W x for a weight (out, in), or W_h x for (head, out, in). Raises ValueError if sizes or heads differ."""
    if vectors.shape[-1] != weight.shape[-1]:
        raise ValueError(f"{name} must have size {weight.shape[-1]}, got {vectors.shape[-1]}")
    if weight.dim() == 2:
        return linear(vectors, weight)
    if vectors.dim() < 3 or vectors.shape[-3] not in (1, len(weight)):
        raise ValueError(
            f"{name} must be (..., {len(weight)} heads or 1, {name.removesuffix('s')}, {weight.shape[-1]}), "
            f"got {tuple(vectors.shape)}"
        )
    return vectors @ weight.transpose(-2, -1)


def init_uniform(*shape: int) -> Tensor:
    """Initialize a weight (..., in) uniformly within 1 / sqrt(in)."""
    bound = 1 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-bound, bound)


def _compare_additive(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    if not query.shape[-1] == keys.shape[-1] == v.shape[-1]:
        raise ValueError(
            f"mapped queries and keys must have the size of v, {v.shape[-1]}, got {query.shape[-1]} "
            f"and {keys.shape[-1]}; Additive and Concat map unequal sizes"
        )
    hidden = torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3))  # (..., query, key, hidden)
    if v.dim() == 1:
        return hidden @ v.to(hidden.dtype)
    if hidden.dim() < 4 or hidden.shape[-4] != len(v):
        raise ValueError(f"query must be (..., {len(v)} heads, query, dim), got {tuple(query.shape)}")
    return (hidden @ v[:, None, :, None].to(hidden.dtype)).squeeze(-1)


def _leading(num_heads: int | None) -> tuple[int, ...]:
    return () if num_heads is None else (num_heads,)


def _check_sizes(score: Score, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} of {type(score).__name__} must be at least 1, got {size}")


def _check_heads(score: Score, num_heads: int | None, key_heads: int | None) -> int | None:
    """Check the numbers of heads, and return the number of key heads, which defaults to num_heads."""
    if num_heads is not None and num_heads < 1:
        raise ValueError(f"num_heads of {type(score).__name__} must be at least 1, got {num_heads}")
    if key_heads is None:
        return num_heads
    if num_heads is None or key_heads < 1 or num_heads % key_heads:
        raise ValueError(f"key_heads must divide num_heads={num_heads}, got {key_heads}")
    return key_heads
