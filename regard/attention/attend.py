"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choice(score_ij + bias_ij)       soft: softmax over the keys that the mask allows
    out_i     = sum_j weight_ij value_j

Everything else in this library computes the inputs of this read or visualizes it.

Source: lectures, A.2; vaswani2017, section 3.2.
"""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import ReadTensors
from regard.attention.biases import Bias
from regard.attention.choices import Choice, Soft
from regard.attention.finite import prepare_again, run_checked
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.kernels import reference, selection
from regard.attention.masks import Mask
from regard.attention.memory import KeyValueCache, LinearState
from regard.attention.scores import ScaledDot, Score

_P = ParamSpec("_P")
_SCALED_DOT = ScaledDot()
_SOFT = Soft()


def _takes_a_pair(read: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Raise TypeError with the right form of the call: keys and values are a pair, and other
    arguments have names."""
    known = tuple(inspect.signature(read).parameters)

    @functools.wraps(read)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        if len(args) > 2:
            raise TypeError(
                f"{read.__name__} takes a query and a memory, got {len(args)} positional "
                f"arguments: pass keys and "
                f"values as a pair, {read.__name__}(query, (keys, values)), and other arguments by "
                f"name"
            )
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{read.__name__} has no argument {name!r}; its arguments are "
                    f"{', '.join(known)}"
                )
        return read(*args, **kwargs)

    return run


@_takes_a_pair
def attend(
    query: Float[Tensor, "... query query_dim"],
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choice: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query value_dim"]:
    """Read the memory with every query (scaled dot-product attention by default).

        out[i] = sum_j choice_j(score(query[i], keys[j]) + bias[i, j]) values[j]

    Shapes:  query (..., query, query_dim); memory: a Memory or a pair (keys (..., key, key_dim),
             values (..., key, value_dim)); out (..., query, value_dim). Leading axes broadcast,
             aligned from the left: queries (batch, head, query, query_dim) read a memory (batch,
             key, key_dim) with every head. The query must have all leading axes of the memory,
             possibly of size 1: query[None] is shared by the batch, query.unsqueeze(1) by the
             heads. With two or more leading axes, the last is the heads, and the number of heads of
             the memory may divide that of the queries (grouped queries, ainslie2023). Any axis may
             have size 0: without keys the output is zeros.
    Mask:    True = may attend; combined with the mask of the memory. A fully masked row gives
             zeros, not NaN. Keys and values that no query attends to have no effect, whatever their
             numbers.
    Bias:    a Bias or a tensor, added to the scores. Masks and biases align from the left, as the
    memory does.
    Kernel:  "reference" computes the formula; "sdpa" is torch's scaled_dot_product_attention;
             "additive" is our fused kernel for additive scores; "auto" follows the table in
             regard.attention.kernels.selection, which regard.kernels() prints. A kernel that does
             not support the read raises and names one that does.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for inputs that do not fit together, with name, rule and
             value. On a CPU, for a pair, also for numbers that are not finite and not masked (a
             Memory is not checked at every read).
    Source:  lectures, A.2; vaswani2017, section 3.2.
    """
    if isinstance(memory, LinearState):
        return memory.read(query, score=score, choice=choice, mask=mask, bias=bias, kernel=kernel)
    inputs = prepare_inputs(query, memory, score=score, choice=choice, mask=mask, bias=bias)
    run = selection.pick(kernel, inputs)
    if inputs.is_empty or inputs.values.shape[-1] == 0:
        return _empty_result(inputs, query, memory, inputs.values.shape[-1])
    return (
        run(inputs)
        if isinstance(memory, KeyValueCache)
        else run_checked(run, inputs, ReadTensors(query, *memory))
    )


@_takes_a_pair
def attention_weights(
    query: Float[Tensor, "... query query_dim"],
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choice: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query key"]:
    """Return the attention weights of `attend` for the same arguments: (..., query, key), rows sum
    to one or zero.

    The weights are always computed by the reference kernel: fused kernels never store them.
    """
    inputs = prepare_inputs(query, memory, score=score, choice=choice, mask=mask, bias=bias)
    selection.pick(kernel, inputs)
    if inputs.is_empty:
        return _empty_result(inputs, query, memory, inputs.keys.shape[-2])
    run = reference.weights
    return (
        run(inputs)
        if isinstance(memory, KeyValueCache)
        else run_checked(run, inputs, ReadTensors(query, *memory))
    )


def _empty_result(
    inputs: AttentionInputs, query: Tensor, memory: KeyValueCache | tuple[Tensor, Tensor], size: int
) -> Tensor:
    """Return zeros (..., query, size), whose gradients are zero whatever the numbers of a pair."""
    if not isinstance(memory, KeyValueCache):
        # The mapped tensors of `inputs` may be infinite, and their gradients then NaN.
        inputs = prepare_again(
            inputs, *(torch.zeros_like(x) + x[..., :0].sum() for x in (query, *memory))
        )
    return inputs.zeros(size)
