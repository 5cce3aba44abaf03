"""Additive scores: a feed-forward network with one hidden layer compares query and key.

Source: lectures, A.9, A.10, B.5; bahdanau2015, appendix A.1.2; luong2015, section 3.1 ("concat").
"""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import MappedQueries, Queries
from regard.attention.scores.base import (
    Form,
    LinearMaps,
    Score,
    ScoreSizes,
    TanhSum,
    apply_weight,
    init_weight,
)
from regard.compat.torch import run_pre_hooks


@final
class Additive(LinearMaps):
    """Additive score: v . tanh(W_q q + W_k k), a network with one hidden layer. (lectures, A.9)

    With normed=True, score = g (v / |v|) . tanh(W_q q + W_k k + b): weight normalization of v
    (salimans2016), which stabilizes the training of large models.
    Parameters: query_weight (hidden, query_dim), key_weight (hidden, key_dim), v (hidden); normed:
    gain (1), bias (hidden). Cost: time O(query * key * hidden). Source: bahdanau2015, appendix
    A.1.2 (their W_a, U_a, v_a).
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
        self.v = init_weight(num_heads, hidden)
        leading = self.v.shape[:-1]
        gain = torch.full((*leading, 1), 1 / math.sqrt(hidden))
        self.gain = nn.Parameter(gain) if normed else None
        self.bias = nn.Parameter(torch.zeros(*leading, hidden)) if normed else None

    def map_query(self, query: Queries) -> MappedQueries:
        query = super().map_query(query)
        return query if self.bias is None else query + self.bias.unsqueeze(-2).to(query.dtype)

    def form(self, dim: int) -> Form:
        if self.gain is None:
            return TanhSum(self.v)
        return TanhSum(self.gain * nn.functional.normalize(self.v, dim=-1))


@final
class Concat(Score):
    """Concat score: v . tanh(W [q; k]), which is Additive with W = [W_q W_k]. (luong2015, "concat")

    Parameters: weight (hidden, query_dim + key_dim), v (hidden). The product with [q; k] is the sum
    of those with q and k, so keys are still mapped once per memory; only the initialization of W
    differs, that of one layer on both.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int, *, num_heads: int | None = None):
        super().__init__()
        self._set_heads(num_heads)
        self.query_dim = query_dim
        self.weight = init_weight(num_heads, hidden, query_dim + key_dim)
        self.v = init_weight(num_heads, hidden)

    @classmethod
    def create(cls, sizes: ScoreSizes) -> Score:
        """Create the score. Raises: ValueError if heads share keys, which each head maps."""
        if sizes.key_heads not in (None, sizes.num_heads):
            raise ValueError(
                f"key_heads of Concat must be num_heads={sizes.num_heads}, got {sizes.key_heads}; "
                "Additive, with maps of their own for keys, shares them"
            )
        return cls(sizes.query, sizes.keys, sizes.hidden, num_heads=sizes.num_heads)

    def map_query(self, query: Queries) -> MappedQueries:
        run_pre_hooks(self, query)
        return apply_weight(query, self.weight[..., : self.query_dim], "query")

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key hidden"]:
        run_pre_hooks(self, keys)
        return apply_weight(keys, self.weight[..., self.query_dim :], "keys")

    def form(self, dim: int) -> Form:
        return TanhSum(self.v)


@final
class BareAdditive(Score):
    """Additive score without maps: v . tanh(q + k), for q and k that are projected already.

    The score of multi-head additive attention, in which the projections of the heads, W_q^h and
    W_k^h, are the maps. Parameters: v (dim), or (head, dim). Cost: time O(query * key * dim).
    Source: bahdanau2015, appendix A.1.2.
    """

    needs_equal_sizes = True

    def __init__(self, dim: int, *, num_heads: int | None = None):
        super().__init__()
        self._set_heads(num_heads)
        self.v = init_weight(num_heads, dim)

    @classmethod
    def create(cls, sizes: ScoreSizes) -> Score:
        if sizes.query == sizes.keys == sizes.hidden:
            return cls(sizes.query, num_heads=sizes.num_heads)
        return Additive.create(sizes)

    def form(self, dim: int) -> Form:
        return TanhSum(self.v)
