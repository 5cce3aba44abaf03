"""The read for choices of few keys (Hard, TopK): gathers the selected values.

    out_i = sum_r weight_ir values[index_ir]        r = 1 .. k;  k = 1 for Hard

Scores are computed by their formula, one tile of queries at a time, so that memory is bounded; the
values are then read in O(query * k * value_dim), however many keys there are. For Hard and TopK
with any score, mask and bias.

Backward: values get gradients at the selected keys, and the scores of TopK from the selected keys.
The scores of Hard get a surrogate gradient, <gradient of out_i, value_j> through a softmax, in
O(query * key * value_dim), as in a soft read. If a read has several tiles, each is recomputed in
backward, and none of its intermediate tensors are saved.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.choices import KeySelection
from regard.attention.choices.top_k import SelectedKeys
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import reference
from regard.attention.scores import InnerProduct
from regard.compat.torch import is_transformed

TILE = 1 << 20
"""Numbers in a tile: scores, hidden units, or gathered values. A read holds a few tensors of this
size at a time (twice as many in backward); a single query may need larger ones."""


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return the reason why this kernel cannot compute the read, or None if it can."""
    if not isinstance(inputs.choice, KeySelection):
        return f"choice {type(inputs.choice).__name__} may weight every key"
    return None


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Select keys tile by tile and gather their values.

    Under torch.func and torch.compile nothing is recomputed: they decide themselves what is saved
    for backward.
    """
    num_queries, choice = inputs.query.shape[-2], inputs.choice
    # As many queries that the largest tensor of a tile has at most TILE numbers.
    num_keys, value_dim = inputs.values.shape[-2:]
    pair_size = 1 if isinstance(inputs.form, InnerProduct) else inputs.query.shape[-1]
    query_size = max(num_keys * pair_size, min(choice.k, num_keys) * value_dim)
    step = max(1, TILE // max(1, math.prod(inputs.leading) * query_size))
    starts = range(0, num_queries, step)
    tiles = [inputs.tile(first, min(first + step, num_queries)) for first in starts]
    recomputes = len(tiles) > 1 and torch.is_grad_enabled()
    recomputes = recomputes and not (torch.compiler.is_compiling() or is_transformed())
    outs, log_probs = [], []
    for tile in tiles:
        if recomputes:  # in backward, with the same random numbers
            out, log_prob = checkpoint(
                _read_tile, tile, use_reentrant=False, preserve_rng_state=choice.is_random
            )
        else:
            out, log_prob = _read_tile(tile)
        outs.append(out)
        if log_prob is not None:
            log_probs.append(log_prob)
    choice.accumulate_log_prob(torch.cat(log_probs, -1) if log_probs else None)
    out = outs[0] if len(outs) == 1 else torch.cat(outs, -2)
    half = inputs.half_dtype()  # as a product, which autocast would round
    return out if half is None else out.to(half)


def _read_tile(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
    selected = inputs.choice.select_keys(*reference.masked_scores(inputs))
    if inputs.group == 1:
        return _gather(selected, inputs.values), selected.log_prob
    group, slope = inputs.group, selected.soft_weights
    index, weight = (reference.fold(part, group) for part in selected[:2])
    folded = SelectedKeys(index, weight, None if slope is None else reference.fold(slope, group))
    return reference.unfold(_gather(folded, inputs.values), group), selected.log_prob


def _gather(selected: SelectedKeys, values: Tensor) -> Tensor:
    """Return sum_r weight_ir values[index_ir], by an index_select of the rows of all values."""
    *leading, num_keys, value_dim = values.shape
    first = torch.arange(math.prod(leading), device=values.device).view(*leading, 1, 1) * num_keys
    index = selected.index + first  # (..., query, selected): leading axes of 1 broadcast
    gathered = values.reshape(-1, value_dim).index_select(0, index.flatten())
    gathered = gathered.view(*index.shape, value_dim)
    weight = selected.weight.to(values.dtype)
    if index.shape[-1] == 1:
        out = gathered.squeeze(-2) * weight
    else:
        out = (weight.unsqueeze(-2) @ gathered).squeeze(-2)
    if selected.soft_weights is None:
        return out
    leading = out.shape[:-2]
    slope = selected.soft_weights.to(values.dtype).expand(*leading, -1, -1)
    return out + _StraightThrough.apply(slope, values.expand(*leading, -1, -1))  # pyrefly: ignore


class _StraightThrough(torch.autograd.Function):
    """(slope - stop_gradient(slope)) values: zero, with the gradient of slope values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope: Tensor, values: Tensor) -> Tensor:
        return values.new_zeros(()).expand(*slope.shape[:-1], values.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        slope, values = ctx.saved_tensors
        grad_values = None
        if torch.is_grad_enabled():
            # The gradient of values is zero too, but its derivative is not: second derivatives are
            # those of the formula.
            grad_values = _StraightThrough.apply(slope.transpose(-2, -1), gradient)
        return gradient @ values.transpose(-2, -1), grad_values
