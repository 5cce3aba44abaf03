"""State of linear attention: with scores that are products of features, a memory reduces to sums of
a fixed size.

    score_ij  = <phi(q_i), phi(k_j)> >= 0                            any of
    regard.attention.scores.features weight_ij = score_ij / sum_l score_il
    Proportional: over the keys that the mask allows out_i     = sum_j weight_ij v_j = phi(q_i)^T S
    / phi(q_i)^T z
    S         = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)       LinearState

The read is `attend(query, memory, score=FeatureMap(), choice=Proportional())`. The sums can be
computed in either order: pair by pair (kernel "reference", O(query * key)) or via S and z (kernel
"linear", O(query + key)). In step-by- step decoding, S and z are the only state.

Source: katharopoulos2020, sections 3.2 to 3.4.
"""

from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import align, align_to_query, broadcast_leading, check_axes, widen
from regard.attention.biases import Bias
from regard.attention.choices import Choice, Proportional, divide
from regard.attention.masks import All, Any, Causal, Dense, Mask, Not
from regard.attention.memory.base import KeyValueCache
from regard.attention.positions import Positions
from regard.attention.scores import Features, Score


@final
@dataclass(frozen=True, eq=False)
class LinearState(KeyValueCache):
    """State of linear attention: sums over key-value pairs, of a size that does not depend on their
    number.

        S = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)        attend(q, state) = phi(q)^T S /
        phi(q)^T z

    `LinearState.of(memory)` creates one; `extend` adds more pairs, with keys mapped by the same
    score. Read it with `attend(query, state, score=state.mapped_by, choice=Proportional())`: every
    query attends to every pair that was added. One step at a time (extend, then read with one
    query) it equals a causal read of the whole sequence. Sums are at least in float32. Operations
    on single pairs raise ValueError: `crop`, `keys`, `values`, `size`, `length`, masks, weights.
    Source: katharopoulos2020, section 3.4; our S and z are theirs, phi(q) (.)^T the read.
    """

    sums: Float[Tensor, "... features value_dim"]
    """S."""
    totals: Float[Tensor, "... features"]
    """z."""
    mapped_by: Features
    """Score whose `map_keys` was applied to the keys."""
    mask: None = None
    """None: pairs that were masked when the state was created were never added."""

    @classmethod
    def of(cls, memory: KeyValueCache) -> Self:
        """Sum the pairs of a memory whose keys are mapped by Features, except for masked keys.

        Raises: TypeError if the keys are not mapped by Features, ValueError if the mask differs
                between queries.
        """
        score = memory.mapped_by
        if not isinstance(score, Features):
            raise TypeError(
                f"keys must be mapped by Features (use map_keys_with), got keys mapped by {score!r}"
            )
        keys = memory.keys
        if memory.mask is not None:
            positions = memory.positions(2)
            if not is_same_for_all_queries(memory.mask, positions):
                raise ValueError(
                    f"the mask of the memory must be the same for every query, got {memory.mask!r}"
                )
            keys = zero_hidden_keys(keys, memory.mask.materialize(positions))
        return cls(*summarize(widen(keys), widen(memory.values)), score)

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """Not available: raises ValueError."""
        raise _unavailable("keys")

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Not available: raises ValueError."""
        raise _unavailable("values")

    @property
    def length(self) -> int:
        """Not available: raises ValueError."""
        raise _unavailable("length")

    def positions(self, num_queries: int) -> Positions:
        """Not available: raises ValueError."""
        raise _unavailable("positions")

    def map_keys_with(self, score: Score) -> Self:
        """Return the state itself. Raises ValueError if its keys were mapped by another score."""
        if not self.is_mapped_by(score):
            raise ValueError(
                f"score must be the one that mapped the keys of this state, {self.mapped_by!r} "
                f"(the same object), "
                f"got {score!r}"
            )
        return self

    def extend(
        self, keys: Float[Tensor, "... new features"], values: Float[Tensor, "... new value_dim"]
    ) -> Self:
        """Return the state with new pairs added. Keys must be mapped by the same score as the
        present ones."""
        *leading, features, value_dim = self.sums.shape
        num_new = keys.shape[-2] if keys.dim() > 1 else 0
        if keys.shape != (*leading, num_new, features) or values.shape != (
            *leading,
            num_new,
            value_dim,
        ):
            raise ValueError(
                f"keys must be {_format_shape(leading, f'{features} features')} and values "
                f"{_format_shape(leading, value_dim)}, got {tuple(keys.shape)} and "
                f"{tuple(values.shape)}"
            )
        sums, totals = summarize(widen(keys), widen(values))
        return replace(self, sums=self.sums + sums, totals=self.totals + totals)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Select the rows `index` of the first axis, in that order (beams, unfinished
        sequences)."""
        return replace(
            self, sums=self.sums.index_select(0, index), totals=self.totals.index_select(0, index)
        )

    def crop(self, size: int) -> Self:
        """Not available: sums cannot be undone. Raises ValueError."""
        raise _unavailable("first pairs to crop to")

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
        self.map_keys_with(score)
        if not isinstance(choice, Proportional):
            raise TypeError(f"choice must be Proportional() for a LinearState, got {choice!r}")
        if kernel not in ("auto", "linear"):
            raise ValueError(f"kernel must be 'auto' or 'linear' for a LinearState, got {kernel!r}")
        if bias is not None:
            raise _unavailable("pairs that a bias could be added to")
        if mask is not None and not (isinstance(mask, Causal) and query.shape[-2] == 1):
            raise _unavailable(
                f"pairs that a mask could hide (got {mask!r} for {query.shape[-2]} queries)"
            )
        check_axes("query", query)
        mapped = score.map_query(query)
        if mapped.shape[-1] != self.sums.shape[-2]:
            raise ValueError(
                f"queries must have {self.sums.shape[-2]} features, got {mapped.shape[-1]}"
            )
        mapped, sums, totals = align_to_query(mapped, self.sums, self.totals.unsqueeze(-1))
        totals, num_axes = totals.squeeze(-1), mapped.dim()
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
    """Compute phi(q)^T S / phi(q)^T z of mapped queries; `group` consecutive query heads read each
    head of the sums."""
    if group > 1:
        query = query.unflatten(-3, (-1, group)).flatten(
            -3, -2
        )  # (..., memory head, group * query, features)
    out = divide(query @ sums, query @ totals.unsqueeze(-1))
    return out.unflatten(-2, (group, -1)).flatten(-4, -3) if group > 1 else out


