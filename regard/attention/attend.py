"""The read: queries read a memory of key-value pairs.

    score_ij  = score(query_i, key_j)            how well key j matches query i
    weight_ij = choice(score_ij + bias_ij)       soft: softmax over the keys that the mask allows
    out_i     = sum_j weight_ij value_j

Everything else in this library computes the inputs of this read or visualizes it.

Source: lectures, A.2; vaswani2017, section 3.2.
"""

from jaxtyping import Float
from torch import Tensor

from regard.attention.biases import Bias
from regard.attention.choices import Choice, Soft
from regard.attention.inputs import prepare_inputs
from regard.attention.kernels import reference, selection
from regard.attention.masks import Mask
from regard.attention.memory import KeyValueCache, LinearState
from regard.attention.scores import ScaledDot, Score

_SCALED_DOT = ScaledDot()
_SOFT = Soft()


def attend(
    query: Float[Tensor, "... query query_dim"],
    memory: KeyValueCache | LinearState | tuple[Tensor, Tensor],
    *,
    score: Score = _SCALED_DOT,
    choice: Choice = _SOFT,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    registers: tuple[Tensor, Tensor] | None = None,
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
             zeros, not NaN. Masked keys and values have no effect; NaN and infinities spread even
             there, as in torch, since 0 * NaN is NaN.
    Bias:    a Bias or a tensor, added to the scores. Masks and biases align from the left, as the
             memory does.
    Registers: further pairs, keys ([head,] register, key_dim) and values, which every query reads
             without mask and bias: learned ones belong to a model. (sukhbaatar2019)
    Kernel:  "reference" computes the formula; "sdpa" is torch's scaled_dot_product_attention;
             "additive" is our fused kernel for additive scores; "auto" follows the table in
             regard.attention.kernels.selection, which regard.kernels() prints. A kernel that does
             not support the read raises and names those that do.
    Cost:    time O(query * key * dim) for inner products, O(query * key * hidden) for Additive.
    Raises:  TypeError and ValueError for inputs that do not fit together.
    Source:  lectures, A.2; vaswani2017, section 3.2.
    """
    if isinstance(memory, LinearState):
        if registers is not None:
            raise ValueError("registers must be None with a LinearState, which has no softmax")
        return memory.read(query, score=score, choice=choice, mask=mask, bias=bias, kernel=kernel)
    inputs = prepare_inputs(query, memory, score=score, choice=choice, mask=mask, bias=bias)
    if registers is not None:
        inputs = inputs.with_registers(*registers)
    name = selection.choose(kernel, inputs)
    if 0 in (inputs.query.numel(), inputs.keys.numel(), inputs.values.numel()):
        return inputs.zeros(inputs.values.shape[-1])
    return selection.KERNELS[name].read(inputs)


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
    """Return the weights (..., query, key) of `attend`; a row sums to one, or to zero if masked.

    With a sink or sigmoids the sum is another. The weights are always computed by the reference
    kernel: fused kernels never store them.
    """
    inputs = prepare_inputs(query, memory, score=score, choice=choice, mask=mask, bias=bias)
    selection.choose(kernel, inputs)
    if 0 in (inputs.query.numel(), inputs.keys.numel()):
        return inputs.zeros(inputs.keys.shape[-2])
    return reference.weights(inputs)
