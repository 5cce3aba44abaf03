"""Hard reads by equality: a memory as a key-value store (dictionary), for any number of queries.

    get(q)     = v_j with k_j = q                       equal in every number; the first such
    get(q)     = v_j with j = argmax_i score(q, k_i)    with a score; missing below a threshold
    put(k, v)  = the pairs, where the value of an equal key is replaced and other pairs are added at
    the end
    delete(k)  = the pairs without those of equal keys

Rows (leading axes) are independent. A key that the mask hides is not in the store. Rows that end up
with different numbers of pairs are padded, and the mask of the result hides the padding.

Source: lectures, A.6 (key-value store: hard attention with equality as the score).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import MappedKeys, MappedQueries, align, widen
from regard.attention.masks import Mask, padding
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.attention.scores.base import InnerProduct, compare_all, map_all

_MAX_ELEMENTS = 2**22
"""Numbers compared pair by pair; equal vectors of more pairs are found by sorting."""
_MISSING = -1


def allowed_keys(mask: Mask | None, keys: MappedKeys) -> Bool[Tensor, "... key"]:
    """Return the keys (..., key) that the mask does not hide."""
    shape = keys.shape[:-1]
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=keys.device)
    allowed = mask.materialize(Positions(1, keys.shape[-2], keys.device))
    return align(allowed, keys.dim())[..., 0, :].expand(shape)


def find_equal(
    queries: MappedQueries, keys: MappedKeys, allowed: Bool[Tensor, "... key"]
) -> Int[Tensor, "... query"]:
    """Return the index of the first allowed key that equals each query, or -1."""
    *leading, num_queries, dim = queries.shape
    num_keys = keys.shape[-2]
    if num_keys == 0 or queries.numel() * num_keys <= _MAX_ELEMENTS:
        equal = (queries.unsqueeze(-2) == keys.unsqueeze(-3)).all(-1) & allowed.unsqueeze(-2)
        found = equal.any(-1)
        index = equal.int().argmax(-1) if num_keys else found.long()
        return torch.where(found, index, _MISSING)
    # Equal vectors get equal numbers; each row's numbers of keys are sorted, so that a query is
    # found by bisection.
    has_nan = queries.isnan().any(-1)
    allowed = allowed & ~keys.isnan().any(-1)
    # NaN has no order.
    vectors = torch.cat((queries, keys), -2).nan_to_num(posinf=float("inf"), neginf=float("-inf"))
    vectors = vectors.reshape(-1, dim)
    numbers = torch.unique(vectors, dim=0, return_inverse=True)[1].view(*leading, -1)
    wanted, present = numbers.split((num_queries, num_keys), -1)
    # stable: the first of equal keys.
    ordered, order = torch.sort(torch.where(allowed, present, _MISSING), stable=True)
    place = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=num_keys - 1)
    found = (ordered.gather(-1, place) == wanted) & ~has_nan
    return torch.where(found, order.gather(-1, place), _MISSING)


def find_best(
    queries: Float[Tensor, "... query query_dim"],
    keys: MappedKeys,
    allowed: Bool[Tensor, "... key"],
    score: Score,
    threshold: float | None,
) -> Int[Tensor, "... query"]:
    """Return the index of the allowed key with the highest score of each query, or -1."""
    num_keys = keys.shape[-2]
    if num_keys == 0:
        return queries.new_full(queries.shape[:-1], _MISSING, dtype=torch.int64)
    step = max(1, _MAX_ELEMENTS // max(1, allowed.numel()))
    found = []
    for some in queries.split(step, -2):
        scores = _scores(score, some, keys).masked_fill(~allowed.unsqueeze(-2), float("-inf"))
        best, index = scores.max(-1)
        missing = ~(best > float("-inf")) if threshold is None else ~(best >= threshold)
        found.append(torch.where(missing, _MISSING, index))
    return torch.cat(found, -1)


def put_pairs(
    keys: Tensor,
    values: Tensor,
    allowed: Bool[Tensor, "... key"],
    new_keys: Tensor,
    new_values: Tensor,
) -> tuple[Tensor, Tensor, Bool[Tensor, "... _"]]:
    """Return keys, values and allowed keys after storing new pairs."""
    num_new, num_old, every = new_keys.shape[-2], allowed.shape[-1], allowed_keys(None, new_keys)
    here = torch.arange(num_new, device=keys.device)
    is_first = find_equal(new_keys, new_keys, every) == here
    last = num_new - 1 - find_equal(new_keys, new_keys.flip(-2), every)
    new_values = _rows(new_values, last)
    slot = find_equal(new_keys, keys, allowed)
    source = keys.new_full((*allowed.shape[:-1], num_old + 1), _MISSING, dtype=torch.int64)
    place = torch.where(slot == _MISSING, num_old, slot)
    source = source.scatter(-1, place, here.expand(slot.shape))
    source = source[..., :-1]  # the last slot received the new pairs that replace nothing
    replaced = _rows(new_values, source.clamp(min=0))
    values = torch.where((source == _MISSING).unsqueeze(-1), values, replaced)
    added = is_first & (slot == _MISSING)
    keys, values = torch.cat((keys, new_keys), -2), torch.cat((values, new_values), -2)
    return keys, values, torch.cat((allowed, added), -1)


def compact(
    keys: Tensor, values: Tensor, allowed: Bool[Tensor, "... key"]
) -> tuple[Tensor, Tensor, Mask | None]:
    """Move the allowed pairs of each row to its start; return the mask of the padding, too."""
    counts = allowed.sum(-1)
    longest = int(counts.max()) if counts.numel() else 0
    order = torch.sort((~allowed).to(torch.uint8), dim=-1, stable=True).indices[..., :longest]
    keys, values = _rows(keys, order), _rows(values, order)
    is_even = bool((counts == longest).all())
    if not is_even:
        filled = torch.arange(longest, device=keys.device) < counts.unsqueeze(-1)
        keys, values = (x.masked_fill(~filled.unsqueeze(-1), 0.0) for x in (keys, values))
    return keys, values, None if is_even else padding(counts)


def _scores(score: Score, queries: Tensor, keys: Tensor) -> Float[Tensor, "... query key"]:
    """Return the scores of all pairs, of inner products in at least float32."""
    queries, keys = map_all(score, "map_query", queries), map_all(score, "map_keys", keys)
    if isinstance(score.form(queries.shape[-1]), InnerProduct):
        queries, keys = widen(queries), widen(keys)
    return compare_all(score, queries, keys)


def _rows(tensor: MappedKeys, index: Int[Tensor, "... _"]) -> Float[Tensor, "... _ dim"]:
    return tensor.gather(-2, index.unsqueeze(-1).expand(*index.shape, tensor.shape[-1]))
