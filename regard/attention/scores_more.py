"""More scores: cosine similarity, location-based, and soft-capped.

    Cosine      <q, k> / (|q| |k|)            cosine similarity; in [-1, 1]
    Location    (W q)_j                       depends on the query and the position j of the key, not on its content
    SoftCap     cap tanh(score / cap)         another score, bounded to [-cap, cap]

Source: Cosine graves2014 (section 3.3.1, equation 6); Location luong2015 (equation 8); SoftCap gemma2024 (section 2).
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.scores import Form, InnerProduct, Score, apply_weight, init_uniform, inner_products


@final
class Cosine(Score):
    """Cosine similarity: <q, k> / (|q| |k|); q and k of equal size. Zero vectors score 0, with a gradient of zero.

    So do vectors whose numbers are all subnormal (below 1.2e-38 in float32, 6.1e-5 in float16): their direction is
    mostly rounding error, and the gradient, proportional to one over the norm, would overflow the dtype.

    The softmax of numbers in [-1, 1] is nearly uniform: use a choice with a scale, Soft(beta) (the key strength of
    graves2014). Keys are normalized once per memory.
    """

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """Return q / |q|."""
        return _normalize(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """Return k / |k|."""
        return _normalize(keys)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return inner products of normalized vectors. Raises ValueError if their sizes differ."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """Return the unscaled inner product: mapped vectors are normalized."""
        return InnerProduct(1.0)


@final
class Location(Score):
    """Location-based score: score_j = (W q)_j, independent of the content of key j. (luong2015, equation 8)

    Parameters: weight (max_keys, query_dim), or (head, max_keys, query_dim); row j scores key j of the memory.
    Raises: ValueError for more than max_keys keys. Keys may have any size: their content is not used.
    """

    def __init__(self, query_dim: int, max_keys: int, *, num_heads: int | None = None):
        super().__init__()
        sizes = {"query_dim": query_dim, "max_keys": max_keys, "num_heads": 1 if num_heads is None else num_heads}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} of Location must be at least 1, got {size}")
        self.num_heads = num_heads
        self.weight = nn.Parameter(init_uniform(*(() if num_heads is None else (num_heads,)), max_keys, query_dim))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query max_keys"]:
        """Return W q, the scores of all positions."""
        return apply_weight(query, self.weight, "query")

    def compare(
        self, query: Float[Tensor, "... query max_keys"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return the scores of as many positions as there are keys."""
        num_keys, max_keys = keys.shape[-2], self.weight.shape[-2]
        if num_keys > max_keys:
            raise ValueError(f"the number of keys must be at most max_keys={max_keys} for Location, got {num_keys}")
        leading = torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2])
        return query[..., :num_keys].expand(*leading, -1, -1)

    def extra_repr(self) -> str:
        """Sizes of the module."""
        max_keys, query_dim = self.weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"query_dim={query_dim}, max_keys={max_keys}{heads}"


@final
class SoftCap(Score):
    """Soft-capped score: cap tanh(inner score / cap), close to the inner score while that is small. (gemma2024)

    Capping prevents single keys from taking all weight, and keeps gradients from vanishing. The maps are those of the
    inner score.
    Raises: TypeError if `score` is not a Score; ValueError if cap is not positive and finite.
    """

    def __init__(self, score: Score, cap: float):
        super().__init__()
        if not isinstance(score, Score):
            raise TypeError(f"score of SoftCap must be a Score, got {type(score).__name__}")
        if not 0 < cap < float("inf"):
            raise ValueError(f"cap must be positive and finite, got {cap}")
        self.score = score
        self.cap = float(cap)
        self.num_heads = score.num_heads

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """Map as the inner score does."""
        return self.score.map_query(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """Map as the inner score does."""
        return self.score.map_keys(keys)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Return the capped inner scores."""
        scores = self.score.compare(query, keys)
        # Zero times the score is added: a score that overflows may have the wrong sign, and must give NaN, not the cap.
        return torch.add(self.cap * torch.tanh(scores / self.cap), scores, alpha=0)

    def form(self, dim: int) -> Form | None:
        """Return a capped inner product; kernels support no other capped scores."""
        form = self.score.form(dim)
        return form._replace(cap=self.cap) if isinstance(form, InnerProduct) and form.cap is None else None

    def extra_repr(self) -> str:
        """Cap of the module."""
        return f"cap={self.cap}"


def _normalize(vectors: Tensor) -> Tensor:
    """Divide each vector by its norm; zero and subnormal vectors become zero."""
    if vectors.shape[-1] == 0:
        raise ValueError(f"the last axis of vectors for Cosine must not be empty, got shape {tuple(vectors.shape)}")
    # The largest entry is divided out first, so that squares neither overflow nor underflow. The result does not
    # depend on it, so the gradient treats it as a constant.
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(vectors.dtype).tiny
    scaled = vectors / largest.masked_fill(zero, 1.0)
    # Zero vectors are replaced before the square root, whose derivative at zero is infinite.
    length = scaled.masked_fill(zero, 1.0).norm(dim=-1, keepdim=True)
    return (scaled / length).masked_fill(zero, 0.0).to(vectors.dtype)
