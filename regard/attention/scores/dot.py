"""Scores by inner products: dot, scaled dot and general.

Source: lectures, A.7, A.8, A.11, A.12; luong2015, section 3.1; vaswani2017, section 3.2.1.
"""

import math
from typing import final

from regard.attention.scores.base import Form, InnerProduct, LinearMaps, Score


@final
class Dot(Score):
    """Dot-product score: <q, k>; q and k of equal size. (luong2015, "dot")"""

    is_rotation_invariant = True
    needs_equal_sizes = True

    def form(self, dim: int) -> Form:
        return InnerProduct(1.0)


@final
class ScaledDot(Score):
    """Scaled dot-product score: <q, k> / sqrt(d). (vaswani2017)"""

    is_rotation_invariant = True
    needs_equal_sizes = True

    def form(self, dim: int) -> Form:
        return InnerProduct(1 / math.sqrt(dim))


@final
class General(LinearMaps):
    """General score: <W_q q, W_k k>. (lectures, A.11, B.6; luong2015, "general")

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

    def form(self, dim: int) -> Form:
        return InnerProduct(1.0)
