"""Base classes of scores, formulas that fused kernels support, and shared parts of scores.

    score(q, k) = compare(map_query(q), map_keys(k))

A score has two parts, so that the keys of a memory are mapped only once, however many queries read
it: `map_query` and `map_keys` project both into a common space, `compare` scores every pair there.
A score that is an inner product or a sum under a tanh there has a `form` in place of `compare`, so
that all kernels compute the same formula.

Scores with parameters may have them per head: num_heads=l gives every parameter a leading axis of
heads, for queries (..., head, query, query_dim) and keys (..., head, key, key_dim). A memory that
all heads share has one head, or key_heads of them (a divisor of l: grouped queries), each with a
key map of its own.

Source: lectures, A.2.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import MappedKeys, MappedQueries, Pairs, Queries
from regard.compat.torch import run_pre_hooks
from regard.ops.linear import linear


class InnerProduct(NamedTuple):
    """Formula of a score: scale <q, k> of mapped vectors; with a cap, cap tanh(. / cap) of it."""

    scale: float
    cap: float | None = None


class TanhSum(NamedTuple):
    """Formula of a score: v . tanh(q + k) of mapped vectors; v is (hidden), or (head, hidden)."""

    v: Tensor


class ScoreSizes(NamedTuple):
    """Sizes from which a core creates a score by its name."""

    query: int
    keys: int
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


class Score(nn.Module):
    """Base class of scores: score(q, k) = compare(map_query(q), map_keys(k)) for every pair.

    A subclass defines `compare`, or `form`, from which `compare` follows.
    Raises: TypeError for a class outside of this package that defines both, which may differ.
    """

    num_heads: int | None = None
    """Number of heads with parameters of their own; None: the score treats all heads alike."""
    initial_factor: float | None = None
    """Initial factor of the scores that a core learns, for scores as small as cosines, whose
    softmax is nearly uniform; None: no factor."""
    is_rotation_invariant: bool = False
    """True if score(R q, R k) = score(q, k) for rotations R, as rotary encodings require."""
    needs_equal_sizes: bool = False
    needs_all_keys: bool = False
    """True if key j must be the pair at position j, for scores of positions."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        compare, form = cls.compare, cls.form
        modules = {compare.__module__.split(".")[0], form.__module__.split(".")[0]}
        if compare is not Score.compare and form is not Score.form and modules != {"regard"}:
            raise TypeError(f"score {cls.__name__} must define compare or form, not both")

    @classmethod
    def create(cls, sizes: ScoreSizes) -> "Score":
        """Create the score for a core whose config names it; by default without arguments."""
        return cls()

    def map_query(self, query: Queries) -> MappedQueries:
        """Project queries into the common space; by default the identity."""
        return query

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """Project keys into the common space, once per memory; by default the identity."""
        return keys

    def compare(self, query: MappedQueries, keys: MappedKeys) -> Pairs:
        """Return the scores of all pairs of mapped vectors; by default computed from `form`."""
        form = self.form(query.shape[-1])
        if isinstance(form, TanhSum):
            return _compare_additive(query, keys, form.v)
        if not isinstance(form, InnerProduct):
            raise TypeError(
                f"{type(self).__name__} must define compare(query, keys), or a form that is an "
                f"InnerProduct or a TanhSum, got {form!r}"
            )
        scores = (query if form.scale == 1 else query * form.scale) @ keys.transpose(-2, -1)
        return scores if form.cap is None else cap_scores(scores, form.cap)

    def form(self, dim: int) -> Form | None:
        """Return the formula of the scores of mapped vectors of size `dim`, for fused kernels."""
        return None

    def forward(
        self, query: Queries, keys: Float[Tensor, "... key key_dim"], *, is_mapped: bool = False
    ) -> Pairs:
        """Return the scores of all pairs; is_mapped: of vectors that are mapped already."""
        if not is_mapped:
            query, keys = self.map_query(query), self.map_keys(keys)
        return self.compare(query, keys)

    def extra_repr(self) -> str:
        shapes = [f"{name}: {tuple(x.shape)}" for name, x in self.named_parameters(recurse=False)]
        return ", ".join(shapes)

    def _set_heads(self, num_heads: int | None, key_heads: int | None = None) -> int | None:
        """Set num_heads, and return the number of heads of the keys, by default num_heads."""
        self.num_heads = num_heads
        if key_heads is None:
            return num_heads
        if num_heads is None or key_heads < 1 or num_heads % key_heads:
            raise ValueError(f"key_heads must divide num_heads={num_heads}, got {key_heads}")
        return key_heads


