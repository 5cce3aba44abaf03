"""Soft cap: scores limited to (-cap, cap) by tanh, as in Gemma 2."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import MappedKeys, MappedQueries, Pairs, Queries, check_part
from regard.attention.scores.base import Form, InnerProduct, Score, cap_scores


@final
class SoftCap(Score):
    """Soft-capped score: cap tanh(score / cap), close to the score while small. (gemma2024)

    Capping prevents single keys from taking all weight, and keeps gradients from vanishing. The
    maps are those of the inner score.
    Raises: TypeError if `score` is not a Score; ValueError if cap is not positive and finite.
    """

    def __init__(self, score: Score, cap: float):
        super().__init__()
        check_part("score of SoftCap", score, Score)
        if not 0 < cap < float("inf"):
            raise ValueError(f"cap must be positive and finite, got {cap}")
        self.score = score
        self.cap = float(cap)
        self.num_heads = score.num_heads
        self.is_rotation_invariant = score.is_rotation_invariant
        self.needs_equal_sizes = score.needs_equal_sizes
        self.needs_all_keys = score.needs_all_keys
        self.initial_factor = score.initial_factor

    def map_query(self, query: Queries) -> MappedQueries:
        return self.score.map_query(query)

    def map_keys(self, keys: Float[Tensor, "... key key_dim"]) -> Float[Tensor, "... key dim"]:
        return self.score.map_keys(keys)

    def compare(self, query: MappedQueries, keys: MappedKeys) -> Pairs:
        return cap_scores(self.score(query, keys, is_mapped=True), self.cap)

    def form(self, dim: int) -> Form | None:
        form = self.score.form(dim)
        if not isinstance(form, InnerProduct) or form.cap is not None:
            return None
        return form._replace(cap=self.cap)

    def extra_repr(self) -> str:
        return f"cap={self.cap}"
