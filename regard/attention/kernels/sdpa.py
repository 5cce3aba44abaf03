"""The read by torch's scaled_dot_product_attention, which never stores the weights.

For scores that are a scaled inner product of mapped queries and keys, with the soft choice. Queries
with a window read in blocks, each block the keys within its reach: the time of n items with a
window of w is O(n w), for reads of many more items than the window has. On a GPU, where the time
was not measured, only reads whose whole mask would take much memory are in blocks.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.attention.axes import widen
from regard.attention.inputs import AttentionInputs
from regard.attention.masks import Causal
from regard.attention.masks.base import MAX_KEPT, banded_mask, block_size
from regard.attention.scores import InnerProduct
from regard.compat.torch import is_eager
from regard.ops.half import has_half_products


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    form = inputs.form
    if not isinstance(form, InnerProduct):
        return f"score {type(inputs.score).__name__} is not an inner product"
    if form.cap is not None:
        return "the score is capped"
    if inputs.softmax is None:
        return f"choice {type(inputs.choice).__name__} is no softmax of all keys"
    return None


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute softmax(scale query keys^T + bias, over allowed keys) values, weights unformed."""
    if inputs.softmax.sink is not None:
        inputs = inputs.with_sink_key()
    query, beta, scale = inputs.query, inputs.softmax.beta, inputs.form.scale
    half = inputs.half_dtype()
    dtype = query.dtype if half is None else half
    if half is not None and query.device.type == "cpu":
        # Queries times beta are not rounded; and without products of half precision, torch's are
        # slower than float32's.
        if isinstance(beta, Tensor) or not has_half_products(half):
            wide = inputs.with_wide_scores()._replace(values=widen(inputs.values))
            with torch.autocast("cpu", enabled=False):
                return read(wide).to(half)
        # Here mask and bias may be in float32.
        inputs, dtype = inputs._replace(raw_query=widen(inputs.raw_query)), torch.float32
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    if inputs.mask is None and inputs.bias is None:
        return _attend(inputs, query, mask=None, is_causal=False, scale=scale)
    if inputs.bias is None and isinstance(inputs.mask, Causal):
        positions = inputs.positions
        # A single query attends to all keys; torch aligns is_causal to the top left.
        is_square = positions.num_queries in (1, positions.num_keys)
        if is_square and positions.is_aligned and positions.rows is None:
            is_causal = query.shape[-2] not in (0, 1)
            return _attend(inputs, query, mask=None, is_causal=is_causal, scale=scale)
    if _has_blocks(inputs):
        return _read_blocks(inputs, query, scale=scale, dtype=dtype)
    # One tensor for mask and bias, which torch adds after scaling; beta multiplies the bias.
    mask, fully_masked = inputs.softmax_mask(beta, dtype)
    out = _attend(inputs, query, mask=mask, is_causal=False, scale=scale)
    return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)


def _has_blocks(inputs: AttentionInputs) -> bool:
    """Return True if each query reads a small part of the keys around it, as in the docstring."""
    mask, positions, num_keys = inputs.mask, inputs.positions, inputs.positions.num_keys
    least = 0 if inputs.query.device.type == "cpu" else MAX_KEPT
    if mask is None or mask.band is None or inputs.bias is not None or inputs.num_axes != 4:
        return False
    if num_keys < 2 * (block_size(mask.band) + sum(mask.band)) or num_keys != positions.num_queries:
        return False
    if not positions.is_aligned or positions.rows is not None or not is_eager():
        return False
    if len(inputs.query) * num_keys**2 <= least:  # exports have returned: len fixes a size
        return False
    bounds = mask.interval(positions)
    if bounds is None or any(bound.dim() not in (2, 3) for bound in bounds):
        return False
    rows = {len(bound) for bound in bounds if bound.dim() == 3}
    return rows <= {1, len(inputs.query)} and max([1, *rows]) * num_keys**2 > least


def _read_blocks(
    inputs: AttentionInputs, query: Tensor, *, scale: float, dtype: torch.dtype
) -> Tensor:
    """Compute the read of each block of queries from the keys within the band of the mask."""
    mask, num_keys = inputs.mask, inputs.positions.num_keys
    assert mask is not None
    assert mask.band is not None
    added, fully_masked = banded_mask(mask, inputs.positions, dtype)
    count, size, span = added.shape[-3:]
    query, keys, values = inputs.expand(query, grouped=True)
    rows, after_last = len(query), count * size - num_keys

    def split(tensor: Tensor) -> Tensor:  # (batch, head, block, ...) to (batch * block, head, ...)
        return tensor.transpose(1, 2).flatten(0, 1)

    def spans(tensor: Tensor) -> Tensor:
        before, after = mask.band
        return split(pad(tensor, (0, 0, before, after_last + after)).unfold(2, span, size).mT)

    out = scaled_dot_product_attention(
        split(pad(query, (0, 0, 0, after_last)).unflatten(2, (count, size))),
        spans(keys),
        spans(values),
        attn_mask=added.expand(rows, -1, -1, -1).flatten(0, 1).unsqueeze(1),
        scale=scale,
        enable_gqa=inputs.group > 1,
    )
    out = out.unflatten(0, (rows, count)).transpose(1, 2).flatten(2, 3)[:, :, :num_keys]
    return out if fully_masked is None else out.masked_fill(fully_masked.unsqueeze(-3), 0.0)


def _attend(
    inputs: AttentionInputs, query: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    query, keys, values = inputs.expand(query, grouped=True)
    # torch's fused kernels need (batch, head, ..., dim); a read without heads gets an axis of 1.
    num_added = max(0, 4 - query.dim())
    for _ in range(num_added):
        query, keys, values = query.unsqueeze(-3), keys.unsqueeze(-3), values.unsqueeze(-3)
        mask = None if mask is None else mask.unsqueeze(-3)
    out = scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=inputs.group > 1,
    )
    for _ in range(num_added):
        out = out.squeeze(-3)
    return out
