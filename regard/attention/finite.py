"""Checks of a read for infinities and NaN; numbers that are masked for every query are ignored.

Keys and values that no query attends to are replaced by zeros, and so are fully masked queries,
because 0 * NaN is NaN.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.axes import ReadTensors, is_inspectable, unpack_memory
from regard.attention.choices import Soft
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.parts import check_finite_bias
from regard.attention.scores import Features, InnerProduct


def run_checked(
    run: Callable[[AttentionInputs], Tensor], inputs: AttentionInputs, tensors: ReadTensors
) -> Tensor:
    """Run a kernel on a pair; zero non-finite numbers that are masked, and raise ValueError for
    those that are not.

    Where the output shows non-finite inputs, only the output is checked: zero times infinity is
    NaN, and so is the softmax of infinite scores. Gradients and bounded scores do not show them, so
    there the inputs are checked first.
    """
    is_checked = is_inspectable(tensors.query)
    if is_checked and not _output_shows_nonfinite(inputs) and not _is_in_range(inputs, tensors):
        inputs = _zero_masked(inputs, tensors)
        if not are_finite(inputs.query, inputs.keys):
            raise ValueError(
                f"queries and keys mapped by {type(inputs.score).__name__} must be finite, but "
                f"overflow "
                f"{inputs.query.dtype}; the tensors that were passed are finite"
            )
    out = run(inputs)
    if not is_checked or are_finite(out):
        return out
    out = run(_zero_masked(inputs, tensors))
    if are_finite(out):
        return out
    raise ValueError(
        f"the output must be finite, but overflows {inputs.query.dtype}; query, keys and values "
        f"are finite, "
        "but their products or sums are too large"
    )


def prepare_again(
    inputs: AttentionInputs, query: Tensor, keys: Tensor, values: Tensor
) -> AttentionInputs:
    """Prepare the same read with other numbers in query, keys and values."""
    rules = {
        "score": inputs.score,
        "choice": inputs.choice,
        "mask": inputs.mask,
        "bias": inputs.bias,
    }
    return prepare_inputs(query, (keys, values), **rules)


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise ValueError, with the first index, unless all numbers are finite (masked ones are zeros
    by now)."""
    bad = ~tensor.detach().isfinite()
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be finite where not masked, got {tensor[index].item()} at {index} "
            f"({int(bad.sum())} such numbers in total)"
        )


def are_finite(*tensors: Tensor) -> bool:
    """Return True if all numbers are finite: one sum per tensor, and every number only if that is
    not finite."""
    for tensor in tensors:
        numbers = tensor.detach() if tensor.requires_grad else tensor
        total = (
            numbers.sum(dtype=torch.float32) if numbers.dtype == torch.float16 else numbers.sum()
        )
        if not math.isfinite(total.item()) and not bool(numbers.isfinite().all()):
            return False
    return True


def zero_hidden(
    tensors: ReadTensors, allowed: Tensor | None, leading: tuple[int, ...]
) -> ReadTensors:
    """Zero keys and values that no query attends to, and queries whose row is fully masked.

    allowed: (..., query, key) with as many axes, broadcasting to the read; None: no pair is masked.
    """
    if allowed is None:
        return tensors
    allowed = allowed.expand(*leading, tensors.query.shape[-2], tensors.keys.shape[-2])
    has_key, has_query = allowed.any(-1), allowed.any(-2)
    return ReadTensors(
        *(
            torch.where(_any_over_broadcast(used, tensor).unsqueeze(-1), tensor, 0.0)
            for used, tensor in zip((has_key, has_query, has_query), tensors, strict=True)
        )
    )


def _output_shows_nonfinite(inputs: AttentionInputs) -> bool:
    """Return True if every non-finite number that is read makes the output non-finite, and no
    gradient is needed."""
    if not (isinstance(inputs.form, InnerProduct) and isinstance(inputs.choice, Soft)):
        return False
    tensors = inputs.query, inputs.keys, inputs.values
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not needs_grad and not isinstance(inputs.score, Features)


def _is_in_range(inputs: AttentionInputs, tensors: ReadTensors) -> bool:
    """Return True if all numbers are finite and no inner product of a query and a key, masked or
    not, can overflow."""
    if (inputs.bias is not None and inputs.bias.may_be_infinite()) or not are_finite(*tensors):
        return False
    if not isinstance(inputs.form, InnerProduct):
        return True
    wide = torch.promote_types(inputs.query.dtype, torch.float32)
    # |<q, k>| <= |q| |k|, which is at most the product of the norms of all queries and of all keys.
    norms = (
        torch.linalg.vector_norm(x.detach(), dtype=wide).item() for x in (inputs.query, inputs.keys)
    )
    return math.prod(norms) < torch.finfo(inputs.query.dtype).max / 8


def _zero_masked(inputs: AttentionInputs, tensors: ReadTensors) -> AttentionInputs:
    """Zero the queries, keys and values that are fully masked. Raises ValueError if others are not
    finite."""
    bias = inputs.bias_tensor()
    allowed = inputs.allowed_pairs(bias)
    if bias is not None:
        check_finite_bias("bias", bias, allowed)
    if not are_finite(*tensors):
        aligned = unpack_memory(tensors.query, tensors[1:])
        zeroed = zero_hidden(aligned, allowed, inputs.leading)
        for name, tensor, original in zip(ReadTensors._fields, zeroed, tensors, strict=True):
            check_finite(name, tensor.view(original.shape))
        inputs = prepare_again(inputs, *zeroed)
    mapped = ReadTensors(inputs.query, inputs.keys, inputs.values)
    return inputs._replace(**zero_hidden(mapped, allowed, inputs.leading)._asdict())


def _any_over_broadcast(used: Tensor, tensor: Tensor) -> Tensor:
    """Reduce `used`, (..., item) of the read, over the leading axes that the tensor (..., item,
    dim) broadcasts."""
    for axis, size in enumerate(tensor.shape[:-2]):
        if used.shape[axis] != size:
            used = used.unflatten(axis, (size, -1)).any(axis + 1)
    return used
