"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choose(score_ij + bias_ij)       soft: softmax over the keys that the mask allows
    out_i     = sum_j weight_ij value_j

Everything else in this library computes the inputs of this read or visualizes it.

Source: lectures, A; vaswani2017, section 3.2.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import is_inspectable
from regard.attention.biases import Bias, TensorBias
from regard.attention.checks import (
    ReadTensors,
    align_to_query,
    are_finite,
    broadcast_leading,
    check_finite,
    check_finite_bias,
    check_pair,
    unpack_memory,
    zero_hidden,
)
from regard.attention.choices import Choice, Soft
from regard.attention.features import Features
from regard.attention.kernels import reference, table
from regard.attention.kernels.problem import AttentionInputs
from regard.attention.linear import LinearState
from regard.attention.masks import All, Mask
from regard.attention.memory import KeyValueCache, Memory
from regard.attention.scores import InnerProduct, ScaledDot, Score

_SCALED_DOT = ScaledDot()
_SOFT = Soft()


def attend(
    query: Float[Tensor, "... query query_dim"],
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query value_dim"]:
    """Read the memory with every query (scaled dot-product attention by default).

        out[i] = sum_j choose_j(score(query[i], keys[j]) + bias[i, j]) values[j]

    Shapes:  query (..., query, query_dim); memory: a Memory or a pair (keys (..., key, key_dim), values (..., key,
             value_dim)); out (..., query, value_dim). Leading axes broadcast, aligned from the left: queries
             (batch, head, query, query_dim) read a memory (batch, key, key_dim) with every head. The query must have
             all leading axes of the memory, possibly of size 1: query[None] is shared by the batch, query.unsqueeze(1)
             by the heads. With two or more leading axes, the last is the heads, and the number of heads of the memory
             may divide that of the queries (grouped queries, ainslie2023). Any axis may have size 0: without keys the
             output is zeros.
    Mask:    True = may attend; combined with the mask of the memory. A fully masked row gives zeros, not NaN. Keys and
             values that no query attends to have no effect, whatever their numbers.
    Bias:    a Bias or a tensor, added to the scores. Masks and biases align from the left, as the memory does.
    Kernel:  "reference" computes the formula; "sdpa" is torch's scaled_dot_product_attention; "additive" is our fused
             kernel for additive scores; "auto" follows the table in regard.attention.kernels.table, which
             regard.kernels() prints. A kernel that does not support the read raises and names one that does.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for inputs that do not fit together, with name, rule and value. On a CPU, for a
             pair, also for numbers that are not finite and not masked (a Memory is not checked at every read).
    Source:  lectures, A; vaswani2017, section 3.2.
    """
    if isinstance(memory, LinearState):
        return memory.read(query, score=score, choose=choose, mask=mask, bias=bias, kernel=kernel)
    inputs = prepare_inputs(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    run = table.pick(kernel, inputs)
    if inputs.is_empty or inputs.values.shape[-1] == 0:
        return _empty_result(inputs, query, memory, inputs.values.shape[-1])
    return run(inputs) if isinstance(memory, KeyValueCache) else _run_checked(run, inputs, ReadTensors(query, *memory))


def attention_weights(
    query: Float[Tensor, "... query query_dim"],
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query key"]:
    """Return the attention weights of `attend` for the same arguments: (..., query, key), rows sum to one or zero.

    The weights are always computed by the reference kernel: fused kernels never store them.
    """
    inputs = prepare_inputs(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    table.pick(kernel, inputs)
    if inputs.is_empty:
        return _empty_result(inputs, query, memory, inputs.keys.shape[-2])
    run = reference.weights
    return run(inputs) if isinstance(memory, KeyValueCache) else _run_checked(run, inputs, ReadTensors(query, *memory))


def prepare_inputs(
    query: Tensor,
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score,
    choose: Choice,
    mask: Mask | None,
    bias: Bias | Tensor | None,
) -> AttentionInputs:
    """Check the arguments of `attend`, align their axes, map queries and keys, and combine the masks, for a kernel."""
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, got {type(mask).__name__}; wrap tensors in regard.dense")
    if bias is not None and not isinstance(bias, Bias):
        bias = TensorBias(bias)
    if not isinstance(memory, KeyValueCache):
        query, keys, values = unpack_memory(query, memory)
        memory = Memory(keys, values)
    check_pair(query, memory.keys, memory.values)
    mapped = memory.map_keys_with(score)
    keys, values = mapped.keys, mapped.values
    if not query.dim() == keys.dim() == values.dim():
        query, keys, values = _with_equal_axes(query, keys, values, score)
    raw_query, query = query, score.map_query(query)
    leading = broadcast_leading(query, keys, values)
    if score.num_heads is not None and score.num_heads not in leading[-1:]:
        raise ValueError(
            f"the last leading axis of a read by {type(score).__name__} must be its {score.num_heads} heads, "
            f"got leading axes {leading}"
        )
    if mask is not None and memory.mask is not None:
        mask = All(mask, memory.mask)
    inputs = AttentionInputs(
        query=query,
        keys=keys,
        values=values,
        score=score,
        form=score.form(query.shape[-1]),
        choose=choose,
        mask=memory.mask if mask is None else mask,
        bias=bias,
        positions=memory.positions(query.shape[-2]),
        raw_query=raw_query,
        kernel_cache=memory.kernel_cache if mapped is memory else None,
    )
    choose.check(leading, query.shape[-2])
    return inputs.expand_leading(leading)


def _with_equal_axes(query: Tensor, keys: Tensor, values: Tensor, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """Align keys and values to the axes of the query. Raises ValueError if the heads of mapped keys are ambiguous."""
    tensors = align_to_query(query, keys, values)
    if score.num_heads is not None and keys.dim() < query.dim():
        raise ValueError(
            f"keys that {type(score).__name__} maps per head must have as many axes as the query, {query.dim()}, "
            f"got shape {tuple(keys.shape)}; add an axis of heads, of size 1 if all heads share the keys"
        )
    return tensors


def _run_checked(run: Callable[[AttentionInputs], Tensor], inputs: AttentionInputs, tensors: ReadTensors) -> Tensor:
    """Run a kernel on a pair; zero non-finite numbers that are masked, and raise ValueError for those that are not.

    Where the output shows non-finite inputs, only the output is checked: zero times infinity is NaN, and so is the
    softmax of infinite scores. Gradients and bounded scores do not show them, so there the inputs are checked first.
    """
    is_checked = is_inspectable(tensors.query)
    if is_checked and not _output_shows_nonfinite(inputs) and not _is_in_range(inputs, tensors):
        inputs = _zero_masked(inputs, tensors)
        if not are_finite(inputs.query, inputs.keys):
            raise ValueError(
                f"queries and keys mapped by {type(inputs.score).__name__} must be finite, but overflow "
                f"{inputs.query.dtype}; the tensors that were passed are finite"
            )
    out = run(inputs)
    if not is_checked or are_finite(out):
        return out
    out = run(_zero_masked(inputs, tensors))
    if are_finite(out):
        return out
    raise ValueError(
        f"the output must be finite, but overflows {inputs.query.dtype}; query, keys and values are finite, "
        "but their products or sums are too large"
    )


def _output_shows_nonfinite(inputs: AttentionInputs) -> bool:
    """Return True if every non-finite number that is read makes the output non-finite, and no gradient is needed."""
    if not (isinstance(inputs.form, InnerProduct) and isinstance(inputs.choose, Soft)):
        return False
    tensors = inputs.query, inputs.keys, inputs.values
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not needs_grad and not isinstance(inputs.score, Features)


def _is_in_range(inputs: AttentionInputs, tensors: ReadTensors) -> bool:
    """Return True if all numbers are finite and no inner product of a query and a key, masked or not, can overflow."""
    if _has_infinite_bias(inputs) or not are_finite(*tensors):
        return False
    if not isinstance(inputs.form, InnerProduct):
        return True
    wide = torch.promote_types(inputs.query.dtype, torch.float32)
    # |<q, k>| <= |q| |k|, which is at most the product of the norms of all queries and of all keys.
    norms = (torch.linalg.vector_norm(x.detach(), dtype=wide).item() for x in (inputs.query, inputs.keys))
    return math.prod(norms) < torch.finfo(inputs.query.dtype).max / 8


def _empty_result(
    inputs: AttentionInputs, query: Tensor, memory: KeyValueCache | tuple[Tensor, Tensor], size: int
) -> Tensor:
    """Return zeros (..., query, size), whose gradients are zero whatever the numbers of a pair."""
    if not isinstance(memory, KeyValueCache):
        # The mapped tensors of `problem` may be infinite, and their gradients then NaN.
        inputs = _prepare_again(inputs, *(torch.zeros_like(x) + x[..., :0].sum() for x in (query, *memory)))
    return inputs.zeros(size)


def _prepare_again(inputs: AttentionInputs, query: Tensor, keys: Tensor, values: Tensor) -> AttentionInputs:
    """Prepare the same read with other numbers in query, keys and values."""
    rules = {"score": inputs.score, "choose": inputs.choose, "mask": inputs.mask, "bias": inputs.bias}
    return prepare_inputs(query, (keys, values), **rules)


def _has_infinite_bias(inputs: AttentionInputs) -> bool:
    return inputs.bias is not None and inputs.bias.may_be_infinite()


def _zero_masked(inputs: AttentionInputs, tensors: ReadTensors) -> AttentionInputs:
    """Zero the queries, keys and values that are fully masked. Raises ValueError if others are not finite."""
    bias = inputs.bias_tensor()
    allowed = inputs.allowed_pairs(bias)
    if bias is not None:
        check_finite_bias(bias, allowed)
    if not are_finite(*tensors):
        aligned = unpack_memory(tensors.query, tensors[1:])
        zeroed = zero_hidden(aligned, allowed, inputs.leading)
        for name, tensor, original in zip(ReadTensors._fields, zeroed, tensors, strict=True):
            check_finite(name, tensor.view(original.shape))
        inputs = _prepare_again(inputs, *zeroed)
    mapped = ReadTensors(inputs.query, inputs.keys, inputs.values)
    return inputs._replace(**zero_hidden(mapped, allowed, inputs.leading)._asdict())
