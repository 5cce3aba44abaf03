"""The read by two plain matrix products per head: the fastest form for short reads on a CPU.

    S = scale Q K^T + mask         one product, which also adds mask and bias
    out = softmax(S) V             another

It stores the weights, as the formula does, but batches of heads are flattened for the product, and
the scale needs no separate pass. For scores that are a scaled inner product of mapped queries and
keys, with the soft choice.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import widen
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import sdpa
from regard.compat.torch import is_eager, is_forward_ad
from regard.ops.half import half_softmax, has_half_products
from regard.ops.softmax import softmax


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, as of sdpa; None if it can."""
    return sdpa.unsupported_reason(inputs)


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute out = softmax(scale query keys^T + bias, over allowed keys) values."""
    dtype = inputs.half_dtype()
    if inputs.softmax.sink is not None:
        inputs = inputs.with_sink_key()
    if dtype is None:
        return _read(inputs)
    with torch.autocast(inputs.query.device.type, enabled=False):
        return _read_half(inputs, dtype)


def _read_half(inputs: AttentionInputs, dtype: torch.dtype) -> Tensor:
    """Compute the read in half precision with scores in float32; see regard.ops.half."""
    beta, has_products = inputs.softmax.beta, has_half_products(dtype)
    wide = inputs.with_wide_scores()
    values = inputs.values.to(dtype) if has_products else widen(inputs.values)
    has_rule = is_eager() and not is_forward_ad()  # half_softmax has none for transforms
    if not has_products or isinstance(beta, Tensor) or not has_rule:
        return _read(wide._replace(values=values)).to(dtype)
    query, keys, values = inputs._replace(values=values).expand(inputs.query)
    leading = query.shape[:-2]
    added, fully_masked = wide.softmax_mask(beta, wide.query.dtype)
    added = None if added is None else _flatten_mask(added, leading)
    query, keys_t = _flatten(query.to(dtype)), _flatten(keys.to(dtype)).mT
    weights = half_softmax(query, keys_t, added, inputs.form.scale * beta)
    out = torch.bmm(weights, _flatten(values)).view(*leading, -1, values.shape[-1])
    return out if fully_masked is None else out * ~fully_masked


def _read(inputs: AttentionInputs) -> Tensor:
    query, beta, scale = inputs.query, inputs.softmax.beta, inputs.form.scale
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    query, keys, values = inputs.expand(query)
    leading = query.shape[:-2]
    added, fully_masked = None, None
    if inputs.mask is not None or inputs.bias is not None:
        added, fully_masked = inputs.softmax_mask(beta, query.dtype)
    if added is not None and added.dim() > 2:
        added = _flatten_mask(added, leading)
    if len(leading) > 1:  # the products take (batch * heads, time, dim)
        query, keys, values = query.flatten(0, -3), keys.flatten(0, -3), values.flatten(0, -3)
    elif not leading:
        query, keys, values = query[None], keys[None], values[None]
    out = read_flat(query, keys, values, added, scale, has_bias=inputs.bias is not None)
    if len(leading) != 1:
        out = out.view(*leading, *out.shape[-2:])
    return out if fully_masked is None else out * ~fully_masked


def read_flat(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    added: Tensor | None,
    scale: float,
    *,
    has_bias: bool = False,
) -> Tensor:
    """Return softmax(scale query keys^T + added) values, of tensors (batch * head, time, dim)."""
    weights = softmax(_scores(query, keys.mT, added, scale, has_bias))
    if weights.dtype != values.dtype:
        weights = weights.to(values.dtype)
    return torch.bmm(weights, values)


def _scores(
    query: Tensor, keys: Tensor, added: Tensor | None, scale: float, has_bias: bool
) -> Tensor:
    """Return scale query keys + added, (batch * head, query, key).

    Products scale for free, but their gradients do not: those of queries and keys would each be
    scaled. With gradients the smaller of scores and queries is scaled, which is also the cheaper
    one to scale in backward.
    """
    if not (torch.is_grad_enabled() and (query.requires_grad or keys.requires_grad)):
        if added is None:
            return torch.baddbmm(query.new_empty(1), query, keys, beta=0, alpha=scale)
        return torch.baddbmm(added, query, keys, alpha=scale)
    scales_queries = has_bias or scale <= 0 or keys.shape[-1] >= query.shape[-1]
    if scales_queries:
        query = query * scale
    scores = torch.bmm(query, keys) if added is None else torch.baddbmm(added, query, keys)
    # Without a bias, `added` holds 0 or minus infinity, which no scale changes.
    return scores if scales_queries else scores.mul_(scale)


def _flatten(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])


def _flatten_mask(added: Tensor, leading: torch.Size) -> Tensor:
    """Flatten the leading axes of the mask to one, as the product broadcasts only one."""
    if all(size == 1 for size in added.shape[:-2]):
        return added.reshape(1, *added.shape[-2:])
    return _flatten(added.expand(*leading, *added.shape[-2:]))
