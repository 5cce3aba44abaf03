"""Scores: how well a key matches a query.

    Dot            <q, k>                                  q and k of equal size
    ScaledDot      <q, k> / sqrt(d)                        the same, unit variance when q and k have it
    General        <W_q q, W_k k>                          linear maps, then the inner product ("option 2")
    Additive       v . tanh(W_q q + W_k k)                 a one-hidden-layer network on [q; k] ("option 1", MLP)
    Concat         v . tanh(W [q; k])                      the same network, its two maps in one matrix
    BareAdditive   v . tanh(q + k)                         the same network, for vectors that were mapped before

A score works in two parts, so that what concerns the keys alone is done once a memory, however many queries
read it: `map_query` and `map_keys` bring both into the space where they meet, `compare` scores every pair there.

Scores with parameters may have them for each head: num_heads=l gives every parameter a leading axis of heads, and
queries (..., head, query, query_dim) and keys (..., head, key, key_dim) meet l scores in one. A memory that all heads
share has one head, or key_heads of them (a divisor of l: grouped queries), each then with a key map of its own.

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
    """A form of scores: scale <q, k> of mapped vectors, then, if cap is set, cap tanh(. / cap)."""

    scale: float
    cap: float | None = None


class TanhSum(NamedTuple):
    """A form of scores: v . tanh(q + k) of mapped vectors; v (hidden) or one for each head, (head, hidden)."""

    v: Tensor


Form = InnerProduct | TanhSum
"""What fused kernels know how to compute; a score of another form is for the reference kernel."""


class Score(nn.Module, ABC):
    """score(q, k) for every pair: compare(map_query(query), map_keys(keys)) of shape (..., query, key)."""

    num_heads: int | None = None
    """Heads that the score tells apart; None: it does the same to whatever it is given."""

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """Bring queries into the space where they meet keys; unchanged unless the score says otherwise."""
        return query

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """Bring keys into the space where they meet queries; done once a memory."""
        return keys

    @abstractmethod
    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Scores of all pairs of mapped queries and mapped keys."""

    def form(self, dim: int) -> Form | None:
        """What `compare` computes of mapped vectors of size `dim`, if a fused kernel may know it."""
        return None

    def forward(
        self, query: Float[Tensor, "... query query_dim"], keys: Float[Tensor, "... key key_dim"]
    ) -> Float[Tensor, "... query key"]:
        """Scores of all pairs."""
        return self.compare(self.map_query(query), self.map_keys(keys))


@final
class Dot(Score):
    """score = <q, k>; q and k of equal size. (luong2015, "dot")"""

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """query keys^T. Raises ValueError if their sizes differ."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """The inner product as it is."""
        return InnerProduct(1.0)


@final
class ScaledDot(Score):
    """score = <q, k> / sqrt(d): Var <q, k> grows with d, and large scores saturate the softmax. (vaswani2017)"""

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """query keys^T / sqrt(d). Raises ValueError if their sizes differ."""
        return inner_products(self, query * (1 / math.sqrt(query.shape[-1])), keys)

    def form(self, dim: int) -> Form:
        """Scaled by 1 / sqrt(d)."""
        return InnerProduct(1 / math.sqrt(dim))


class _Mapping(Score):
    """What General and Additive share: a linear map for queries and one for keys, both to size `hidden`."""

    def __init__(
        self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None, key_heads: int | None = None
    ):
        super().__init__()
        _check_sizes(self, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        key_heads = _checked_heads(self, num_heads, key_heads)
        self.num_heads = num_heads
        self.query_weight = nn.Parameter(uniform(*_leading(num_heads), hidden, query_dim))
        self.key_weight = nn.Parameter(uniform(*_leading(key_heads), hidden, key_dim))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """W_q q."""
        return mapped(query, self.query_weight, "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        """W_k k."""
        return mapped(keys, self.key_weight, "keys")

    def extra_repr(self) -> str:
        """Sizes."""
        hidden, query_dim = self.query_weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}, key_heads={len(self.key_weight)}"
        return f"query_dim={query_dim}, key_dim={self.key_weight.shape[-1]}, hidden={hidden}{heads}"


@final
class General(_Mapping):
    """score = <W_q q, W_k k>: linear maps, then the inner product. (lectures, "option 2"; luong2015, "general")

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
        """Inner products of the mapped vectors."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """Not scaled: the maps learn their own scale."""
        return InnerProduct(1.0)


@final
class Additive(_Mapping):
    """score = v . tanh(W_q q + W_k k): a network of one hidden layer fed [q; k]. (lectures, "option 1")

    With normed=True, score = g (v / |v|) . tanh(W_q q + W_k k + b): the length of v learns apart from its direction
    (salimans2016), which steadies the training of large models.
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
        self.v = nn.Parameter(uniform(*leading, hidden))
        self.gain = nn.Parameter(torch.full(leading, 1 / math.sqrt(hidden))) if normed else None
        self.bias = nn.Parameter(torch.zeros(*leading, hidden)) if normed else None

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """W_q q, or W_q q + b: there are fewer queries to add it to than pairs, and keys need not be mapped again."""
        query = super().map_query(query)
        return query if self.bias is None else query + self.bias.unsqueeze(-2).to(query.dtype)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """v . tanh of every sum of a mapped query and a mapped key."""
        return _tanh_sums(query, keys, self._vector)

    def form(self, dim: int) -> Form:
        """The network itself."""
        return TanhSum(self._vector)

    @property
    def _vector(self) -> Tensor:
        if self.gain is None:
            return self.v
        return self.gain.unsqueeze(-1) * nn.functional.normalize(self.v, dim=-1)


