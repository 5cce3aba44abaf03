"""The read by torch's scaled_dot_product_attention, which never stores the weights.

For scores that are a scaled inner product of mapped queries and keys, with the soft choice.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.axes import widen
from regard.attention.choices import Soft
from regard.attention.inputs import AttentionInputs
from regard.attention.masks import Causal
from regard.attention.scores import InnerProduct
from regard.ops.half import has_half_products


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    form = inputs.form
    if not isinstance(form, InnerProduct):
        return f"score {type(inputs.score).__name__} is not an inner product"
    if form.cap is not None:
        return "the score is capped"
    if not isinstance(inputs.choice, Soft):
        return f"choice {type(inputs.choice).__name__} is not Soft"
    return None


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute softmax(scale query keys^T + bias, over allowed keys) values, weights unformed."""
    query, beta, scale = inputs.query, inputs.choice.beta, inputs.form.scale
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
    # One tensor for mask and bias, which torch adds after scaling; beta multiplies the bias.
    mask, fully_masked = inputs.softmax_mask(beta, dtype)
    out = _attend(inputs, query, mask=mask, is_causal=False, scale=scale)
    return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)


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
