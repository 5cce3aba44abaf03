"""A GRU over a sequence as one autograd function: encoder layer; decoder with additive attention.

A step is one product per weight and one compiled pass over its gates (regard.native.gru.cells) or
its read (regard.native.gru.read); the gradients of the weights are one product over all steps after
the loop. Tensors are time-major, so that each step is contiguous.

Products are float32 (regard.ops.linear) or, under autocast, bfloat16, to which weights are cast
once; states, gates and reads are float32 throughout.

Source: bahdanau2015, appendix A; appleyard2016 (products of all steps in one).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.native.gru import cells
from regard.native.gru import read as reads
from regard.ops.additive import MAX_EXP_INPUT
from regard.ops.gru import GRUDecoderState, GRUWeights, ReadWeights, SourceMemory, product_dtype
from regard.ops.linear import linear


def encode(
    projected: Float[Tensor, "source batch directions_gates_hidden"],
    lengths: Int[Tensor, " batch"],
    weights: list[Float[Tensor, "gates_hidden hidden"]],
    biases: list[Float[Tensor, " gates_hidden"]],
) -> tuple[
    Float[Tensor, "source batch directions_hidden"], Float[Tensor, "directions batch hidden"]
]:
    """Return the states of a layer, zero after the end of a row, and each direction's final state.

    projected: p of all directions, concatenated; the second direction runs backward. weights,
               biases: B and b' of each.
    """
    return _EncoderLayer.apply(projected, lengths, product_dtype(), *weights, *biases)


def decode(
    projected: Float[Tensor, "target batch gates_hidden"],
    before: GRUDecoderState,
    source: SourceMemory,
    cell: GRUWeights,
    read: ReadWeights,
) -> tuple[Float[Tensor, "target batch hidden"], Float[Tensor, "target batch value_dim"]] | None:
    """Return s_t and c_t of all steps.

    None if some |key| exceeds `MAX_EXP_INPUT` or is NaN, which the loops do not support.
    """
    wide = source.keys.detach().float().contiguous()
    if not wide.abs().max() <= MAX_EXP_INPUT:  # also True for NaN
        return None
    lengths = source.lengths.long().clamp(max=wide.shape[1]).contiguous()
    weights = cell.state, cell.state_bias, cell.context
    constants = (2 * wide).exp_(), lengths, product_dtype()
    tensors = projected, *before, source.keys, source.values, *weights, *read
    return _Decoder.apply(constants, *tensors)


def _for_products(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a buffer of states in the dtype of products: the states themselves for float32."""
    return states if dtype == torch.float32 else torch.empty_like(states, dtype=dtype)


def _weight_gradient(gradients: Tensor, items: Tensor) -> Tensor:
    """Return the sum over rows of gradient item^T: (steps, rows, out), (steps, rows, in)."""
    gradients, items = gradients.flatten(0, 1), items.flatten(0, 1)
    if gradients.dtype == torch.float32:  # the narrower one is transposed
        return linear(items.t().contiguous(), gradients.t()).t()
    return (gradients.t() @ items).float()