@final
class Concat(Score):
    """score = v . tanh(W [q; k]): Additive, with W = [W_q W_k] one matrix. (luong2015, "concat")

    Parameters: weight (hidden, query_dim + key_dim), v (hidden). The product of [q; k] is that of q plus that of k,
    so keys are still mapped once a memory; what differs is how W starts: as one layer fed both.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None):
        super().__init__()
        _check_sizes(self, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        _checked_heads(self, num_heads, None)
        self.num_heads = num_heads
        self.query_dim = query_dim
        self.weight = nn.Parameter(uniform(*_leading(num_heads), hidden, query_dim + key_dim))
        self.v = nn.Parameter(uniform(*_leading(num_heads), hidden))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """W's left part times q."""
        return mapped(query, self.weight[..., : self.query_dim], "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        """W's right part times k."""
        return mapped(keys, self.weight[..., self.query_dim :], "keys")

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """v . tanh of every sum of a mapped query and a mapped key."""
        return _tanh_sums(query, keys, self.v)

    def form(self, dim: int) -> Form:
        """Additive's."""
        return TanhSum(self.v)

    def extra_repr(self) -> str:
        """Sizes."""
        hidden, both = self.weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"query_dim={self.query_dim}, key_dim={both - self.query_dim}, hidden={hidden}{heads}"


@final
class BareAdditive(Score):
    """score = v . tanh(q + k): Additive without maps of its own, for q and k that meet already.

    The score of multi-head additive attention: a head's projections W_q^h, W_k^h are its maps.
    Parameters: v (dim), or (head, dim). Cost: time O(query * key * dim). Source: bahdanau2015, appendix A.1.2.
    """

    def __init__(self, dim: int, *, num_heads: int | None = None):
        super().__init__()
        _check_sizes(self, dim=dim)
        _checked_heads(self, num_heads, None)
        self.num_heads = num_heads
        self.v = nn.Parameter(uniform(*_leading(num_heads), dim))

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """v . tanh of every sum of a query and a key. Raises ValueError if their sizes are not v's."""
        return _tanh_sums(query, keys, self.v)

    def form(self, dim: int) -> Form:
        """The whole score."""
        return TanhSum(self.v)

    def extra_repr(self) -> str:
        """Sizes."""
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"dim={self.v.shape[-1]}{heads}"


def inner_products(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    """query keys^T; ValueError in the name of the score if their sizes differ."""
    if query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"{type(score).__name__} needs queries and keys of equal size, but query has {query.shape[-1]} "
            f"and keys have {keys.shape[-1]}; General, Additive and Concat take unequal sizes"
        )
    return query @ keys.transpose(-2, -1)


def mapped(vectors: Tensor, weight: Tensor, name: str) -> Tensor:
    """W x for weights (out, in), or W_h x for weights (head, out, in); ValueError if sizes or heads do not fit."""
    if vectors.shape[-1] != weight.shape[-1]:
        raise ValueError(f"{name} must have size {weight.shape[-1]}, but has {vectors.shape[-1]}")
    if weight.dim() == 2:
        return linear(vectors, weight)
    if vectors.dim() < 3 or vectors.shape[-3] not in (1, len(weight)):
        raise ValueError(
            f"{name} must be (..., {len(weight)} heads or 1, {name.removesuffix('s')}, {weight.shape[-1]}), "
            f"but is {tuple(vectors.shape)}"
        )
    return vectors @ weight.transpose(-2, -1)


def uniform(*shape: int) -> Tensor:
    """Weights (..., in) to start from: uniform within 1 / sqrt(in)."""
    bound = 1 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-bound, bound)


def _tanh_sums(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    if not query.shape[-1] == keys.shape[-1] == v.shape[-1]:
        raise ValueError(
            f"queries and keys must have v's size, {v.shape[-1]}, where they meet, but query has {query.shape[-1]} "
            f"and keys have {keys.shape[-1]}; Additive and Concat map unequal sizes"
        )
    hidden = torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3))  # (..., query, key, hidden)
    if v.dim() == 1:
        return hidden @ v.to(hidden.dtype)
    if hidden.dim() < 4 or hidden.shape[-4] != len(v):
        raise ValueError(f"query must be (..., {len(v)} heads, query, dim), but is {tuple(query.shape)}")
    return (hidden @ v[:, None, :, None].to(hidden.dtype)).squeeze(-1)


def _leading(num_heads: int | None) -> tuple[int, ...]:
    return () if num_heads is None else (num_heads,)


def _check_sizes(score: Score, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} of {type(score).__name__} must be at least 1, but is {size}")


def _checked_heads(score: Score, num_heads: int | None, key_heads: int | None) -> int | None:
    """The number of key heads: that of heads unless told."""
    if num_heads is not None and num_heads < 1:
        raise ValueError(f"num_heads of {type(score).__name__} must be at least 1, but is {num_heads}")
    if key_heads is None:
        return num_heads
    if num_heads is None or key_heads < 1 or num_heads % key_heads:
        raise ValueError(f"key_heads must divide num_heads={num_heads}, but is {key_heads}")
    return key_heads
