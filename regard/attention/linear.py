"""Linear reads: where scores are products of features, a memory of any length has a summary of fixed size.

    score_ij  = <phi(q_i), phi(k_j)> >= 0                            any of regard.attention.features
    weight_ij = score_ij / sum_l score_il                            Proportional: over the keys a mask lets it see
    out_i     = sum_j weight_ij v_j = phi(q_i)^T S / phi(q_i)^T z
    S         = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)       LinearState

It is the same read as any other: `attend(query, memory, score=FeatureMap(), choose=Proportional())`. The sums can be
taken in either order: pair by pair (kernel "reference", O(query * key)) or by way of S and z (kernel "linear",
O(query + key)). Step by step, S and z are all that has to be kept of the past.

Source: katharopoulos2020, sections 3.2 to 3.4.
"""

import math
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Bias
from regard.attention.checks import check_axes, leading_axes, with_axes_of_query
from regard.attention.choices import Choice
from regard.attention.features import Features, check_not_negative, widen
from regard.attention.masks import All, Any, Causal, Dense, Mask, Not
from regard.attention.memory import Store
from regard.attention.places import Places
from regard.attention.scores import Score

_SCALE = 2.0**-64


@final
class Proportional(Choice):
    """weight_j = a_j / sum_i a_i over the allowed keys; a row whose scores are all zero has zero weights.

    A score below the least number of its dtype (6e-8 in float16) is zero: use float32 where features may be that small.
    For scores that are never negative: products of features. Raises ValueError for a negative score, on a CPU.
    Source: katharopoulos2020, equation 3 (with sim = score).
    """

    def weights(
        self, scores: Float[Tensor, "... query key"], allowed: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "... query key"]:
        """Each score's share of its row, summed in float32 at least."""
        if allowed is not None:
            scores = torch.where(allowed, scores, 0.0)
        check_not_negative("scores for Proportional", scores)
        parts = widen(scores)
        # Where the sum of a row overflows, its scores are scaled by a power of two, which rounds nothing.
        parts = torch.where(parts.sum(-1, keepdim=True).isinf(), parts * _SCALE, parts)
        return divide(parts, parts.sum(-1, keepdim=True)).to(scores.dtype)


