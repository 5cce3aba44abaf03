"""Scores: how well a key matches a query.

    Dot         <q, k>                                  q and k of equal size
    ScaledDot   <q, k> / sqrt(d)                        the same, unit variance when q and k have it
    General     <W_q q, W_k k>                          linear maps, then the inner product ("option 2")
    Additive    v . tanh(W_q q + W_k k)                 a one-hidden-layer network on [q; k] ("option 1", MLP)

A score works in two parts, so that what concerns the keys alone is done once a memory, however many queries
read it: `map_query` and `map_keys` bring both into the space where they meet, `compare` scores every pair there.

Source: lectures, A and B; Additive bahdanau2015 (appendix A.1.2), Dot and General luong2015 (section 3.1),
ScaledDot vaswani2017 (section 3.2.1).
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Additive", "Dot", "Form", "General", "InnerProduct", "ScaledDot", "Score", "TanhSum"]


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
        return _inner(self, query, keys)

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
        return _inner(self, query * (1 / math.sqrt(query.shape[-1])), keys)

    def form(self, dim: int) -> Form:
        """Scaled by 1 / sqrt(d)."""
        return InnerProduct(1 / math.sqrt(dim))


class _Mapping(Score):
    """What General and Additive share: a linear map for queries and one for keys, both to size `hidden`."""

    def __init__(self, query_dim: int, key_dim: int, hidden: int):
        super().__init__()
        for name, size in (("query_dim", query_dim), ("key_dim", key_dim), ("hidden", hidden)):
            if size < 1:
                raise ValueError(f"{name} of {type(self).__name__} must be at least 1, but is {size}")
        self.query_weight = nn.Parameter(_uniform(hidden, query_dim))
        self.key_weight = nn.Parameter(_uniform(hidden, key_dim))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query hidden"]:
        """W_q q."""
        return _mapped(query, self.query_weight, "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        """W_k k."""
        return _mapped(keys, self.key_weight, "keys")

    def extra_repr(self) -> str:
        """Sizes."""
        (hidden, query_dim), key_dim = self.query_weight.shape, self.key_weight.shape[1]
        return f"query_dim={query_dim}, key_dim={key_dim}, hidden={hidden}"


@final
class General(_Mapping):
    """score = <W_q q, W_k k>: linear maps, then the inner product. (lectures, "option 2"; luong2015, "general")

    Parameters: query_weight (hidden, query_dim), key_weight (hidden, key_dim). Luong's q^T W k is
    W = query_weight^T key_weight; `hidden` (default: the smaller of the two sizes) bounds its rank.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int | None = None):
        super().__init__(query_dim, key_dim, min(query_dim, key_dim) if hidden is None else hidden)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Inner products of the mapped vectors."""
        return _inner(self, query, keys)

    def form(self, dim: int) -> Form:
        """Not scaled: the maps learn their own scale."""
        return InnerProduct(1.0)


@final
class Additive(_Mapping):
    """score = v . tanh(W_q q + W_k k): a network of one hidden layer fed [q; k]. (lectures, "option 1")

    Parameters: query_weight (hidden, query_dim), key_weight (hidden, key_dim), v (hidden).
    Cost: time O(query * key * hidden). Source: bahdanau2015, appendix A.1.2 (their W_a, U_a, v_a).
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int):
        super().__init__(query_dim, key_dim, hidden)
        self.v = nn.Parameter(_uniform(1, hidden)[0])

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """v . tanh of every sum of a mapped query and a mapped key."""
        hidden = torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3))  # (..., query, key, hidden)
        return hidden @ self.v.to(hidden.dtype)

    def form(self, dim: int) -> Form:
        """The network itself."""
        return TanhSum(self.v)


def _inner(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    if query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"{type(score).__name__} needs queries and keys of equal size, but query has {query.shape[-1]} "
            f"and keys have {keys.shape[-1]}; General and Additive take unequal sizes"
        )
    return query @ keys.transpose(-2, -1)


def _mapped(vectors: Tensor, weight: Tensor, name: str) -> Tensor:
    if vectors.shape[-1] != weight.shape[1]:
        raise ValueError(f"{name} must have size {weight.shape[1]}, but has {vectors.shape[-1]}")
    return nn.functional.linear(vectors, weight)


def _uniform(rows: int, columns: int) -> Tensor:
    bound = 1 / math.sqrt(columns)
    return torch.empty(rows, columns).uniform_(-bound, bound)
