"""Fused additive attention: neither the weights nor the hidden units are stored.

    score_ij = v . tanh(q_i + k_j) + bias_ij
    out_i    = sum_j softmax_j(beta score_ij) v_j        in O((m + n) d) memory

Implemented for CPUs (numba) and GPUs (Triton) behind one operator, regard::additive_read. Masks
that allow a range of keys per query bound the loops; biases that are constant along diagonals take
m + n - 1 numbers.

Source: bahdanau2015, appendix A.1.2; the online softmax milakov2018, dao2022.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import is_inspectable, widen, with_four_axes
from regard.attention.inputs import AttentionInputs
from regard.attention.scores import TanhSum
from regard.compat.torch import version_of
from regard.ops import additive
from regard.ops.additive import MAX_EXP_INPUT, additive_read, is_step


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    if not isinstance(inputs.form, TanhSum):
        return f"score {type(inputs.score).__name__} is not additive"
    if inputs.softmax is None or inputs.softmax.sink is not None:
        return f"choice {type(inputs.choice).__name__} is no softmax of all keys alone"
    beta = inputs.softmax.beta
    if isinstance(beta, Tensor) and beta.numel() > 1:
        per_head = inputs.num_axes == 4 and beta.dim() >= 3 and beta.numel() == beta.shape[-3]
        if not per_head:
            return f"beta of shape {tuple(beta.shape)} differs between queries"
    if inputs.num_axes > 4:
        return f"the read has {inputs.num_axes - 2} leading axes, more than batch and head"
    return additive.unsupported_reason(inputs.query.device.type)


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute out = softmax(beta (v . tanh(query + keys) + bias), over allowed keys) values."""
    v, beta, original = inputs.form.v, inputs.softmax.beta, inputs
    has_heads = v.dim() == 2
    to_four_axes = functools.partial(with_four_axes, missing=0 if has_heads else 1)
    if inputs.query.device.type == "cpu":
        # The loops compute in float32: what they save for backward is not rounded either.
        inputs = inputs.with_wide_scores()._replace(values=widen(inputs.values))
    query, keys, values = map(to_four_axes, (inputs.query, inputs.keys, inputs.values))
    # Under autocast the mapped queries and keys are in half precision; values keep their dtype.
    query, keys, values = _with_one_batch(query, keys.to(query.dtype), values.to(query.dtype))
    v = v.to(query.dtype)
    v = v if has_heads else v.unsqueeze(0)  # (head or 1, hidden)
    added, bias, diagonals = None, None, inputs.diagonals()
    if diagonals is not None:
        diagonals = to_four_axes(diagonals.unsqueeze(-2)).squeeze(-2).to(query.dtype)
    else:
        added = inputs.bias_tensor()
        if added is not None:
            bias = to_four_axes(added).to(query.dtype)  # (batch, head, query, key)
    if isinstance(beta, Tensor):
        beta = beta.to(query.dtype).reshape(-1, 1)  # (head or 1, 1)
    if isinstance(beta, Tensor) or beta != 1:
        v = v * beta
        if bias is not None:
            allowed = inputs.allowed_pairs(added)
            assert allowed is not None
            factor = beta[:, None] if isinstance(beta, Tensor) else beta
            bias = _scale(bias, factor, ~to_four_axes(allowed))
        if diagonals is not None:
            diagonals = _scale(diagonals, beta, diagonals == float("-inf"))
    interval, allowed = inputs.split_range_and_mask()
    first, last, exps = None, None, None
    if interval is not None:
        first, last = (to_four_axes(bound).squeeze(-1) for bound in interval)
    if allowed is not None:
        allowed = to_four_axes(allowed)
    if query.device.type == "cpu" and is_step(query, keys):  # kernels of a GPU take none
        exps = _cached_exponentials(original)
    if exps is not None:
        exps = to_four_axes(exps.view(inputs.keys.shape)).expand_as(keys)
    out, _ = additive_read(query, keys, values, v, first, last, allowed, bias, diagonals, exps)
    return out.to(original.query.dtype).reshape(*inputs.leading, *out.shape[-2:])


def _scale(bias: Tensor, beta: float | Tensor, hidden: Tensor) -> Tensor:
    """Return beta bias, -inf where hidden: no infinity may meet a beta of 0, or its gradient."""
    return (bias.masked_fill(hidden, 0.0) * beta).masked_fill(hidden, float("-inf"))


@dataclass
class _CachedExponentials:
    """Cached e^{2 keys} of a memory that is read step by step."""

    version: int
    """Version counter of the keys: the cache is dropped when they are written to."""
    reads: int = 0
    exps: Tensor | None = None
    """None before the second read of the memory, or if the keys are too large."""


def _cached_exponentials(inputs: AttentionInputs) -> Tensor | None:
    """Return e^{2 keys}, cached from the second step on; None if unavailable."""
    kernel_cache, keys = inputs.kernel_cache, inputs.keys
    if kernel_cache is None or not is_inspectable(keys) or keys.numel() == 0:
        return None
    if keys.is_inference():  # changes in place are not counted
        return None
    version = version_of(keys)
    cached = kernel_cache.get("additive")
    if not isinstance(cached, _CachedExponentials) or cached.version != version:
        cached = kernel_cache["additive"] = _CachedExponentials(version)
    cached.reads += 1
    if cached.reads == 2:
        wide = keys.detach().to(torch.promote_types(keys.dtype, torch.float32))
        if wide.abs().max() <= MAX_EXP_INPUT:  # not so for NaN
            cached.exps = (2 * wide).exp_()
    return cached.exps


def _with_one_batch(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Expand the leading axes where they differ; the memory may keep fewer heads."""
    if query.shape[:2] == keys.shape[:2] == values.shape[:2]:
        return query, keys, values
    batch = torch.broadcast_shapes(query.shape[:1], keys.shape[:1], values.shape[:1])
    memory_heads = max(keys.shape[1], values.shape[1])
    heads = max(query.shape[1], memory_heads)
    query = query.expand(*batch, heads, *query.shape[2:])
    keys, values = (x.expand(*batch, memory_heads, *x.shape[2:]) for x in (keys, values))
    return query, keys, values