class LinearMaps(Score):
    """Base class of General and Additive: linear maps of queries and keys, both to `hidden`."""

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden: int,
        *,
        num_heads: int | None = None,
        key_heads: int | None = None,
    ):
        super().__init__()
        key_heads = self._set_heads(num_heads, key_heads)
        self.query_weight = init_weight(num_heads, hidden, query_dim)
        self.key_weight = init_weight(key_heads, hidden, key_dim)

    @classmethod
    def create(cls, sizes: ScoreSizes) -> Score:
        return cls(
            sizes.query,
            sizes.keys,
            sizes.hidden,
            num_heads=sizes.num_heads,
            key_heads=sizes.key_heads,
        )

    def map_query(self, query: Queries) -> MappedQueries:
        run_pre_hooks(self, query)
        return apply_weight(query, self.query_weight, "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        run_pre_hooks(self, keys)
        return apply_weight(keys, self.key_weight, "keys")


def map_all(score: Score, name: Literal["map_query", "map_keys"], vectors: Tensor) -> Tensor:
    """Return queries or keys mapped by a score. Raises: ValueError if it drops some."""
    mapped = getattr(score, name)(vectors)
    if mapped.shape[:-1] != vectors.shape[:-1]:
        check_mapped(score, name, vectors, mapped)
    return mapped


def check_mapped(score: Score, name: str, vectors: Tensor, mapped: Tensor) -> None:
    """Raise ValueError if a score maps vectors to another number of them."""
    leading = torch.broadcast_shapes(vectors.shape[:-2], mapped.shape[:-2])  # heads may share them
    shape = (*leading, vectors.shape[-2], mapped.shape[-1])
    if mapped.shape != shape:
        place = f"{type(score).__name__}.{name}"
        raise ValueError(f"vectors of {place} must be {shape}, got {tuple(mapped.shape)}")


def compare_all(score: Score, query: Tensor, keys: Tensor) -> Pairs:
    """Return the scores of all pairs. Raises: ValueError if `compare` gives another shape."""
    scores = score(query, keys, is_mapped=True)
    leading = torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2])
    shape = (*leading, query.shape[-2], keys.shape[-2])
    if scores.shape != shape:
        name = f"{type(score).__name__}.compare"
        raise ValueError(f"scores of {name} must be {shape}, got {tuple(scores.shape)}")
    return scores


def cap_scores(scores: Tensor, cap: float) -> Tensor:
    """Return cap tanh(scores / cap)."""
    return cap * torch.tanh(scores / cap)


def apply_weight(vectors: Tensor, weight: Tensor, name: str) -> Tensor:
    """Return W x for a weight (out, in), or W_h x for one of (head, out, in)."""
    if vectors.shape[-1] != weight.shape[-1]:
        raise ValueError(f"{name} must have size {weight.shape[-1]}, got {vectors.shape[-1]}")
    if weight.dim() == 2:
        return linear(vectors, weight)
    if vectors.dim() < 3 or vectors.shape[-3] not in (1, len(weight)):
        raise ValueError(
            f"{name} must be (..., {len(weight)} heads or 1, {name.removesuffix('s')}, "
            f"{weight.shape[-1]}), got {tuple(vectors.shape)}"
        )
    return vectors @ weight.transpose(-2, -1)


def init_weight(num_heads: int | None, *shape: int) -> nn.Parameter:
    """Create a weight ([head,] ..., in), uniform within 1 / sqrt(in)."""
    sizes = shape if num_heads is None else (num_heads, *shape)
    bound = 1 / math.sqrt(shape[-1])
    return nn.Parameter(torch.empty(sizes).uniform_(-bound, bound))


def _compare_additive(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    hidden = torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3))  # (..., query, key, hidden)
    if v.dim() == 1:
        return hidden @ v.to(hidden.dtype)
    if hidden.dim() < 4 or hidden.shape[-4] != len(v):
        raise ValueError(
            f"query must be (..., {len(v)} heads, query, dim), got {tuple(query.shape)}"
        )
    return (hidden @ v[:, None, :, None].to(hidden.dtype)).squeeze(-1)