class _EncoderLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, projected: Tensor, lengths: Tensor, dtype: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            directions = len(weights) // 2
            steps, rows, _ = projected.shape
            hidden = weights[0].shape[1]
            projected, lengths = projected.to(dtype).contiguous(), lengths.long().contiguous()
            recurrent_weights = [weight.to(dtype).contiguous() for weight in weights[:directions]]
            biases = [bias.to(dtype) for bias in weights[directions:]]
            states = projected.new_empty(directions, steps + 1, rows, hidden, dtype=torch.float32)
            product_states = _for_products(states, dtype)
            gates = projected.new_empty(directions, steps, rows, 4 * hidden, dtype=torch.float32)
            out = projected.new_empty(steps, rows, directions * hidden, dtype=torch.float32)
            for direction in range(directions):
                begin, order = _schedule(direction, steps)
                product_states[direction, begin] = 0
                states[direction, begin] = 0
                columns = slice(direction * hidden, (direction + 1) * hidden)
                inputs = slice(3 * direction * hidden, 3 * (direction + 1) * hidden)
                for t, before, after in order:
                    weight, bias = recurrent_weights[direction], biases[direction]
                    recurrent = linear(product_states[direction, before], weight, bias)
                    cells.gru(
                        states[direction, before], time=t, lengths=lengths,
                        input=projected[t, :, inputs], recurrent=recurrent,
                        gates=gates[direction, t], new_state=states[direction, after],
                        low=None if product_states is states else product_states[direction, after],
                        out=out[t, :, columns],
                    )  # fmt: skip
            ends = torch.stack([states[d, 0 if d else steps] for d in range(directions)])
        ctx.save_for_backward(lengths, states, gates, product_states, *recurrent_weights)
        ctx.dtype = dtype
        return out, ends

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor, grad_ends: Tensor) -> tuple[Tensor | None, ...]:
        lengths, states, gates, product_states, *recurrent_weights = ctx.saved_tensors
        directions, steps, rows, _ = gates.shape
        hidden = states.shape[3]
        with torch.autocast("cpu", enabled=False):
            grad_out = grad_out.contiguous()
            grad_input = states.new_empty(steps, rows, 3 * directions * hidden, dtype=ctx.dtype)
            grad_recurrent = states.new_empty(directions, steps, rows, 3 * hidden, dtype=ctx.dtype)
            for direction in range(directions):
                _, order = _schedule(direction, steps)
                carry = grad_ends[direction].clone(memory_format=torch.contiguous_format)
                extra = None
                columns = slice(direction * hidden, (direction + 1) * hidden)
                inputs = slice(3 * direction * hidden, 3 * (direction + 1) * hidden)
                weight_t = recurrent_weights[direction].t()
                for t, before, _ in reversed(order):
                    cells.gru_gradients(
                        states[direction, before], time=t, lengths=lengths,
                        out=grad_out[t, :, columns], extra=extra, carry=carry,
                        gates=gates[direction, t], input=grad_input[t, :, inputs],
                        recurrent=grad_recurrent[direction, t],
                    )  # fmt: skip
                    is_last = t == order[0][0]
                    extra = None if is_last else linear(grad_recurrent[direction, t], weight_t)
            grad_weights, grad_biases = [], []
            for direction, gradient in enumerate(grad_recurrent):
                before = product_states[direction, 1:] if direction else product_states[0, :steps]
                grad_weights.append(_weight_gradient(gradient, before))
                grad_biases.append(gradient.sum((0, 1), dtype=torch.float32))
        return grad_input, None, None, *grad_weights, *grad_biases


