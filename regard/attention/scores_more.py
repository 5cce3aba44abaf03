"""More scores: by angle, by place, and within bounds.

    Cosine      <q, k> / (|q| |k|)            the angle alone; in [-1, 1]
    Location    (W q)_j                       key j's score whatever stands there: the query asks for a place
    SoftCap     cap tanh(score / cap)         another score that cannot leave [-cap, cap]

Source: Cosine graves2014 (section 3.3.1, equation 6); Location luong2015 (equation 8); SoftCap gemma2024 (section 2).
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.scores import Form, InnerProduct, Score, inner_products, mapped, uniform


@final
class Cosine(Score):
    """score = <q, k> / (|q| |k|); q and k of equal size. A vector of length zero scores 0, and its gradient is zero.

    So does one whose numbers are all subnormal (below 1.2e-38 in float32, 6.1e-5 in float16): its direction is mostly
    rounding, and the gradient, which goes by one over the length, is beyond the range of the dtype.

    The softmax of numbers in [-1, 1] is nearly flat: give the choice a scale, Soft(beta) (the key strength of
    graves2014). Lengths are divided out before q and k meet, once a memory for the keys.
    """

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """q / |q|."""
        return _direction(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """k / |k|."""
        return _direction(keys)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """Inner products of directions. Raises ValueError if their sizes differ."""
        return inner_products(self, query, keys)

    def form(self, dim: int) -> Form:
        """The inner product, of vectors that are of length one by now."""
        return InnerProduct(1.0)


@final
class Location(Score):
    """score_j = (W q)_j: key j is scored by its number, not by what it is. (luong2015, equation 8, "location")

    Parameters: weight (max_keys, query_dim), or (head, max_keys, query_dim); row j asks for key j of the memory.
    Raises: ValueError for more than max_keys keys. Keys may have any size: nothing looks at them.
    """

    def __init__(self, query_dim: int, max_keys: int, *, num_heads: int | None = None):
        super().__init__()
        sizes = {"query_dim": query_dim, "max_keys": max_keys, "num_heads": 1 if num_heads is None else num_heads}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} of Location must be at least 1, but is {size}")
        self.num_heads = num_heads
        self.weight = nn.Parameter(uniform(*(() if num_heads is None else (num_heads,)), max_keys, query_dim))

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query max_keys"]:
        """W q: what the query thinks of every place."""
        return mapped(query, self.weight, "query")

    def compare(
        self, query: Float[Tensor, "... query max_keys"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """The scores of as many places as there are keys."""
        num_keys, max_keys = keys.shape[-2], self.weight.shape[-2]
        if num_keys > max_keys:
            raise ValueError(f"Location was made for at most max_keys={max_keys} keys, but there are {num_keys}")
        leading = torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2])
        return query[..., :num_keys].expand(*leading, -1, -1)

    def extra_repr(self) -> str:
        """Sizes."""
        max_keys, query_dim = self.weight.shape[-2:]
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"query_dim={query_dim}, max_keys={max_keys}{heads}"


@final
class SoftCap(Score):
    """score = cap tanh(inner score / cap): nearly the inner score while small, never beyond the cap. (gemma2024)

    It keeps single keys from drawing all weight, and their gradient alive. Maps are those of the inner score.
    Raises: TypeError if `score` is no Score; ValueError if cap is not positive and finite.
    """

    def __init__(self, score: Score, cap: float):
        super().__init__()
        if not isinstance(score, Score):
            raise TypeError(f"SoftCap caps a Score, but got {type(score).__name__}")
        if not 0 < cap < float("inf"):
            raise ValueError(f"cap must be a positive number, but is {cap}")
        self.score = score
        self.cap = float(cap)
        self.num_heads = score.num_heads

    def map_query(self, query: Float[Tensor, "... query query_dim"]) -> Float[Tensor, "... query dim"]:
        """The inner score's."""
        return self.score.map_query(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        """The inner score's."""
        return self.score.map_keys(keys)

    def compare(
        self, query: Float[Tensor, "... query dim"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        """The inner score's, capped."""
        scores = self.score.compare(query, keys)
        # Zero times the score: one beyond the range of the dtype may have the wrong sign, and must show, not be capped.
        return torch.add(self.cap * torch.tanh(scores / self.cap), scores, alpha=0)

    def form(self, dim: int) -> Form | None:
        """A capped inner product; kernels know no other capped scores."""
        form = self.score.form(dim)
        return form._replace(cap=self.cap) if isinstance(form, InnerProduct) and form.cap is None else None

    def extra_repr(self) -> str:
        """The cap."""
        return f"cap={self.cap}"


def _direction(vectors: Tensor) -> Tensor:
    if vectors.shape[-1] == 0:
        raise ValueError(f"Cosine needs vectors of one number or more, but they are {tuple(vectors.shape)}")
    # The largest entry is divided out first, so that squares neither overflow nor vanish. As the direction does not
    # depend on it, it is a constant to the gradient.
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(vectors.dtype).tiny
    scaled = vectors / largest.masked_fill(zero, 1.0)
    # Zero vectors are replaced before the root: its slope at zero is infinite.
    length = scaled.masked_fill(zero, 1.0).norm(dim=-1, keepdim=True)
    return (scaled / length).masked_fill(zero, 0.0).to(vectors.dtype)
