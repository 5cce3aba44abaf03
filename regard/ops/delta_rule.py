"""Memories that are written: recurrences with decay, and the gated delta rule.

    S_t = a_t S_{t-1} + k_t u_t^T               o_t = S_t^T q_t         0 < a_t <= 1
    u_t = v_t                                   without strength: decay (retention)
    u_t = b_t (v_t - a_t S_{t-1}^T k_t)         with strength b_t: the error of the read with k_t

`recur` computes this item by item. `by_chunks` computes CHUNK items at once: from S before a chunk,
with c_i = sum_{l <= i} log a_l in it,

    D_ij = exp(c_i - c_j) for i >= j            A = diag(b) (K K^T * D) below the diagonal, or 0
    U    = V, or (I + A)^-1 diag(b) (V - exp(c) K S)
    O    = exp(c) Q S + (Q K^T * D) U           S' = exp(c_C) S + (exp(c_C - c) K)^T U

From an empty memory O = W V, where W = (Q K^T * D) (I + A)^-1 diag(b) are implied weights: they may
be negative, and their sum is not one.

Source: sun2023 (decay); schlag2021 (delta rule), yang2024a (chunks), yang2025a.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from regard.ops.dispatch import native

CHUNK = 64
"""Pairs of items cost CHUNK per item, the memory key_dim * value_dim / CHUNK."""
_MAX_STEPS = 4
"""Items up to which `recur` is faster than a chunk."""
State = Float[Tensor, "... key_dim value_dim"]
Queries = Float[Tensor, "... time key_dim"]
Outputs = Float[Tensor, "... time value_dim"]


class Writes(NamedTuple):
    """Key-value pairs in the order in which they are written."""

    keys: Float[Tensor, "... time key_dim"]
    values: Float[Tensor, "... time value_dim"]
    log_decay: Float[Tensor, "... time 1"]
    """log a: finite, at most 0."""
    strength: Float[Tensor, "... time 1"] | None = None
    """b; None: values are added, not corrected."""


def write(query: Queries, writes: Writes, state: State) -> tuple[Outputs, State]:
    """Return what query t reads after the first t pairs were written, and the state after all.

    On a CPU compiled loops compute it where no gradient is needed (regard.native.delta_rule).
    """
    implementation = native("write", query, *writes, state)
    if implementation is not None:
        return implementation.run(query, writes, state)
    form = recur if query.shape[-2] <= _MAX_STEPS else by_chunks
    return form(query, writes, state)


def recur(query: Queries, writes: Writes, state: State) -> tuple[Outputs, State]:
    """Compute the formula, item by item."""
    outputs = [query[..., :0, :] @ state]
    for t in range(query.shape[-2]):
        item = slice(t, t + 1)
        key, value = writes.keys[..., item, :], writes.values[..., item, :]
        state = state * writes.log_decay[..., item, :].exp()
        if writes.strength is not None:
            value = writes.strength[..., item, :] * (value - key @ state)
        state = state + key.mT @ value
        outputs.append(query[..., item, :] @ state)
    return torch.cat(outputs, -2), state


def by_chunks(query: Queries, writes: Writes, state: State) -> tuple[Outputs, State]:
    """Compute chunks of CHUNK items, one after another: on a GPU in a kernel, without gradients."""
    time = query.shape[-2]
    query, keys, values, log_decay = (_split(x) for x in (query, *writes[:3]))
    decay = log_decay.cumsum(-2)
    between, last = _between(decay), decay[..., -1:, :]
    pairs, reads, old = query @ keys.mT * between, query * decay.exp(), None
    if writes.strength is not None:
        strength = _split(writes.strength)
        system = strength * (keys @ keys.mT) * between
        right = torch.cat((strength * values, strength * decay.exp() * keys), -1)
        solved = solve_triangular(system, right, upper=False, unitriangular=True)
        values, old = solved.split((values.shape[-1], keys.shape[-1]), -1)
    remaining, keys = last.exp(), keys * (last - decay).exp()
    implementation = native("scan_chunks.cuda", pairs, reads, keys, remaining, values, old, state)
    if implementation is not None:
        out, state = implementation.run(pairs, reads, keys, remaining, values, old, state)
        return out[..., :time, :], state
    outputs = [query[..., 0, :0, :] @ state]
    for i in range(query.shape[-3]):
        new = values[..., i, :, :]
        if old is not None:
            new = new - old[..., i, :, :] @ state
        outputs.append(reads[..., i, :, :] @ state + pairs[..., i, :, :] @ new)
        state = remaining[..., i, :, :] * state + keys[..., i, :, :].mT @ new
    return torch.cat(outputs, -2)[..., :time, :], state


def implied_weights(query: Queries, writes: Writes) -> Float[Tensor, "... time pair"]:
    """Return W for the last queries, of which the last one reads all pairs."""
    keys, between = writes.keys, _between(writes.log_decay.cumsum(-2))
    pairs = query @ keys.mT * between[..., keys.shape[-2] - query.shape[-2] :, :]
    if writes.strength is None:
        return pairs
    system = writes.strength * (keys @ keys.mT) * between
    solved = solve_triangular(system, pairs, upper=False, left=False, unitriangular=True)
    return solved * writes.strength.mT


def _split(items: Tensor) -> Tensor:
    """Reshape (..., time, size) to (..., chunk, CHUNK, size), padded with zeros."""
    time = items.shape[-2]
    count = max(1, -(-time // CHUNK))
    return pad(items, (0, 0, 0, count * CHUNK - time)).unflatten(-2, (count, CHUNK))


def _between(decay: Float[Tensor, "... time 1"]) -> Float[Tensor, "... time time"]:
    """Return D of c."""
    size = decay.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=decay.device).triu(1)
    return (decay - decay.mT).masked_fill(later, -torch.inf).exp()
