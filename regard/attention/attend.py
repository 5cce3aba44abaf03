"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choose(score_ij + bias_ij)       soft: sums to one over the keys a mask lets it see
    out_i     = sum_j weight_ij value_j

Everything else in this library feeds this read or looks at it.

Source: lectures, A; vaswani2017, section 3.2.
"""

from jaxtyping import Float
from torch import Tensor

from regard.attention.biases import Bias, Given
from regard.attention.checks import check_numbers, check_pair
from regard.attention.choices import Choice, Soft
from regard.attention.kernels import reference, table
from regard.attention.kernels.problem import Problem
from regard.attention.linear import LinearState
from regard.attention.masks import All, Mask
from regard.attention.memory import Memory, Store
from regard.attention.scores import ScaledDot, Score

__all__ = ["attend", "pose", "weigh"]

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
             value_dim)); out (..., query, value_dim). Leading axes broadcast; of two or more, the last is that of
             heads, and the memory may have a divisor of the queries' heads (grouped queries, ainslie2023).
    Mask:    True = may attend; the memory's own mask comes on top. A row with no True gives zeros, not NaN.
    Bias:    a Bias or a tensor, added to the scores; its leading axes line up from the left, as a mask's do.
    Kernel:  "reference" is the formula; "sdpa" torch's fused inner-product attention; "additive" our own of additive
             scores; "auto" follows the table in regard.attention.kernels.table, which regard.kernels() prints. A kernel
             that cannot do what is asked raises and names one that can.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for what does not fit together, and for NaN in keys or values given as a pair
             that spoilt the read, on a CPU (a Memory is looked at by whoever made it): name, rule, got.
    Source:  lectures, A; vaswani2017, section 3.2.
    """
    if isinstance(memory, LinearState):
        return memory.read(query, score=score, choose=choose, mask=mask, bias=bias, kernel=kernel)
    problem = pose(query, memory, score=score, choose=choose, mask=mask, bias=bias)
    out = table.pick(kernel, problem)(problem)
    if not isinstance(memory, Store):
        check_numbers(out, problem.keys, problem.values)
    return out


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
    return reference.weights(problem)


def pose(
    query: Tensor,
    memory: Store | tuple[Tensor, Tensor],
    *,
    score: Score,
    choose: Choice,
    mask: Mask | None,
    bias: Bias | Tensor | None,
) -> Problem:
    """The read as kernels take it: keys and queries mapped, masks joined, everything checked; see `attend`."""
    if not isinstance(memory, Store):
        memory = Memory(*memory)
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, but is {type(mask).__name__}; see regard.dense(tensor)")
    if bias is not None and not isinstance(bias, Bias):
        bias = Given(bias)
    check_pair(query, memory.keys, memory.values)
    if mask is not None and memory.mask is not None:
        mask = All(mask, memory.mask)
    mapped = memory.map_keys_with(score)
    asked, query = query, score.map_query(query)
    return Problem(
        query=query,
        keys=mapped.keys,
        values=mapped.values,
        score=score,
        form=score.form(query.shape[-1]),
        choose=choose,
        mask=memory.mask if mask is None else mask,
        bias=bias,
        places=memory.places(query.shape[-2]),
        asked=asked,
        prepared=memory.prepared if mapped is memory else None,
    )
