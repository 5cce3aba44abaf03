"""The read by two plain matrix products per head: the fastest form for short reads on a CPU.

    S = scale Q K^T + mask         one product, which also adds mask and bias
    out = softmax(S) V             another

It stores the weights, as the formula does, but batches of heads are flattened for the product, and
the scale needs no separate pass. For scores that are a scaled inner product of mapped queries and
keys, with the soft choice.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import widen
from regard.attention.choices import Soft
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import sdpa
from regard.attention.masks import Causal
from regard.attention.scores import InnerProduct
from regard.compat.torch import is_eager
from regard.ops.half import half_softmax, has_half_products, supports_half_softmax
from regard.ops.softmax import softmax

_MAX_CACHED_MASK = 2**20
"""Largest number of elements of a causal additive mask that is cached between reads."""


def refusal(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can; the same as for
    sdpa."""
    return sdpa.refusal(inputs)


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute out = softmax(scale query keys^T + bias, over allowed keys) values."""
    dtype = inputs.half_dtype()
    if dtype is None:
        return _read(inputs)
    with torch.autocast(inputs.query.device.type, enabled=False):
        return _read_half(inputs, dtype)


def _read_half(inputs: AttentionInputs, dtype: torch.dtype) -> Tensor:
    """Compute the read in half precision with scores in float32; see regard.ops.half."""
    choice, form = inputs.choice, inputs.form
    assert isinstance(form, InnerProduct)
    assert isinstance(choice, Soft)
    has_products = has_half_products(dtype)
    wide = inputs.with_wide_scores()
    values = inputs.values.to(dtype) if has_products else widen(inputs.values)
    if not has_products or isinstance(choice.beta, Tensor) or not supports_half_softmax():
        return _read(wide._replace(values=values)).to(dtype)
    query, keys, values = sdpa.expand_leading(inputs._replace(values=values), inputs.query)
    if query.shape[-1] != keys.shape[-1]:
        inputs.score.compare(query[..., :1, :], keys[..., :1, :])  # raises an informative error
    leading = query.shape[:-2]
    additive_mask, fully_masked = _additive_mask(wide, wide.query, choice.beta)
    additive_mask = None if additive_mask is None else _flatten_mask(additive_mask, leading)
    weights = half_softmax(
        _flatten(query.to(dtype)),
        _flatten(keys.to(dtype)).mT,
        additive_mask,
        form.scale * choice.beta,
    )
    out = torch.bmm(weights, _flatten(values)).view(*leading, query.shape[-2], values.shape[-1])
    return out if fully_masked is None else out * ~fully_masked


def _read(inputs: AttentionInputs) -> Tensor:
    query, keys, values = inputs.query, inputs.keys, inputs.values
    form, choice = inputs.form, inputs.choice
    assert isinstance(form, InnerProduct)
    assert isinstance(choice, Soft)
    if query.shape[-1] != keys.shape[-1]:
        inputs.score.compare(query[..., :1, :], keys[..., :1, :])  # raises an informative error
    beta, scale = choice.beta, form.scale
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    query, keys, values = sdpa.expand_leading(inputs, query)
    leading = query.shape[:-2]
    additive_mask, fully_masked = _additive_mask(inputs, query, beta)
    additive_mask = None if additive_mask is None else _flatten_mask(additive_mask, leading)
    scores = _scores(
        _flatten(query), _flatten(keys).mT, additive_mask, scale, inputs.bias is not None
    )
    out = torch.bmm(softmax(scores).to(values.dtype), _flatten(values)).view(
        *leading, query.shape[-2], values.shape[-1]
    )
    return out if fully_masked is None else out * ~fully_masked


def _scores(
    query: Tensor, keys: Tensor, additive_mask: Tensor | None, scale: float, has_bias: bool
) -> Tensor:
    """Return scale query keys + additive_mask, (batch * head, query, key).

    Products scale for free, but their gradients do not: those of queries and keys would each be
    scaled. With gradients the smaller of scores and queries is scaled, which is also the cheaper
    one to scale in backward.
    """
    if not (torch.is_grad_enabled() and (query.requires_grad or keys.requires_grad)):
        if additive_mask is None:
            return torch.baddbmm(query.new_empty(1), query, keys, beta=0, alpha=scale)
        return torch.baddbmm(additive_mask, query, keys, alpha=scale)
    if has_bias or scale <= 0 or keys.shape[-1] >= query.shape[-1]:
        query = query * scale
        return (
            torch.bmm(query, keys)
            if additive_mask is None
            else torch.baddbmm(additive_mask, query, keys)
        )
    # Here the mask holds 0 or minus infinity, which no scale changes.
    return (
        torch.bmm(query, keys)
        if additive_mask is None
        else torch.baddbmm(additive_mask, query, keys)
    ).mul_(scale)


def _additive_mask(
    inputs: AttentionInputs, query: Tensor, beta: float | Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Return the additive mask of the scores and the fully masked rows, which are unmasked: a
    softmax needs a key."""
    positions = inputs.positions
    if (
        inputs.bias is None
        and isinstance(inputs.mask, Causal)
        and not inputs.may_have_fully_masked_rows()
    ):
        is_small = positions.num_queries * positions.num_keys <= _MAX_CACHED_MASK
        if is_small and positions.is_aligned and positions.rows is None and is_eager():
            return _causal_additive_mask(
                positions.num_queries, positions.num_keys, query.dtype, query.device
            ), None
    bias = inputs.bias_tensor()
    allowed, fully_masked = inputs.allowed_pairs(bias), None
    if allowed is None:
        return None, None
    finite = None if bias is None else bias.masked_fill(~allowed, 0.0)
    if inputs.may_have_fully_masked_rows():
        fully_masked = ~allowed.any(-1, keepdim=True)
        allowed = allowed | fully_masked
    if finite is None:
        return torch.zeros_like(allowed, dtype=query.dtype).masked_fill_(
            ~allowed, float("-inf")
        ), fully_masked
    return (finite * beta).to(query.dtype).masked_fill(~allowed, float("-inf")), fully_masked


@functools.lru_cache(maxsize=16)
def _causal_additive_mask(
    num_queries: int, num_keys: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return 0, and minus infinity after each query's own position; creating it costs as much as a
    short product."""
    with torch.inference_mode(
        False
    ):  # an inference tensor could not be used by a later read with gradients
        additive_mask = torch.full(
            (num_queries, num_keys), float("-inf"), dtype=dtype, device=device
        )
        return additive_mask.triu_(num_keys - num_queries + 1)


def _flatten(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])  # (batch * heads, time, dim)


def _flatten_mask(additive_mask: Tensor, leading: torch.Size) -> Tensor:
    """Flatten the leading axes of the mask to one, as the product broadcasts only one."""
    if all(size == 1 for size in additive_mask.shape[:-2]):
        return additive_mask.reshape(1, *additive_mask.shape[-2:])
    return _flatten(additive_mask.expand(*leading, *additive_mask.shape[-2:]))
