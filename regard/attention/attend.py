"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choose(score_ij + bias_ij)       soft: sums to one over the keys a mask lets it see
    out_i     = sum_j weight_ij value_j

Everything else in this library feeds this read or looks at it.

Source: lectures, A; vaswani2017, section 3.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.choices import Choice, Soft
from regard.attention.kernels import reference, table
from regard.attention.kernels.problem import Problem
from regard.attention.masks import All, Mask
from regard.attention.memory import Memory
from regard.attention.scores import ScaledDot, Score

__all__ = ["attend", "weigh"]

_SCALED_DOT = ScaledDot()
_SOFT = Soft()


def attend(
    query: Float[Tensor, "... query query_dim"],
    memory: Memory | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Float[Tensor, "..."] | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query value_dim"]:
    """Read the memory with every query.

        out[i] = sum_j choose_j(score(query[i], keys[j]) + bias[i, j]) values[j]

    Shapes:  query (..., query, query_dim); memory a Memory or a pair (keys (..., key, key_dim), values (..., key,
             value_dim)); out (..., query, value_dim). Leading axes broadcast.
    Mask:    True = may attend; the memory's own mask comes on top. A row with no True gives zeros, not NaN.
    Bias:    added to the scores; its leading axes line up from the left, as a mask's do.
    Kernel:  "reference" is the formula; "sdpa" torch's fused inner-product attention; "auto" follows the table in
             regard.attention.kernels.table. A kernel that cannot do what is asked raises and names one that can.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for what does not fit together: name, rule, got.
    Source:  lectures, A; vaswani2017, section 3.2.
    """
    problem = _pose(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    return table.pick(kernel, problem)(problem)


def weigh(
    query: Float[Tensor, "... query query_dim"],
    memory: Memory | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Float[Tensor, "..."] | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query key"]:
    """The weights with which `attend` reads, for the same arguments: (..., query, key), rows sum to one or zero.

    Weights always come from the formula, whichever kernel `attend` runs: fused kernels never form them.
    """
    problem = _pose(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    table.pick(kernel, problem)
    return reference.weights(problem)


def _pose(
    query: Tensor,
    memory: Memory | tuple[Tensor, Tensor],
    *,
    score: Score,
    choose: Choice,
    mask: Mask | None,
    bias: Tensor | None,
) -> Problem:
    if not isinstance(memory, Memory):
        memory = Memory(*memory)
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, but is {type(mask).__name__}; see regard.dense(tensor)")
    _check_dtypes(query, memory, bias)
    if mask is not None and memory.mask is not None:
        mask = All(mask, memory.mask)
    mapped = memory.map_keys_with(score)
    return Problem(
        query=score.map_query(query),
        keys=mapped.keys,
        values=mapped.values,
        score=score,
        choose=choose,
        mask=memory.mask if mask is None else mask,
        bias=bias,
    )


def _check_dtypes(query: Tensor, memory: Memory, bias: Tensor | None) -> None:
    mixed_is_fine = torch.is_autocast_enabled(query.device.type)
    for name, tensor in (("keys", memory.keys), ("values", memory.values)):
        if tensor.dtype != query.dtype and not mixed_is_fine:
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, but have {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on the query's device {query.device}, but are on {tensor.device}")
    if bias is not None and not bias.is_floating_point():
        raise TypeError(f"bias must be floating point, but has dtype {bias.dtype}; for a mask see regard.dense")
