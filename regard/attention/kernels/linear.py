"""The read by sums over the keys, for products of features: time and memory grow with the length, not its square.

    out_i = phi(q_i)^T S_i / phi(q_i)^T z_i        S_i = sum_(j seen by i) phi(k_j) v_j^T        z_i = sum_j phi(k_j)

Where every query sees the same keys there is one S. Causal reads go by chunks of queries: S of the keys before a chunk,
and products of pairs inside it; S is kept once a chunk, never once a query. An exported causal read has a fixed length
or one that is `64 * torch.export.Dim("chunks", min=2)`; the kernel "reference" exports with any.

Source: katharopoulos2020, sections 3.2 and 3.3; by chunks hua2022, section 3.3.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.features import Features, widen
from regard.attention.kernels.problem import Problem
from regard.attention.linear import Proportional, answer, divide, hide, same_for_all, summarize
from regard.attention.masks import All, Causal, Mask
from regard.attention.places import Places

CHUNK = 64
"""Queries of a chunk: pairs inside it cost CHUNK a query, sums between chunks features * value_dim / CHUNK."""

SEGMENT = 16 * CHUNK
"""Queries computed at a time: what lies between the products then stays in the processor's cache."""


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    if not isinstance(problem.score, Features):
        return f"score {type(problem.score).__name__} is no product of features"
    if not isinstance(problem.choose, Proportional):
        return f"choice {type(problem.choose).__name__} is not Proportional"
    if problem.bias is not None:
        return "a bias is added to the scores"
    _, rest = _split(problem.mask, problem.places)
    if rest is not None and not same_for_all(rest, problem.places):
        return f"mask {rest!r} is neither causal nor the same for every query"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = phi(query) S / phi(query) z, accumulated in float32 at least."""
    dtype, device = problem.values.dtype, problem.query.device.type
    if problem.query.shape[-1] != problem.keys.shape[-1]:
        problem.score.compare(problem.query[..., :1, :], problem.keys[..., :1, :])  # raises, and says what to do
    if not torch.is_autocast_enabled(device):
        return _read(problem).to(dtype)
    with torch.autocast(device, enabled=False):
        return _read(problem).to(torch.get_autocast_dtype(device))


def _read(problem: Problem) -> Tensor:
    is_causal, rest = _split(problem.mask, problem.places)
    seen = None if rest is None else problem._replace(mask=rest).allowed()
    if seen is not None and problem.group > 1 and seen.shape[-3] > 1:  # each head of queries hides other keys
        problem = problem.ungrouped()
    query, keys, values = widen(problem.query), widen(problem.keys), widen(problem.values)
    if seen is not None:
        keys = hide(keys, seen)
    if not is_causal:
        return answer(query, *summarize(keys, values), group=problem.group)
    return _causal(query, keys, values, group=problem.group)


def _causal(query: Tensor, keys: Tensor, values: Tensor, *, group: int) -> Tensor:
    """Queries and keys lined up at their ends, as causal masks are."""
    num_queries, before = query.shape[-2], keys.shape[-2] - query.shape[-2]
    if before < 0:
        query = query[..., -before:, :]  # the first see nothing
    first = max(0, before)
    sums, totals = summarize(keys[..., :first, :], values[..., :first, :])
    query = query.unflatten(-3, (-1, group)) if group > 1 else query.unsqueeze(-3)  # (..., group, query, features)
    pieces = []
    for segment in _segments(query, keys[..., first:, :], values[..., first:, :]):
        out, sums, totals = _segment(*segment, sums, totals)
        pieces.append(out)
    out = torch.cat(pieces, -2)
    out = out.flatten(-4, -3) if group > 1 else out.squeeze(-3)  # (..., head, query, value_dim)
    return torch.nn.functional.pad(out, (0, 0, num_queries - out.shape[-2], 0)) if before < 0 else out


def _segments(query: Tensor, keys: Tensor, values: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Pieces of SEGMENT queries, keys and values; all in one where a compiler need not know the length."""
    if torch.compiler.is_compiling() or query.shape[-2] <= SEGMENT:
        return [(query, keys, values)]
    return zip(*(tensor.split(SEGMENT, -2) for tensor in (query, keys, values)), strict=True)


def _segment(
    query: Tensor, keys: Tensor, values: Tensor, sums: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Some chunks at once, query (..., group, time, features), after keys of these sums; and the sums after them."""
    time, group = query.shape[-2], query.shape[-3]
    query, keys, values = _chunks(query), _chunks(keys), _chunks(values)
    query = query.transpose(-4, -3).flatten(-3, -2)  # (..., chunk, group * CHUNK, features)
    inner, total = summarize(keys, values)
    sums = torch.cat((sums.unsqueeze(-3), inner), -3).cumsum(-3)  # (..., chunk + 1, features, value_dim)
    totals = torch.cat((totals.unsqueeze(-2), total), -2).cumsum(-2)
    pairs = (query @ keys.transpose(-2, -1)).unflatten(-2, (group, CHUNK)).tril().flatten(-3, -2)
    parts = pairs @ values + query @ sums[..., :-1, :, :]
    out = divide(parts, pairs.sum(-1, keepdim=True) + query @ totals[..., :-1, :].unsqueeze(-1))
    out = out.unflatten(-2, (group, CHUNK)).transpose(-4, -3).flatten(-3, -2)[..., :time, :]
    return out, sums[..., -1, :, :], totals[..., -1, :]


def _chunks(tensor: Tensor) -> Tensor:
    """(..., time, size) as (..., chunk, CHUNK, size), zeros after the end."""
    time = tensor.shape[-2]
    count = (time + CHUNK - 1) // CHUNK
    missing = count * CHUNK - time
    if torch.compiler.is_compiling() or missing:  # a compiler need not know whether the length is a multiple
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, missing))
    return tensor.unflatten(-2, (count, CHUNK))


def _split(mask: Mask | None, places: Places) -> tuple[bool, Mask | None]:
    """Whether the mask is causal, and the mask that must hold beside."""
    if mask is None:
        return False, None
    if isinstance(mask, Causal) and places.aligned and places.rows is None and places.num_queries > 1:
        return True, None
    if isinstance(mask, All):
        (left, left_rest), (right, right_rest) = _split(mask.left, places), _split(mask.right, places)
        rest = left_rest if right_rest is None else right_rest if left_rest is None else All(left_rest, right_rest)
        return left or right, rest
    return False, mask
