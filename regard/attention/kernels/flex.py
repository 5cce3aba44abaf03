"""The read by torch's FlexAttention: fused, masks as functions of indices, no empty blocks.

    out = softmax(cap(scale query keys^T) + bias, over allowed keys) values

For scores that are a scaled (and capped) inner product, with the soft choice. torch compiles it for
each kind of read, which takes seconds the first time and on a CPU requires a C++ compiler; on a CPU
it has no backward.

Source: dong2024.
"""

import functools
import shutil
import weakref
from collections.abc import Callable
from typing import Any, cast, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from regard.attention.axes import entry_at, make_lookup, with_four_axes
from regard.attention.inputs import AttentionInputs
from regard.attention.masks import Mask, materialize_mask
from regard.attention.scores import InnerProduct
from regard.compat.torch import limit_recompilation

_BLOCK_MASKS: weakref.WeakKeyDictionary[Mask, dict[tuple, BlockMask]] = weakref.WeakKeyDictionary()
"""Cached block masks: finding the empty blocks costs more than a short read."""


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    if not isinstance(inputs.form, InnerProduct):
        return f"score {type(inputs.score).__name__} is not an inner product"
    if inputs.softmax is None:
        return f"choice {type(inputs.choice).__name__} is no softmax of all keys"
    if inputs.num_axes > 4:
        return f"the read has {inputs.num_axes - 2} leading axes, more than batch and head"
    if inputs.query.device.type == "cpu":
        return _reason_on_cpu(inputs)
    if min(inputs.query.shape[-1], inputs.values.shape[-1]) < 16:
        return "on a GPU, queries, keys and values must have at least 16 numbers"
    return None


def _reason_on_cpu(inputs: AttentionInputs) -> str | None:
    tensors = [inputs.query, inputs.keys, inputs.values, *inputs.softmax, inputs.bias_tensor()]
    needs_gradient = any(isinstance(x, Tensor) and x.requires_grad for x in tensors)
    if needs_gradient and torch.is_grad_enabled():
        return "it has no gradient on a CPU"
    if inputs.query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"dtype {inputs.query.dtype} is not supported on a CPU"
    if not has_compiler():
        return "it needs a C++ compiler on a CPU"
    return None


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Compute out = softmax(cap(scale query keys^T) + bias, over allowed keys) values."""
    if inputs.softmax.sink is not None:
        inputs = inputs.with_sink_key()
    grouped = inputs.group > 1
    query, keys, values = inputs.expand(inputs.query, grouped=grouped)
    leading = query.shape[:-2]
    query, keys, values = (with_four_axes(x) for x in (query, keys, values))
    if query.device.type == "cpu":  # torch refuses tensors that require gradients, also without any
        query, keys, values = query.detach(), keys.detach(), values.detach()
    out = _flex_attention(
        query,
        keys,
        values,
        score_mod=_score_mod(inputs, inputs.softmax.beta, inputs.form.cap),
        block_mask=_block_mask(inputs, query.shape[:2]),
        scale=inputs.form.scale,
        enable_gqa=grouped,
    )
    return cast("Tensor", out).reshape(*leading, *out.shape[-2:])


def has_compiler() -> bool:
    """Return True if a C++ compiler is installed, which torch needs to compile for a CPU."""
    return any(shutil.which(name) is not None for name in ("c++", "g++", "clang++"))


@functools.cache
def _compile_flex_attention() -> Callable[..., Tensor]:
    # A read that torch cannot compile must fail, not fall back to a path that stores all scores.
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return cast("Callable[..., Tensor]", compiled)


def _flex_attention(query: Tensor, keys: Tensor, values: Tensor, **rules: Any) -> Tensor:
    if torch.compiler.is_compiling():
        # Compiled with the calling function.
        return cast("Tensor", flex_attention(query, keys, values, **rules))
    # At most so many kinds of read (shapes, dtypes, masks, biases) are compiled in one process.
    with limit_recompilation(256):
        return _compile_flex_attention()(query, keys, values, **rules)


def _score_mod(inputs: AttentionInputs, beta: float | Tensor, cap: float | None):
    """Return the function that modifies scores before the softmax, or None if there is none."""
    num_queries, diagonals = inputs.positions.num_queries, inputs.diagonals()
    bias = inputs.bias_tensor() if diagonals is None else None
    if diagonals is not None:
        diagonals = with_four_axes(diagonals.unsqueeze(-2)).squeeze(-2)
    if bias is not None:
        bias = with_four_axes(bias)
    if inputs.bias is None and cap is None and not isinstance(beta, Tensor) and beta == 1:
        return None
    if isinstance(beta, Tensor):  # broadcasts from the right
        beta = with_four_axes(beta[(None,) * (inputs.num_axes - beta.dim()) + (...,)])

    @no_type_check
    def modify(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        factor = beta
        if isinstance(beta, Tensor):
            factor = entry_at(beta, row, head, query, torch.zeros_like(key))
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if diagonals is not None:
            added = entry_at(diagonals, row, head, key - query + num_queries - 1)
        elif bias is not None:
            added = entry_at(bias, row, head, query, key)
        else:
            return score * factor
        # No infinity may meet a beta of 0.
        return torch.where(added > float("-inf"), (score + added) * factor, float("-inf"))

    return modify


def _block_mask(inputs: AttentionInputs, leading: torch.Size) -> BlockMask | None:
    mask = inputs.mask
    if mask is None:
        return None
    positions = inputs.positions
    block_masks = _BLOCK_MASKS.setdefault(mask, {})
    sizes = positions.num_queries, positions.num_keys
    key = (*leading, *sizes, positions.rows, str(positions.device))
    if positions.is_aligned and key in block_masks:
        return block_masks[key]
    inputs.tile(0, 1).allowed_pairs()  # raises if the mask has other leading axes than the read
    if positions.key_positions is None:
        rule = mask.rule(positions)
    else:
        rule = make_lookup(materialize_mask(mask, positions))

    @no_type_check  # torch inspects the signature, which a checked function hides
    def allows(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(row, head, query, key)

    batch, heads = leading
    sizes = positions.num_rows, positions.num_keys
    block_mask = create_block_mask(allows, batch, heads, *sizes, device=positions.device.type)
    if positions.is_aligned:
        block_masks[key] = block_mask
    return block_mask