@final
@dataclass(frozen=True, eq=False)
class LinearState(Store):
    """A memory that keeps no pairs but their sums: its size is the same however many pairs it has taken in.

        S = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)        attend(q, state) = phi(q)^T S / phi(q)^T z

    `LinearState.of(memory)` starts one; `extend` takes in more pairs, their keys mapped by the same score. Read it with
    `attend(query, state, score=state.mapped_by, choose=Proportional())`: every query sees every pair taken in. One
    step at a time (extend, then read with one query) it equals a causal read of all at once. Sums are in float32 at
    least. What needs single pairs is impossible and raises: `crop`, `keys`, `values`, `size`, masks, weights.
    Source: katharopoulos2020, section 3.4; our S and z are theirs, phi(q) (.)^T the read.
    """

    sums: Float[Tensor, "... features value_dim"]
    """S."""
    totals: Float[Tensor, "... features"]
    """z."""
    mapped_by: Features
    """The score whose `map_keys` the keys have been through."""
    mask: None = None
    """None: what a mask hid when a pair came in was never added."""

    @classmethod
    def of(cls, memory: Store) -> Self:
        """The sums of a memory whose keys have been mapped by Features; what its mask hides is left out.

        Raises: TypeError if the keys are not mapped by Features, ValueError if queries differ in what its mask hides.
        """
        score = memory.mapped_by
        if not isinstance(score, Features):
            raise TypeError(f"keys must be mapped by Features (see Store.map_keys_with), but are mapped by {score!r}")
        keys = memory.keys
        if memory.mask is not None:
            places = memory.places(2)
            if not same_for_all(memory.mask, places):
                raise ValueError(f"a memory's mask must hide the same keys from every query, but is {memory.mask!r}")
            keys = hide(keys, memory.mask.see(places))
        return cls(*summarize(widen(keys), widen(memory.values)), score)

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """None are kept. Raises ValueError."""
        raise _no("keys")

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """None are kept. Raises ValueError."""
        raise _no("values")

    def places(self, num_queries: int) -> Places:
        """There are none. Raises ValueError."""
        raise _no("places")

    def map_keys_with(self, score: Score) -> Self:
        """The state itself. Raises ValueError if its keys were mapped by another score."""
        if score is not self.mapped_by:
            raise ValueError(
                f"these keys were mapped by another {type(self.mapped_by).__name__}: a state serves only the score "
                f"that mapped its keys, but the read's is {score!r}"
            )
        return self

    def extend(self, keys: Float[Tensor, "... new features"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """S and z with new pairs added. Keys must be mapped as the ones already here are."""
        *leading, features, value_dim = self.sums.shape
        num_new = keys.shape[-2] if keys.dim() > 1 else 0
        if keys.shape != (*leading, num_new, features) or values.shape != (*leading, num_new, value_dim):
            raise ValueError(
                f"keys must be {_shape_of_new(leading, f'{features} features')} and values "
                f"{_shape_of_new(leading, value_dim)}, but are {tuple(keys.shape)} and {tuple(values.shape)}"
            )
        sums, totals = summarize(widen(keys), widen(values))
        return replace(self, sums=self.sums + sums, totals=self.totals + totals)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""
        return replace(self, sums=self.sums.index_select(0, index), totals=self.totals.index_select(0, index))

    def crop(self, size: int) -> Self:
        """Impossible: what was added cannot be told apart. Raises ValueError."""
        raise _no("first pairs to crop to")

    def read(
        self,
        query: Float[Tensor, "... query query_dim"],
        *,
        score: Score,
        choose: Choice,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        kernel: str = "auto",
    ) -> Float[Tensor, "... query value_dim"]:
        """What `attend` gives for this state.

        Raises: TypeError for another choice than Proportional; ValueError for another score or kernel than the state
                serves, for a bias, and for a mask other than causal() of one query (which sees everything).
        """
        self.map_keys_with(score)
        if not isinstance(choose, Proportional):
            raise TypeError(f"a LinearState is read with Proportional(), but choose is {choose!r}")
        if kernel not in ("auto", "linear"):
            raise ValueError(f"a LinearState is read by kernel 'linear', but kernel is {kernel!r}")
        if bias is not None:
            raise _no("pairs that a bias could be added to")
        if mask is not None and not (isinstance(mask, Causal) and query.shape[-2] == 1):
            raise _no(f"pairs that a mask could hide, but was given {mask!r} for {query.shape[-2]} queries")
        check_axes("query", query)
        mapped = score.map_query(query)
        if mapped.shape[-1] != self.sums.shape[-2]:
            raise ValueError(f"queries must have {self.sums.shape[-2]} features, but have {mapped.shape[-1]}")
        mapped, sums, totals = with_axes_of_query(mapped, self.sums, self.totals.unsqueeze(-1))
        totals, num_axes = totals.squeeze(-1), mapped.dim()
        leading_axes(mapped, sums, sums)
        group = mapped.shape[-3] // sums.shape[-3] if num_axes > 3 and sums.shape[-3] > 1 else 1
        with torch.autocast(query.device.type, enabled=False):
            return answer(widen(mapped), sums, totals, group=max(1, group)).to(mapped.dtype)


def summarize(
    keys: Float[Tensor, "... key features"], values: Float[Tensor, "... key value_dim"]
) -> tuple[Float[Tensor, "... features value_dim"], Float[Tensor, "... features"]]:
    """S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j) of mapped keys."""
    with torch.autocast(keys.device.type, enabled=False):
        return keys.transpose(-2, -1) @ values, keys.sum(-2)


def answer(
    query: Float[Tensor, "... query features"],
    sums: Float[Tensor, "... features value_dim"],
    totals: Float[Tensor, "... features"],
    *,
    group: int = 1,
) -> Float[Tensor, "... query value_dim"]:
    """phi(q)^T S / phi(q)^T z of mapped queries; `group` heads of queries in a row read each head of the sums."""
    if group > 1:
        query = query.unflatten(-3, (-1, group)).flatten(-3, -2)  # (..., memory head, group * query, features)
    out = divide(query @ sums, query @ totals.unsqueeze(-1))
    return out.unflatten(-2, (group, -1)).flatten(-4, -3) if group > 1 else out


def divide(parts: Float[Tensor, "... item"], total: Float[Tensor, "... 1"]) -> Float[Tensor, "... item"]:
    """parts / total; zeros without a gradient where the total is zero, NaN where it overflows, which attend refuses."""
    return parts / total.masked_fill(total.isinf(), math.nan).masked_fill(total == 0, math.inf)


def hide(keys: Float[Tensor, "... key features"], seen: Bool[Tensor, "... 1 key"]) -> Float[Tensor, "... key features"]:
    """Features of zero for keys that are not seen; leading axes of `seen` line up from the left."""
    seen = align(seen, max(keys.dim(), seen.dim()))
    return torch.where(seen.transpose(-2, -1), keys, 0.0)


def same_for_all(mask: Mask, places: Places) -> bool:
    """Whether every query sees the same keys, as far as can be told without making a tensor of all pairs."""
    if places.num_rows == 1:
        return True
    if isinstance(mask, All | Any):
        return same_for_all(mask.left, places) and same_for_all(mask.right, places)
    if isinstance(mask, Not):
        return same_for_all(mask.hidden, places)
    if isinstance(mask, Dense):
        return mask.allowed.shape[-2] == 1
    interval = mask.interval(places)
    return interval is not None and interval[0].shape[-2] == interval[1].shape[-2] == 1


def _no(what: str) -> ValueError:
    return ValueError(
        f"a LinearState keeps sums and not pairs, so it has no {what}; keep a Memory where single pairs are needed "
        "(weights to record, masks, cropping)"
    )


def _shape_of_new(leading: list[int], size: object) -> str:
    return f"({', '.join((*map(str, leading), 'new', str(size)))})"
