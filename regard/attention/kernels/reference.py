"""The read by its formula, line by line: the reference for the tests of all other kernels.

Works for every score, choice, mask and bias, forms the weights, and costs O(query * key) memory for
it.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from regard.attention.axes import is_inspectable, widen
from regard.attention.inputs import AttentionInputs
from regard.attention.parts import check_result, is_own


def refusal(inputs: AttentionInputs) -> str | None:
    """Return None: the formula supports every read."""
    return None


def weights(inputs: AttentionInputs) -> Float[Tensor, "... query key"]:
    """Return choice(score(query, key) + bias) over the keys that the mask allows, in the dtype of
    the queries."""
    return choose_weights(inputs)[0].to(inputs.query.dtype)


def choose_weights(
    inputs: AttentionInputs,
) -> tuple[Float[Tensor, "... query key"], Bool[Tensor, "..."] | None]:
    """Return the weights in the dtype of the choice, and the boolean mask of allowed pairs.

    Raises: ValueError, on a CPU, if a score or a choice that is not of this package gives weights
            that are not finite for finite queries and keys, or not zero for a masked pair.
    """
    scores, allowed = masked_scores(inputs)
    weights_ = check_result(
        inputs.choice, "weights", inputs.choice.weights(scores, allowed), *scores.shape
    )
    if is_inspectable(weights_) and (is_own(inputs.score) or is_own(inputs.choice)):
        _check_weights(inputs, scores, weights_.detach(), allowed)
    return weights_, allowed


def _check_weights(
    inputs: AttentionInputs, scores: Tensor, weights_: Tensor, allowed: Tensor | None
) -> None:
    if not bool(weights_.isfinite().all()) and bool(
        inputs.query.isfinite().all() & inputs.keys.isfinite().all()
    ):
        kept = scores.detach() if allowed is None else scores.detach().masked_fill(~allowed, 0.0)
        is_score = is_own(inputs.score) and not bool(kept.isfinite().all())
        name, numbers = ("score", kept) if is_score else ("choice", weights_)
        part, method = getattr(inputs, name), "compare" if is_score else "weights"
        raise ValueError(
            f"{type(part).__name__}.{method} must be finite, "
            f"{_describe_first(~numbers.isfinite(), numbers)}"
        )
    if (
        allowed is not None
        and is_own(inputs.choice)
        and bool((bad := (weights_ != 0) & ~allowed).any())
    ):
        raise ValueError(
            f"{type(inputs.choice).__name__}.weights must be zero where `allowed` is False, also "
            f"in a row that is "
            f"masked completely, {_describe_first(bad, weights_)}"
        )


def _describe_first(bad: Tensor, numbers: Tensor) -> str:
    index = tuple(bad.nonzero()[0].tolist())
    return f"got {numbers[index].item()} at {index} ({int(bad.sum())} such numbers in total)"


def masked_scores(
    inputs: AttentionInputs,
) -> tuple[Float[Tensor, "... query key"], Bool[Tensor, "..."] | None]:
    """Return score(query, key) + bias and the boolean mask of allowed pairs, the arguments of a
    choice.

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
    """Fold query heads that share a head of the memory, (..., head, query, size), into its
    queries."""
    return tensor.unflatten(-3, (-1, group)).flatten(
        -3, -2
    )  # (..., memory head, group * query, size)


def unfold(tensor: Shaped[Tensor, "..."], group: int) -> Shaped[Tensor, "..."]:
    """Undo `fold`."""
    return tensor.unflatten(-2, (group, -1)).flatten(-4, -3)  # (..., head, query, size)


def _with_bias(inputs: AttentionInputs, scores: Tensor) -> tuple[Tensor, Tensor | None]:
    bias = inputs.bias_tensor()
    allowed = inputs.allowed_pairs(bias)
    if bias is not None:
        assert allowed is not None
        scores = scores + bias.masked_fill(~allowed, 0.0)
    return scores, allowed


def _weighted_sum(weights_: Tensor, values: Tensor, group: int) -> Tensor:
    weights_ = weights_.to(values.dtype)  # own parts may compute in float64
    if group == 1:
        return weights_ @ values
    return unfold(fold(weights_, group) @ values, group)


def _compare(inputs: AttentionInputs) -> Tensor:
    """Return the scores of all pairs. Query heads that share a head of the memory are folded into
    its queries."""
    group, query, keys = inputs.group, inputs.query, inputs.keys
    if group > 1 and inputs.score.num_heads is not None:  # the score differs between heads
        group, keys = 1, inputs.repeat_heads().keys
    elif group > 1:
        query = fold(query, group)
    scores = check_result(
        inputs.score, "compare", inputs.score.compare(query, keys), query.shape[-2], keys.shape[-2]
    )
    return scores if group == 1 else unfold(scores, group)
