"""The read by its formula, line by line: the reference for the tests of all other kernels.

Works for every score, choice, mask and bias, forms the weights, and costs O(query * key) memory for
it.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from regard.attention.axes import Allowed, Pairs, widen
from regard.attention.inputs import AttentionInputs
from regard.attention.scores.base import compare_all


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return None: the formula supports every read."""
    return None


def weights(inputs: AttentionInputs) -> Pairs:
    """Return choice(score(query, key) + bias) over allowed keys, in the dtype of the queries."""
    return choose_weights(inputs)[0].to(inputs.query.dtype)


def choose_weights(inputs: AttentionInputs) -> tuple[Pairs, Allowed]:
    """Return the weights in the dtype of the choice, and the boolean mask of allowed pairs."""
    scores, allowed = masked_scores(inputs)
    chosen = inputs.choice(scores, allowed)
    if chosen.shape != scores.shape:
        name, shape = f"{type(inputs.choice).__name__}.weights", tuple(scores.shape)
        raise ValueError(f"weights of {name} must be {shape}, got {tuple(chosen.shape)}")
    return chosen, allowed


def masked_scores(inputs: AttentionInputs) -> tuple[Pairs, Allowed]:
    """Return score(query, key) + bias and the mask of allowed pairs, the arguments of a choice.

    In half precision the scores are in float32, and computed in it if the score has a form: others
    may have parameters of half precision.
    """
    if inputs.half_dtype() is None:
        return _with_bias(inputs, _compare(inputs))
    wide = inputs.with_wide_scores()
    scores = None if inputs.form is not None else widen(_compare(inputs))
    with torch.autocast(inputs.query.device.type, enabled=False):
        return _with_bias(wide, _compare(wide) if scores is None else scores)


def read(inputs: AttentionInputs) -> Float[Tensor, "... query value_dim"]:
    """Return sum_j weight_ij value_j."""
    half, weights_ = inputs.half_dtype(), choose_weights(inputs)[0]
    if half is None:
        return _weighted_sum(weights_, inputs.values, inputs.group)
    with torch.autocast(inputs.query.device.type, enabled=False):
        return _weighted_sum(weights_, widen(inputs.values), inputs.group).to(half)


def fold(tensor: Shaped[Tensor, "..."], group: int) -> Shaped[Tensor, "..."]:
    """Fold query heads that share a head of the memory into its queries.

    (..., head, query, size) becomes (..., memory head, group * query, size).
    """
    return tensor.unflatten(-3, (-1, group)).flatten(-3, -2)


def unfold(tensor: Shaped[Tensor, "..."], group: int) -> Shaped[Tensor, "..."]:
    """Undo `fold`."""
    return tensor.unflatten(-2, (group, -1)).flatten(-4, -3)


def _with_bias(inputs: AttentionInputs, scores: Tensor) -> tuple[Tensor, Tensor | None]:
    bias = inputs.bias_tensor()
    allowed = inputs.allowed_pairs(bias)
    if bias is not None:
        assert allowed is not None
        scores = scores + bias.masked_fill(~allowed, 0.0)
    return scores, allowed


def _weighted_sum(weights_: Tensor, values: Tensor, group: int) -> Tensor:
    weights_ = weights_.to(values.dtype)  # parts of users may compute in float64
    if group == 1:
        return weights_ @ values
    return unfold(fold(weights_, group) @ values, group)


def _compare(inputs: AttentionInputs) -> Tensor:
    group, query, keys = inputs.group, inputs.query, inputs.keys
    if group == 1:
        return compare_all(inputs.score, query, keys)
    if inputs.score.num_heads is not None:  # the score differs between heads
        return compare_all(inputs.score, query, inputs.repeat_heads().keys)
    return unfold(compare_all(inputs.score, fold(query, group), keys), group)