def _schedule(direction: int, steps: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the index of the initial state, and per step those of item, previous, next state."""
    if direction == 0:
        return 0, [(t, t, t + 1) for t in range(steps)]
    return steps, [(t, t + 1, t) for t in reversed(range(steps))]


class _Decoder(torch.autograd.Function):
    """The tensors of all steps also hold the state before the first step."""

    @staticmethod
    def forward(ctx, constants: tuple, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        projected, state, context, _, values = tensors[:5]
        state_weight, state_bias, context_weight, query_weight, v = tensors[5:]
        exps, lengths, dtype = constants
        steps, rows, _ = projected.shape
        hidden, dim, wide = state_weight.shape[1], query_weight.shape[0], values.shape[2]
        projected = projected.to(dtype).contiguous()
        values, v = values.float().contiguous(), v.float().contiguous()
        memory = reads.ExponentialMemory(exps, values, v, lengths)
        weight = torch.cat((state_weight, query_weight)).to(dtype)  # [B; W]
        zeros = state_bias.new_zeros(2 * hidden), state_bias.new_zeros(dim)
        bias = torch.cat((zeros[0], state_bias, zeros[1])).to(dtype)
        product_context_weight = context_weight.to(dtype).contiguous()
        states = projected.new_empty(steps + 1, rows, hidden, dtype=torch.float32)
        contexts = projected.new_empty(steps + 1, rows, wide, dtype=torch.float32)
        product_states = _for_products(states, dtype)
        product_contexts = _for_products(contexts, dtype)
        is_rounded = product_states is not states
        gates = projected.new_empty(steps, rows, 4 * hidden, dtype=torch.float32)
        exp_queries = projected.new_empty(steps, rows, dim, dtype=torch.float32)
        weights = projected.new_empty(steps, rows, exps.shape[1], dtype=torch.float32)
        states[0], contexts[0] = state, context
        product_states[0], product_contexts[0] = state, context
        with torch.autocast("cpu", enabled=False):
            recurrent = linear(product_states[0], weight, bias)
            for t in range(steps):
                cells.gru(
                    states[t], input=projected[t], recurrent=recurrent, gates=gates[t],
                    context=linear(product_contexts[t], product_context_weight),
                    new_state=states[t + 1], low=product_states[t + 1] if is_rounded else None,
                )  # fmt: skip
                recurrent = linear(product_states[t + 1], weight, bias)
                reads.read(
                    memory, query=recurrent[:, 3 * hidden :], exp_queries=exp_queries[t],
                    weights=weights[t], out=contexts[t + 1],
                    low=product_contexts[t + 1] if is_rounded else None,
                )  # fmt: skip
        ctx.save_for_backward(
            states, product_states, product_contexts, gates, exp_queries, weights, *memory, weight,
            product_context_weight,
        )  # fmt: skip
        ctx.types = [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        return product_states[1:], product_contexts[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients == (None, None):
            return (None,) * (1 + len(ctx.types))
        states, product_states, product_contexts, gates, exp_queries, weights = ctx.saved_tensors[
            :6
        ]
        *memory, weight, context_weight = ctx.saved_tensors[6:]
        memory = reads.ExponentialMemory(*memory)
        grad_states, grad_contexts = (
            None if x is None else x.float().contiguous() for x in gradients
        )
        steps, rows, _ = exp_queries.shape
        hidden, dtype = states.shape[2], product_states.dtype
        grad_input = states.new_empty(steps, rows, 3 * hidden, dtype=dtype)
        grad_recurrent = states.new_empty(steps + 1, rows, weight.shape[0], dtype=dtype)
        grad_recurrent[steps, :, : 3 * hidden] = 0
        grad_recurrent[0, :, 3 * hidden :] = 0
        grad_scores = torch.empty_like(weights)
        context_shape = steps, *product_contexts.shape[1:]
        total_grad_contexts = states.new_empty(context_shape)
        carry, extra = states.new_zeros(rows, hidden), None
        with torch.autocast("cpu", enabled=False):
            for t in reversed(range(steps)):
                reads.read_gradients(
                    memory, grad=None if grad_contexts is None else grad_contexts[t], extra=extra,
                    exp_queries=exp_queries[t], weights=weights[t], grad_scores=grad_scores[t],
                    grad_out=total_grad_contexts[t],
                    grad_query=grad_recurrent[t + 1, :, 3 * hidden :],
                )  # fmt: skip
                cells.gru_gradients(
                    states[t], out=None if grad_states is None else grad_states[t],
                    extra=linear(grad_recurrent[t + 1], weight.t()), carry=carry, gates=gates[t],
                    input=grad_input[t], recurrent=grad_recurrent[t],
                )  # fmt: skip
                extra = linear(grad_input[t], context_weight.t())
            assert extra is not None
            grad_state = carry.add_(linear(grad_recurrent[0], weight.t()))
            grad_keys, grad_values, grad_v = reads.memory_gradients(
                memory, steps=steps, exp_queries=exp_queries, weights=weights,
                grad_scores=grad_scores, grad_out=total_grad_contexts,
            )  # fmt: skip
            grad_weight = _weight_gradient(grad_recurrent, product_states)
            grad_context_weight = _weight_gradient(grad_input, product_contexts[:steps])
        grad_bias = grad_recurrent[..., 2 * hidden : 3 * hidden].sum((0, 1), dtype=torch.float32)
        results = (
            grad_input, grad_state, extra, grad_keys, grad_values, grad_weight[: 3 * hidden],
            grad_bias, grad_context_weight, grad_weight[3 * hidden :], grad_v,
        )  # fmt: skip
        pairs = zip(results, ctx.types, strict=True)
        return None, *(gradient.to(dtype) for gradient, dtype in pairs)
