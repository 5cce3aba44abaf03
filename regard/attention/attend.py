"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choose(score_ij + bias_ij)       soft: sums to one over the keys a mask lets it see
    out_i     = sum_j weight_ij value_j

Everything else in this library feeds this read or looks at it.

Source: lectures, A; vaswani2017, section 3.2.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import can_look_at
from regard.attention.biases import Bias, Given
from regard.attention.checks import (
    Tensors,
    are_finite,
    check_finite,
    check_finite_bias,
    check_pair,
    leading_axes,
    lined_up,
    with_axes_of_query,
    zeroed_where,
)
from regard.attention.choices import Choice, Soft
from regard.attention.features import Features
from regard.attention.kernels import reference, table
from regard.attention.kernels.problem import Problem
from regard.attention.linear import LinearState
from regard.attention.masks import All, Mask
from regard.attention.memory import Memory, Store
from regard.attention.scores import InnerProduct, ScaledDot, Score

_SCALED_DOT = ScaledDot()
_SOFT = Soft()


def attend(
    query: Float[Tensor, "... query query_dim"],
    memory: Store | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query value_dim"]:
    """Read the memory with every query.

        out[i] = sum_j choose_j(score(query[i], keys[j]) + bias[i, j]) values[j]

    Shapes:  query (..., query, query_dim); memory a Memory or a pair (keys (..., key, key_dim), values (..., key,
             value_dim)); out (..., query, value_dim). Leading axes broadcast, lined up from the left: to queries
             (batch, head, query, query_dim) a memory (batch, key, key_dim) is the same for each head. The query has all
             leading axes of the memory, some maybe of size 1: query[None] is the same for each row, query.unsqueeze(1)
             for each head. Of two or more the last is that of heads, and the memory may have a divisor of the queries'
             heads (grouped queries, ainslie2023). Queries, keys or a batch may be none, which reads zeros or nothing.
    Mask:    True = may attend; the memory's own mask comes on top. A row with no True gives zeros, not NaN, and what
             no row sees is as if it were not there, whatever its numbers.
    Bias:    a Bias or a tensor, added to the scores. Masks and biases line up from the left, as the memory does.
    Kernel:  "reference" is the formula; "sdpa" torch's fused inner-product attention; "additive" our own of additive
             scores; "auto" follows the table in regard.attention.kernels.table, which regard.kernels() prints. A kernel
             that cannot do what is asked raises and names one that can.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for what does not fit together: name, rule, got. On a CPU, with a pair, also for
             numbers that are not finite where they are read (a Memory is looked at by whoever made it).
    Source:  lectures, A; vaswani2017, section 3.2.
    """
    if isinstance(memory, LinearState):
        return memory.read(query, score=score, choose=choose, mask=mask, bias=bias, kernel=kernel)
    problem = pose(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    run = table.pick(kernel, problem)
    if problem.is_empty or problem.values.shape[-1] == 0:
        return _nothing(problem, query, memory, problem.values.shape[-1])
    return run(problem) if isinstance(memory, Store) else _looked_at(run, problem, Tensors(query, *memory))


def weigh(
    query: Float[Tensor, "... query query_dim"],
    memory: Store | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choose: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "... query key"]:
    """The weights with which `attend` reads, for the same arguments: (..., query, key), rows sum to one or zero.

    Weights always come from the formula, whichever kernel `attend` runs: fused kernels never form them.
    """
    problem = pose(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    table.pick(kernel, problem)
    if problem.is_empty:
        return _nothing(problem, query, memory, problem.keys.shape[-2])
    run = reference.weights
    return run(problem) if isinstance(memory, Store) else _looked_at(run, problem, Tensors(query, *memory))


def pose(
    query: Tensor,
    memory: Store | tuple[Tensor, Tensor],
    *,
    score: Score,
    choose: Choice,
    mask: Mask | None,
    bias: Bias | Tensor | None,
) -> Problem:
    """The read as kernels take it: axes lined up, keys and queries mapped, masks joined, all checked; see `attend`."""
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, but is {type(mask).__name__}; see regard.dense(tensor)")
    if bias is not None and not isinstance(bias, Bias):
        bias = Given(bias)
    if not isinstance(memory, Store):
        query, keys, values = lined_up(query, memory)
        memory = Memory(keys, values)
    check_pair(query, memory.keys, memory.values)
    mapped = memory.map_keys_with(score)
    keys, values = mapped.keys, mapped.values
    if not query.dim() == keys.dim() == values.dim():
        query, keys, values = _with_equal_axes(query, keys, values, score)
    asked, query = query, score.map_query(query)
    leading = leading_axes(query, keys, values)
    if score.num_heads is not None and score.num_heads not in leading[-1:]:
        raise ValueError(
            f"a read by {type(score).__name__} of {score.num_heads} heads must have them as its last leading axis, "
            f"but has leading axes {leading}"
        )
    if mask is not None and memory.mask is not None:
        mask = All(mask, memory.mask)
    problem = Problem(
        query=query,
        keys=keys,
        values=values,
        score=score,
        form=score.form(query.shape[-1]),
        choose=choose,
        mask=memory.mask if mask is None else mask,
        bias=bias,
        places=memory.places(query.shape[-2]),
        asked=asked,
        prepared=memory.prepared if mapped is memory else None,
    )
    choose.check(leading, query.shape[-2])
    return problem.spread(leading)


def _with_equal_axes(query: Tensor, keys: Tensor, values: Tensor, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """All with as many axes as the query. Raises ValueError for heads that were mapped as a batch."""
    tensors = with_axes_of_query(query, keys, values)
    if score.num_heads is not None and keys.dim() < query.dim():
        raise ValueError(
            f"the keys of a memory that {type(score).__name__} maps by heads must have as many axes as the read, "
            f"{query.dim()}, but are {tuple(keys.shape)}: give the axis of heads, of size 1 if all share it"
        )
    return tensors


def _looked_at(run: Callable[[Problem], Tensor], problem: Problem, tensors: Tensors) -> Tensor:
    """What `run` computes of a pair: what no query sees is left out if it spoils the read, else the read is refused.

    What is read shows it, so no more is looked at where that is enough: zero times infinity is NaN, and so is what is
    made of infinite scores. It is not enough for gradients, nor for scores that are no products and may be bounded.
    """
    looks = can_look_at(tensors.query)
    if looks and not _shows(problem) and not _is_modest(problem, tensors):
        problem = _without_hidden(problem, tensors)
        if not are_finite(problem.query, problem.keys):
            raise ValueError(
                f"a read must stay within the range of {problem.query.dtype} on its way, but queries or keys, mapped "
                f"by {type(problem.score).__name__}, are not finite, though they are as they were given"
            )
    out = run(problem)
    if not looks or are_finite(out):
        return out
    out = run(_without_hidden(problem, tensors))
    if are_finite(out):
        return out
    raise ValueError(
        f"a read must stay within the range of {problem.query.dtype} on its way, but what is read is not finite, "
        "though queries, keys and values are: their products, or sums of values, are too large"
    )


def _shows(problem: Problem) -> bool:
    if not (isinstance(problem.form, InnerProduct) and isinstance(problem.choose, Soft)):
        return False
    tensors = problem.query, problem.keys, problem.values
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not learns and not isinstance(problem.score, Features)


def _is_modest(problem: Problem, tensors: Tensors) -> bool:
    """Whether all is finite, and no inner product of a query and a key can leave the range, seen or not."""
    if _has_infinite_bias(problem) or not are_finite(*tensors):
        return False
    if not isinstance(problem.form, InnerProduct):
        return True
    wide = torch.promote_types(problem.query.dtype, torch.float32)
    # |<q, k>| <= |q| |k|, which is at most the product of the norms of all queries and of all keys.
    norms = (torch.linalg.vector_norm(one.detach(), dtype=wide).item() for one in (problem.query, problem.keys))
    return math.prod(norms) < torch.finfo(problem.query.dtype).max / 8


def _nothing(problem: Problem, query: Tensor, memory: Store | tuple[Tensor, Tensor], size: int) -> Tensor:
    """Rows of `size` zeros, or none, with gradients of zero whatever the numbers of a pair."""
    if not isinstance(memory, Store):
        # The mapped tensors of `problem` may be infinite, and their gradients then NaN.
        problem = _posed_again(problem, *(torch.zeros_like(one) + one[..., :0].sum() for one in (query, *memory)))
    return problem.zeros(size)


def _posed_again(problem: Problem, query: Tensor, keys: Tensor, values: Tensor) -> Problem:
    """The same read of a pair of other numbers."""
    rules = {"score": problem.score, "choose": problem.choose, "mask": problem.mask, "bias": problem.bias}
    return pose(query, (keys, values), **rules)


def _has_infinite_bias(problem: Problem) -> bool:
    return problem.bias is not None and problem.bias.may_be_infinite()


def _without_hidden(problem: Problem, tensors: Tensors) -> Problem:
    """The same read with zeros for what no query sees. Raises ValueError for numbers that are seen and not finite."""
    bias = problem.added()
    allowed = problem.allowed(bias)
    if bias is not None:
        check_finite_bias(bias, allowed)
    if not are_finite(*tensors):
        lined = lined_up(tensors.query, tensors[1:])
        seen = zeroed_where(lined, allowed, problem.leading)
        for name, tensor, given in zip(Tensors._fields, seen, tensors, strict=True):
            check_finite(name, tensor.view(given.shape))
        problem = _posed_again(problem, *seen)
    mapped = Tensors(problem.query, problem.keys, problem.values)
    return problem._replace(**zeroed_where(mapped, allowed, problem.leading)._asdict())
