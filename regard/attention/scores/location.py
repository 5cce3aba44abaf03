"""Location-based score: a score for each key position, computed from the query alone."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import MappedQueries, Queries
from regard.attention.scores.base import Score, ScoreSizes, apply_weight, init_weight
from regard.compat.torch import run_pre_hooks


@final
class Location(Score):
    """Location-based score: score_j = (W q)_j, whatever key j contains. (luong2015, equation 8)

    Parameters: weight (max_keys, query_dim), or (head, max_keys, query_dim); row j scores key j of
    the memory.
    Keys may have any size: their content is not used.
    Raises: ValueError for more than max_keys keys, and for a memory whose keys are not in their
            order from position 0 on: a RingMemory, or a SlidingMemory that has discarded pairs.
    """

    needs_all_keys = True

    def __init__(self, query_dim: int, max_keys: int, *, num_heads: int | None = None):
        super().__init__()
        self._set_heads(num_heads)
        self.weight = init_weight(num_heads, max_keys, query_dim)

    @classmethod
    def create(cls, sizes: ScoreSizes) -> Score:
        return cls(sizes.query, sizes.max_keys)

    def map_query(self, query: Queries) -> MappedQueries:
        run_pre_hooks(self, query)
        return apply_weight(query, self.weight, "query")

    def compare(
        self, query: Float[Tensor, "... query max_keys"], keys: Float[Tensor, "... key dim"]
    ) -> Float[Tensor, "... query key"]:
        num_keys, max_keys = keys.shape[-2], self.weight.shape[-2]
        if num_keys > max_keys:
            raise ValueError(
                f"the number of keys must be at most max_keys={max_keys} for Location, got "
                f"{num_keys}"
            )
        leading = torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2])
        return query[..., :num_keys].expand(*leading, -1, -1)