def zero_hidden_keys(
    keys: Float[Tensor, "... key features"], allowed: Bool[Tensor, "... 1 key"]
) -> Float[Tensor, "... key features"]:
    """Zero the features of keys that are not allowed; leading axes of `allowed` are aligned from
    the left."""
    allowed = align(allowed, max(keys.dim(), allowed.dim()))
    return torch.where(allowed.transpose(-2, -1), keys, 0.0)


def is_same_for_all_queries(mask: Mask, positions: Positions) -> bool:
    """Return True if the mask is known to be the same for every query, without materializing it."""
    if positions.num_rows == 1:
        return True
    if isinstance(mask, All | Any):
        return is_same_for_all_queries(mask.left, positions) and is_same_for_all_queries(
            mask.right, positions
        )
    if isinstance(mask, Not):
        return is_same_for_all_queries(mask.hidden, positions)
    if isinstance(mask, Dense):
        return mask.allowed.shape[-2] == 1
    interval = mask.interval(positions)
    return interval is not None and interval[0].shape[-2] == interval[1].shape[-2] == 1


def _unavailable(name: str) -> ValueError:
    return ValueError(
        f"a LinearState stores sums, not pairs, so it has no {name}; use a Memory where single "
        f"pairs are needed "
        "(recorded weights, masks, cropping)"
    )


def _format_shape(leading: list[int], size: object) -> str:
    return f"({', '.join((*map(str, leading), 'new', str(size)))})"
