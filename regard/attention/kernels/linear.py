"""Linear attention: the read of products of features by sums over the keys, in linear time.

    out_i = phi(q_i)^T S_i / phi(q_i)^T z_i
    S_i   = sum_j phi(k_j) v_j^T        z_i = sum_j phi(k_j)

Sums are over the keys j that query i may attend to; if these are the same for every query, there is
one S. Causal reads are split into chunks of queries: S of the keys before a chunk, and products of
pairs inside it; S is stored per chunk, never per query. An exported causal read has a fixed length
or one that is `64 * torch.export.Dim("chunks", min=2)`; the kernel "reference" exports with any.

Source: katharopoulos2020, sections 3.2 and 3.3; by chunks hua2022, section 3.3.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import widen
from regard.attention.choices import Proportional, divide
from regard.attention.inputs import AttentionInputs
from regard.attention.masks import And, Causal, Mask, intersect
from regard.attention.memory.linear import (
    is_same_for_all_queries,
    read_sums,
    summarize,
    zero_hidden_keys,
)
from regard.attention.positions import Positions
from regard.attention.scores import Features

CHUNK = 64
"""Queries per chunk: pairs cost CHUNK per query, sums features * value_dim / CHUNK."""
SEGMENT = 16 * CHUNK
"""Queries computed at a time: intermediate results then stay in the processor's cache."""


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    if not isinstance(inputs.score, Features):
        return f"score {type(inputs.score).__name__} is not a product of features"
    if not isinstance(inputs.choice, Proportional):
        return f"choice {type(inputs.choice).__name__} is not Proportional"
    if inputs.bias is not None:
        return "a bias is added to the scores"
    _, rest = _split(inputs.mask, inputs.positions)
    if rest is not None and not is_same_for_all_queries(rest, inputs.positions):
        return f"mask {rest!r} is neither causal nor the same for every query"
    return None


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute out = phi(query) S / phi(query) z, accumulated in float32 at least."""
    dtype, device = inputs.values.dtype, inputs.query.device.type
    if not torch.is_autocast_enabled(device):
        return _read(inputs).to(dtype)
    with torch.autocast(device, enabled=False):
        return _read(inputs).to(torch.get_autocast_dtype(device))


def _read(inputs: AttentionInputs) -> Tensor:
    is_causal, rest = _split(inputs.mask, inputs.positions)
    allowed = None if rest is None else inputs._replace(mask=rest).allowed_pairs()
    if allowed is not None and inputs.group > 1 and allowed.shape[-3] > 1:
        inputs = inputs.repeat_heads()  # the mask differs between query heads
    query, keys, values = widen(inputs.query), widen(inputs.keys), widen(inputs.values)
    if allowed is not None:
        keys = zero_hidden_keys(keys, allowed)
    if not is_causal:
        return read_sums(query, *summarize(keys, values), group=inputs.group)
    return _causal(query, keys, values, group=inputs.group)


def _causal(query: Tensor, keys: Tensor, values: Tensor, *, group: int) -> Tensor:
    """Compute the causal read, with queries and keys aligned at their ends."""
    num_queries, num_before = query.shape[-2], keys.shape[-2] - query.shape[-2]
    if num_before < 0:
        query = query[..., -num_before:, :]  # the first ones are fully masked
    first = max(0, num_before)
    sums, totals = summarize(keys[..., :first, :], values[..., :first, :])
    # (..., group, query, features)
    query = query.unflatten(-3, (-1, group)) if group > 1 else query.unsqueeze(-3)
    segments = [(query, keys[..., first:, :], values[..., first:, :])]
    if not torch.compiler.is_compiling() and query.shape[-2] > SEGMENT:
        splits = [tensor.split(SEGMENT, -2) for tensor in segments[0]]
        segments = list(zip(*splits, strict=True))
    outputs = []
    for some_queries, some_keys, some_values in segments:
        out, sums, totals = _segment(some_queries, some_keys, some_values, sums, totals)
        outputs.append(out)
    out = torch.cat(outputs, -2)
    out = out.flatten(-4, -3) if group > 1 else out.squeeze(-3)  # (..., head, query, value_dim)
    if num_before < 0:
        out = torch.nn.functional.pad(out, (0, 0, num_queries - out.shape[-2], 0))
    return out


def _segment(
    query: Tensor, keys: Tensor, values: Tensor, sums: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return some chunks of the output, and the sums after them.

    query: (..., group, time, features); sums, totals: those before.
    """
    time, group = query.shape[-2], query.shape[-3]
    query, keys, values = _chunks(query), _chunks(keys), _chunks(values)
    query = query.transpose(-4, -3).flatten(-3, -2)  # (..., chunk, group * CHUNK, features)
    inner, total = summarize(keys, values)
    # (..., chunk + 1, features, value_dim)
    sums = torch.cat((sums.unsqueeze(-3), inner), -3).cumsum(-3)
    totals = torch.cat((totals.unsqueeze(-2), total), -2).cumsum(-2)
    pairs = (query @ keys.transpose(-2, -1)).unflatten(-2, (group, CHUNK)).tril().flatten(-3, -2)
    parts = pairs @ values + query @ sums[..., :-1, :, :]
    out = divide(parts, pairs.sum(-1, keepdim=True) + query @ totals[..., :-1, :].unsqueeze(-1))
    out = out.unflatten(-2, (group, CHUNK)).transpose(-4, -3).flatten(-3, -2)[..., :time, :]
    return out, sums[..., -1, :, :], totals[..., -1, :]


def _chunks(tensor: Tensor) -> Tensor:
    """Reshape (..., time, size) to (..., chunk, CHUNK, size), padded with zeros."""
    time = tensor.shape[-2]
    count = (time + CHUNK - 1) // CHUNK
    padding = count * CHUNK - time
    if torch.compiler.is_compiling() or padding:  # compiled for any length
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, padding))
    return tensor.unflatten(-2, (count, CHUNK))


def _split(mask: Mask | None, positions: Positions) -> tuple[bool, Mask | None]:
    """Split the mask into whether it includes a causal mask, and the rest of the mask."""
    if mask is None:
        return False, None
    if isinstance(mask, And):
        left, left_rest = _split(mask.left, positions)
        right, right_rest = _split(mask.right, positions)
        return left or right, intersect(left_rest, right_rest)
    is_whole = positions.is_aligned and positions.rows is None
    if isinstance(mask, Causal) and is_whole and positions.num_queries > 1:
        return True, None
    return False, mask
