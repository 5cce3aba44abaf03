"""State of linear attention: sums of a fixed size in place of pairs.

    score_ij  = <phi(q_i), phi(k_j)> >= 0           (regard.attention.scores.features)
    weight_ij = score_ij / sum_l score_il           (Proportional)
    out_i     = sum_j weight_ij v_j = phi(q_i)^T S / phi(q_i)^T z
    S         = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)

Source: katharopoulos2020, sections 3.2 to 3.4.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import align, broadcast_leading, check_part, widen
from regard.attention.biases import Bias
from regard.attention.choices import Choice, Proportional, divide
from regard.attention.masks import Causal, Mask
from regard.attention.memory.base import KeyValueCache, NewKeys, NewValues
from regard.attention.positions import Positions
from regard.attention.scores import Features, Score
from regard.attention.scores.base import map_all


@dataclass(frozen=True, eq=False)
class LinearState:
    """State of linear attention: sums over key-value pairs, of a size that they do not change.

        S = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)
        attend(q, state) = phi(q)^T S / phi(q)^T z

    `LinearState.of(memory)` creates one; `extend` adds more pairs, with keys mapped by the same
    score. Read it with `attend(query, state, score=state.mapped_by, choice=Proportional())`: every
    query attends to every pair that was added. One step at a time (extend, then read with one
    query) it equals a causal read of the whole sequence. Sums are at least in float32.
    It is no KeyValueCache: it has no single pairs, and so neither weights nor masks nor `crop`.
    Source: katharopoulos2020, section 3.4; our S and z are theirs, phi(q) (.)^T the read.
    """

    sums: Float[Tensor, "... features value_dim"]
    totals: Float[Tensor, "... features"]
    mapped_by: Features

    @classmethod
    def of(cls, memory: KeyValueCache) -> Self:
        """Sum the pairs of a memory whose keys are mapped by Features, except for masked keys.

        Raises: TypeError if the keys are not mapped by Features, ValueError if the mask differs
                between queries.
        """
        score, keys = memory.mapped_by, memory.keys
        if not isinstance(score, Features):
            raise TypeError(f"keys must be mapped by Features, got keys mapped by {score!r}")
        if memory.mask is not None:
            positions = memory.positions(2)
            if not is_same_for_all_queries(memory.mask, positions):
                raise ValueError(f"the mask must be the same for every query, got {memory.mask!r}")
            keys = zero_hidden_keys(keys, memory.mask.materialize(positions))
        return cls(*summarize(widen(keys), widen(memory.values)), score)

    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        """Return the state with new pairs added, whose keys must be mapped by the same score."""
        sums, totals = summarize(widen(keys), widen(values))
        if sums.shape != self.sums.shape:
            shapes = f"{tuple(self.sums.shape)}, got {tuple(sums.shape)}"
            raise ValueError(f"the sums of new pairs must be {shapes}")
        return replace(self, sums=self.sums + sums, totals=self.totals + totals)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        if self.sums.dim() == 2:  # without an axis of rows, shared by all
            return self
        sums, totals = self.sums.index_select(0, index), self.totals.index_select(0, index)
        return replace(self, sums=sums, totals=totals)

    def read(
        self,
        query: Float[Tensor, "... query query_dim"],
        *,
        score: Score,
        choice: Choice,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        kernel: str = "auto",
    ) -> Float[Tensor, "... query value_dim"]:
        """Compute `attend` for this state.

        Raises: TypeError for a choice other than Proportional; ValueError for another score or
                kernel, for a bias, and for a mask other than causal() with one query (which masks
                nothing).
        """
        if score is not self.mapped_by:
            raise ValueError(
                f"score must be {self.mapped_by!r}, which mapped the keys, got {score!r}"
            )
        check_part("choice for a LinearState", choice, Proportional)
        if kernel not in ("auto", "linear"):
            raise ValueError(f"kernel must be 'auto' or 'linear' for a LinearState, got {kernel!r}")
        hides_nothing = mask is None or (isinstance(mask, Causal) and query.shape[-2] == 1)
        if bias is not None or not hides_nothing:
            raise ValueError("a LinearState has no single pairs: it takes neither bias nor mask")
        mapped, num_axes = map_all(score, "map_query", query), query.dim()
        if num_axes < self.sums.dim():
            axes = f"{tuple(self.sums.shape[:-2])}, got shape {tuple(query.shape)}"
            raise ValueError(f"query must have all leading axes of its memory, {axes}")
        sums = align(self.sums, num_axes)
        totals = align(self.totals.unsqueeze(-1), num_axes).squeeze(-1)
        broadcast_leading(mapped, sums, sums)
        group = mapped.shape[-3] // sums.shape[-3] if num_axes > 3 and sums.shape[-3] > 1 else 1
        with torch.autocast(query.device.type, enabled=False):
            return read_sums(widen(mapped), sums, totals, group=max(1, group)).to(mapped.dtype)


def summarize(
    keys: Float[Tensor, "... key features"], values: Float[Tensor, "... key value_dim"]
) -> tuple[Float[Tensor, "... features value_dim"], Float[Tensor, "... features"]]:
    """Compute S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j) of mapped keys."""
    with torch.autocast(keys.device.type, enabled=False):
        return keys.transpose(-2, -1) @ values, keys.sum(-2)


def read_sums(
    query: Float[Tensor, "... query features"],
    sums: Float[Tensor, "... features value_dim"],
    totals: Float[Tensor, "... features"],
    *,
    group: int = 1,
) -> Float[Tensor, "... query value_dim"]:
    """Compute phi(q)^T S / phi(q)^T z of mapped queries; `group` query heads share a head of S."""
    if group > 1:  # (..., memory head, group * query, features)
        query = query.unflatten(-3, (-1, group)).flatten(-3, -2)
    out = divide(query @ sums, query @ totals.unsqueeze(-1))
    return out.unflatten(-2, (group, -1)).flatten(-4, -3) if group > 1 else out


def zero_hidden_keys(
    keys: Float[Tensor, "... key features"], allowed: Bool[Tensor, "... 1 key"]
) -> Float[Tensor, "... key features"]:
    """Zero the features of keys that are not allowed."""
    allowed = align(allowed, max(keys.dim(), allowed.dim()))
    return torch.where(allowed.transpose(-2, -1), keys, 0.0)


def is_same_for_all_queries(mask: Mask, positions: Positions) -> bool:
    """Return True if the mask is known to be the same for every query: it has one row for all."""
    return mask.materialize(positions.tile(0, min(2, positions.num_rows))).shape[-2] == 1
