"""Cosine score: the inner product of normalized vectors."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import MappedQueries, Queries
from regard.attention.scores.base import Form, InnerProduct, Score


@final
class Cosine(Score):
    """Cosine similarity: <q, k> / (|q| |k|). Zero vectors score 0, with a gradient of zero.

    So do vectors whose numbers are all subnormal (below 1.2e-38 in float32, 6.1e-5 in float16):
    their direction is mostly rounding error, and the gradient, proportional to one over the norm,
    would overflow the dtype.

    The softmax of numbers in [-1, 1] is nearly uniform: use a choice with a scale, Soft(beta) (the
    key strength of graves2014). Keys are normalized once per memory.
    """

    initial_factor = 10.0
    is_rotation_invariant = True
    needs_equal_sizes = True

    def map_query(self, query: Queries) -> MappedQueries:
        return _normalize(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        return _normalize(keys)

    def form(self, dim: int) -> Form:
        return InnerProduct(1.0)


def _normalize(vectors: Tensor) -> Tensor:
    """Divide each vector by its norm; zero and subnormal vectors become zero."""
    # The largest entry is divided out first, so that squares neither overflow nor underflow. The
    # result does not depend on it, so the gradient treats it as a constant.
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(vectors.dtype).tiny
    scaled = vectors / largest.masked_fill(zero, 1.0)
    # Zero vectors are replaced before the square root, whose derivative at zero is infinite.
    length = scaled.masked_fill(zero, 1.0).norm(dim=-1, keepdim=True)
    return (scaled / length).masked_fill(zero, 0.0).to(vectors.dtype)
