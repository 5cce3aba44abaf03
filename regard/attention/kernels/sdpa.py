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


def refusal(inputs: AttentionInputs) -> str | None:
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
    """Compute out = softmax(scale query keys^T + bias, over allowed keys) values, without forming
    the weights."""
    query, keys = inputs.query, inputs.keys
    if query.shape[-1] != keys.shape[-1]:
        inputs.score.compare(query[..., :1, :], keys[..., :1, :])  # raises an informative error
    form, choice = inputs.form, inputs.choice
    assert isinstance(form, InnerProduct)
    assert isinstance(choice, Soft)
    beta, scale, dtype = choice.beta, form.scale, query.dtype
    half = inputs.half_dtype() if query.device.type == "cpu" else None
    if half is not None:
        # Queries times beta are not rounded; and without products of half precision, torch's are
        # slower than float32's.
        if isinstance(beta, Tensor) or not has_half_products(half):
            with torch.autocast("cpu", enabled=False):
                return read(inputs.with_wide_scores()._replace(values=widen(inputs.values))).to(
                    half
                )
        # Here mask and bias may be in float32.
        inputs, dtype = inputs._replace(raw_query=widen(inputs.raw_query)), torch.float32
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    if inputs.bias is None and _is_plainly_causal(inputs):
        return _attend(
            inputs, query, mask=None, is_causal=query.shape[-2] not in (0, 1), scale=scale
        )
    bias = inputs.bias_tensor()
    allowed, fully_masked = inputs.allowed_pairs(bias), None
    finite = None if bias is None or allowed is None else bias.masked_fill(~allowed, 0.0)
    if allowed is not None and inputs.may_have_fully_masked_rows():
        fully_masked = ~allowed.any(-1, keepdim=True)
        allowed = allowed | fully_masked
    out = _attend(
        inputs, query, mask=_with_bias(dtype, finite, allowed, beta), is_causal=False, scale=scale
    )
    return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)


def expand_leading(
    inputs: AttentionInputs, query: Tensor, *, grouped: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, keys and values with the same leading axes, expanded only where they differ, as
    that costs time.

    grouped: with grouped heads, keys and values keep their own number of heads.
    """
    keys, values = inputs.keys, inputs.values
    if inputs.group > 1 and not grouped:
        inputs = inputs.repeat_heads()
        keys, values = inputs.keys, inputs.values
    leading = query.shape[:-2]
    if leading == keys.shape[:-2] == values.shape[:-2]:
        return query, keys, values
    leading = inputs.leading
    memory_leading = (*leading[:-1], keys.shape[-3]) if inputs.group > 1 else leading
    query = query.expand(*leading, *query.shape[-2:])
    return (
        query,
        keys.expand(*memory_leading, *keys.shape[-2:]),
        values.expand(*memory_leading, *values.shape[-2:]),
    )


def _is_plainly_causal(inputs: AttentionInputs) -> bool:
    # A single query at the last position attends to all keys; torch aligns is_causal to the top
    # left, which equals our alignment only if there are as many queries as keys.
    positions = inputs.positions
    whole = positions.is_aligned and positions.rows is None
    return (
        isinstance(inputs.mask, Causal)
        and whole
        and positions.num_queries in (1, positions.num_keys)
    )


def _with_bias(
    dtype: torch.dtype, finite: Tensor | None, allowed: Tensor | None, beta: float | Tensor
) -> Tensor | None:
    """Return mask and bias as the one tensor that torch adds after scaling; beta multiplies the
    bias too."""
    if finite is None or allowed is None:
        return allowed
    return (finite.to(dtype) * beta).masked_fill(~allowed, float("-inf")).to(dtype)


def _attend(
    inputs: AttentionInputs, query: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    # torch's fused kernels need (batch, head, ..., dim); a read without heads gets an axis of size
    # 1.
    query, keys, values = expand_leading(inputs, query, grouped=True)
    num_added = max(0, 4 - query.dim())
    for _ in range(num_added):
        query, keys, values = (x.unsqueeze(-3) for x in (query, keys, values))
        mask = None if mask is None else mask.unsqueeze(-3)
    grouped = inputs.group > 1
    out = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    for _ in range(num_added):
        out = out.squeeze(-3)
    return out
