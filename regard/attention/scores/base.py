"""Base classes of scores, the formulas that fused kernels support, and parts that several scores share.

    score(q, k) = compare(map_query(q), map_keys(k))

A score has two parts, so that the keys of a memory are mapped only once, however many queries read it: `map_query`
and `map_keys` project both into a common space, `compare` scores every pair there.

Scores with parameters may have them per head: num_heads=l gives every parameter a leading axis of heads, for queries
(..., head, query, query_dim) and keys (..., head, key, key_dim). A memory that all heads share has one head, or
key_heads of them (a divisor of l: grouped queries), each with a key map of its own.

Source: lectures, A.2.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.linear import linear


class InnerProduct(NamedTuple):
    """Formula of a score: scale <q, k> of mapped vectors, then, if cap is set, cap tanh(. / cap)."""

    scale: float
    cap: float | None = None


class TanhSum(NamedTuple):
    """Formula of a score: v . tanh(q + k) of mapped vectors; v (hidden), or one per head, (head, hidden)."""

    v: Tensor


class ScoreSizes(NamedTuple):
    """Sizes from which a core creates a score by its name."""

    query: int
    """Size of the queries."""
    keys: int
    """Size of the keys."""
    hidden: int
    """Size of the common space of a score that projects queries and keys."""
    num_heads: int | None = None
    """Number of heads with parameters of their own; None: one score."""
    key_heads: int | None = None
    """Number of heads of the keys, which divides num_heads; None: num_heads."""
    max_keys: int = 1
    """Largest number of keys of a score by position."""


Form = InnerProduct | TanhSum
"""Formulas that fused kernels support; other scores are computed by the reference kernel."""


class Score(nn.Module, ABC):
    """Base class of scores: score(q, k) = compare(map_query(q), map_keys(k)) for every pair, (..., query, key)."""

    num_heads: int | None = None
    """Number of heads with parameters of their own; None: the score treats all heads alike."""
    initial_factor: float | None = None
    """Initial value of the factor of the scores in the softmax that a core learns, for scores so small, such as
    cosines, that their softmax is nearly uniform; None: no factor."""
    is_rotation_invariant: bool = False
    """True if score(R q, R k) = score(q, k) for every rotation R, as rotary positional encodings require."""
    needs_equal_sizes: bool = False
    """True if queries and keys must be of equal size."""

    @classmethod
    def create(cls, sizes: ScoreSizes) -> "Score":
        """Create the score for a core whose config names it; by default without arguments."""
        return cls()

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


class LinearMaps(Score):
    """Base class of General and Additive: linear maps of queries and of keys, both to size `hidden`."""

    def __init__(
        self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None, key_heads: int | None = None
    ):
        super().__init__()
        check_sizes(self, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        key_heads = check_heads(self, num_heads, key_heads)
        self.num_heads = num_heads
        self.query_weight = nn.Parameter(init_uniform(*head_axes(num_heads), hidden, query_dim))
        self.key_weight = nn.Parameter(init_uniform(*head_axes(key_heads), hidden, key_dim))

    @classmethod
    def create(cls, sizes: ScoreSizes) -> Score:
        """Create the score of states, or of heads, of these sizes."""
        heads = {"num_heads": sizes.num_heads, "key_heads": sizes.key_heads}
        return cls(sizes.query, sizes.keys, sizes.hidden, **heads)

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


def head_axes(num_heads: int | None) -> tuple[int, ...]:
    """Return the leading axes of weights that differ between heads: (num_heads,), or none."""
    return () if num_heads is None else (num_heads,)


def check_sizes(score: Score, **sizes: int) -> None:
    """Raise ValueError for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} of {type(score).__name__} must be at least 1, got {size}")


def check_heads(score: Score, num_heads: int | None, key_heads: int | None) -> int | None:
    """Check the numbers of heads, and return the number of key heads, which defaults to num_heads."""
    if num_heads is not None and num_heads < 1:
        raise ValueError(f"num_heads of {type(score).__name__} must be at least 1, got {num_heads}")
    if key_heads is None:
        return num_heads
    if num_heads is None or key_heads < 1 or num_heads % key_heads:
        raise ValueError(f"key_heads must divide num_heads={num_heads}, got {key_heads}")
    return key_heads
