"""A whole gru over a sequence as one function of autograd: an encoder's layer, and a decoder that reads as it goes.

    encoder    q_t = B s_{t-1} + b'             s_t = gates(p_t, q_t, s_{t-1})              both directions
    decoder    [q_t; u_t] = [B; W] s_{t-1} + b'     s_t = gates(p_t, C c_{t-1}, q_t, s_{t-1})      c_t = read(u_{t+1})

Step by step autograd makes a node of each small operation, and adds up each weight's gradient at every step. Here a
step is one product a weight and one compiled pass over its gates (regard.layers.recurrent_cpu) or its read
(regard.layers.reading_cpu); what B, C and W learn is one product over all steps behind the loop. Everything lies time
by time, so that each step is a piece of memory of its own.

Products are float32 (regard.attention.kernels.maps) or, under autocast, bfloat16, to which weights are cast once;
states, gates and reads are float32 throughout.

Source: bahdanau2015, appendix A; appleyard2016 (products of all steps in one).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from regard.attention.axes import is_plain
from regard.attention.kernels.additive_op import REACH
from regard.attention.kernels.maps import linear
from regard.layers.linear import is_exact


class GRUWeights(NamedTuple):
    """Of a decoder's cell."""

    state: Float[Tensor, "gates hidden"]
    state_bias: Float[Tensor, " hidden"]
    """Inside the reset gate."""
    context: Float[Tensor, "gates value_dim"]


class ReadWeights(NamedTuple):
    """Of its additive read."""

    query: Float[Tensor, "dim hidden"]
    v: Float[Tensor, " dim"]


class Before(NamedTuple):
    """What a decoder goes on from."""

    state: Float[Tensor, "batch hidden"]
    context: Float[Tensor, "batch value_dim"]


class Source(NamedTuple):
    """What it reads."""

    keys: Float[Tensor, "batch source dim"]
    """Mapped."""
    values: Float[Tensor, "batch source value_dim"]
    lengths: Int[Tensor, " batch"]


def is_compiled_for(*tensors: Tensor) -> bool:
    """Whether the compiled loops take these: on a CPU, float32 or bfloat16, in no mapped, traced or dual function."""
    dtype = product_type()
    return (
        dtype in (torch.float32, torch.bfloat16)
        and is_plain()
        and forward_ad._current_level < 0
        and all(
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.dtype in (torch.float32, dtype)
            and tensor.layout == torch.strided
            and tensor.numel() > 0
            for tensor in tensors
        )
    )


def is_unheard(*modules: nn.Module) -> bool:
    """Return True if no hook listens to the calls of these modules and of their parts."""
    return all(is_exact(type(part), part) for module in modules for part in module.modules())


def product_type() -> torch.dtype:
    """What products are computed in: autocast's type, or float32."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def encode(
    projected: Float[Tensor, "source batch directions_gates_hidden"],
    lengths: Int[Tensor, " batch"],
    weights: list[Float[Tensor, "gates_hidden hidden"]],
    biases: list[Float[Tensor, " gates_hidden"]],
) -> tuple[Float[Tensor, "source batch directions_hidden"], Float[Tensor, "directions batch hidden"]]:
    """A layer's states, zeros behind a row's end, and the last of each direction (the second reads backwards).

    projected: p of all directions side by side. weights, biases: B and b' of each.
    """
    return _Encode.apply(projected, lengths, product_type(), *weights, *biases)


def decode(
    projected: Float[Tensor, "target batch gates_hidden"],
    before: Before,
    source: Source,
    cell: GRUWeights,
    read: ReadWeights,
) -> tuple[Float[Tensor, "target batch hidden"], Float[Tensor, "target batch value_dim"]] | None:
    """s_t and c_t of all steps.

    None if keys are larger than `REACH` (or not numbers): these loops are not for them.
    """
    wide = source.keys.detach().float()
    if not wide.abs().max() <= REACH:  # nor for NaN
        return None
    lengths = source.lengths.clamp(max=wide.shape[1]).contiguous()
    fixed = _Fixed((2 * wide).exp_(), lengths, product_type())
    return _Decode.apply(fixed, projected, *before, source.keys, source.values, *cell, *read)


def _low(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """Room for states in the type of products, where that is another."""
    return None if dtype == torch.float32 else torch.empty(shape, dtype=dtype)


def _of_weight(gradients: Tensor, items: Tensor) -> Tensor:
    """sum over all rows of gradient item^T: (steps, rows, out) and (steps, rows, in) give (out, in)."""
    gradients, items = gradients.flatten(0, 1), items.flatten(0, 1)
    if gradients.dtype == torch.float32:  # the narrower one is turned round
        return linear(items.t().contiguous(), gradients.t()).t()
    return (gradients.t() @ items).float()


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, projected: Tensor, lengths: Tensor, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, Tensor]:
        from regard.layers import recurrent_cpu  # noqa: PLC0415  # brings numba along, on first use

        with torch.autocast("cpu", enabled=False):
            directions = len(weights) // 2
            steps, rows, _ = projected.shape
            hidden = weights[0].shape[1]
            projected, lengths = projected.to(dtype).contiguous(), lengths.contiguous()
            squares = [weight.to(dtype).contiguous() for weight in weights[:directions]]
            biases = [bias.to(dtype) for bias in weights[directions:]]
            states = torch.empty(directions, steps + 1, rows, hidden, dtype=torch.float32)
            low = _low(tuple(states.shape), dtype)
            gates = torch.empty(directions, steps, rows, 4 * hidden, dtype=torch.float32)
            out = torch.empty(steps, rows, directions * hidden, dtype=torch.float32)
            fed = states if low is None else low
            for direction in range(directions):
                begin, order = _order(direction, steps)
                fed[direction, begin] = 0
                states[direction, begin] = 0
                share = slice(direction * hidden, (direction + 1) * hidden)
                inputs = slice(3 * direction * hidden, 3 * (direction + 1) * hidden)
                for t, before, after in order:
                    recurrent_cpu.gru(
                        projected[t, :, inputs],
                        None,
                        linear(fed[direction, before], squares[direction], biases[direction]),
                        states[direction, before],
                        gates=gates[direction, t],
                        after=states[direction, after],
                        low=None if low is None else low[direction, after],
                        out=out[t, :, share],
                        lengths=lengths,
                        place=t,
                    )
            ends = torch.stack([states[d, 0 if d else steps] for d in range(directions)])
        ctx.save_for_backward(lengths, states, gates, fed, *squares)
        ctx.dtype, ctx.given = dtype, projected.dtype
        return out, ends

    @staticmethod
    @once_differentiable
    def backward(ctx, of_out: Tensor, of_ends: Tensor) -> tuple[Tensor | None, ...]:
        from regard.layers import recurrent_cpu  # noqa: PLC0415

        lengths, states, gates, fed, *squares = ctx.saved_tensors
        directions, steps, rows, _ = gates.shape
        hidden = states.shape[3]
        with torch.autocast("cpu", enabled=False):
            of_out = of_out.contiguous()
            to_input = torch.empty(steps, rows, 3 * directions * hidden, dtype=ctx.dtype)
            to_again = torch.empty(directions, steps, rows, 3 * hidden, dtype=ctx.dtype)
            for direction in range(directions):
                _, order = _order(direction, steps)
                carry, extra = of_ends[direction].clone(memory_format=torch.contiguous_format), None
                share = slice(direction * hidden, (direction + 1) * hidden)
                inputs = slice(3 * direction * hidden, 3 * (direction + 1) * hidden)
                turned = squares[direction].t()
                for t, before, _ in reversed(order):
                    recurrent_cpu.gru_gradients(
                        of_out[t, :, share],
                        extra,
                        carry,
                        gates[direction, t],
                        states[direction, before],
                        to_input=to_input[t, :, inputs],
                        to_again=to_again[direction, t],
                        lengths=lengths,
                        place=t,
                    )
                    extra = linear(to_again[direction, t], turned) if t != order[0][0] else None
            befores = [fed[d, 1:] if d else fed[d, :steps] for d in range(directions)]
            to_squares = [_of_weight(to_again[d], befores[d]) for d in range(directions)]
            to_biases = [to_again[d].sum((0, 1), dtype=torch.float32) for d in range(directions)]
        return to_input, None, None, *to_squares, *to_biases


def _order(direction: int, steps: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Where the first state lies, and for each step in turn its item, the state before it and that after it."""
    if direction == 0:
        return 0, [(t, t, t + 1) for t in range(steps)]
    return steps, [(t, t + 1, t) for t in reversed(range(steps))]


class _Fixed(NamedTuple):
    """What has no gradient."""

    exps: Tensor
    lengths: Tensor
    dtype: torch.dtype


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fixed: _Fixed, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            fed, fed_contexts, kept = _decode(fixed, *tensors)
        ctx.save_for_backward(*kept)
        ctx.types = [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        return fed[1:], fed_contexts[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx, of_states: Tensor | None, of_contexts: Tensor | None) -> tuple[Tensor | None, ...]:
        if of_states is None and of_contexts is None:
            return (None,) * (1 + len(ctx.types))
        kept = _Kept(*ctx.saved_tensors)
        with torch.autocast("cpu", enabled=False):
            found = _decode_back(
                kept, *(None if x is None else x.float().contiguous() for x in (of_states, of_contexts))
            )
        return None, *(gradient.to(dtype) for gradient, dtype in zip(found, ctx.types, strict=True))


class _Kept(NamedTuple):
    """What the way forward leaves for the way back: of all steps, and of the first before."""

    states: Tensor
    contexts: Tensor
    fed: Tensor
    """States in the type of products."""
    fed_contexts: Tensor
    gates: Tensor
    tables: Tensor
    shares: Tensor
    exps: Tensor
    values: Tensor
    v: Tensor
    lengths: Tensor
    weight: Tensor
    """[B; W], in the type of products."""
    fed_weight: Tensor

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """As the loops take it."""
        return self.exps, self.values, self.v, self.lengths


def _decode(fixed: _Fixed, *tensors: Tensor) -> tuple[Tensor, Tensor, _Kept]:
    """States and contexts in the type of products, those before the first step included."""
    from regard.layers import reading_cpu, recurrent_cpu  # noqa: PLC0415  # bring numba along, on first use

    projected, state, context, _, values, state_weight, state_bias, context_weight, query_weight, v = tensors
    exps, lengths, dtype = fixed
    steps, rows, _ = projected.shape
    hidden, dim, wide = state_weight.shape[1], query_weight.shape[0], values.shape[2]
    projected, memory = projected.to(dtype).contiguous(), (exps, values.float().contiguous(), v.contiguous(), lengths)
    weight = torch.cat((state_weight, query_weight)).to(dtype)
    bias = torch.cat((state_bias.new_zeros(2 * hidden), state_bias, state_bias.new_zeros(dim))).to(dtype)
    fed_weight = context_weight.to(dtype).contiguous()
    states, contexts = (
        torch.empty(steps + 1, rows, hidden, dtype=torch.float32),
        torch.empty(steps + 1, rows, wide, dtype=torch.float32),
    )
    low_states, low_contexts = (_low(tuple(x.shape), dtype) for x in (states, contexts))
    fed = states if low_states is None else low_states
    fed_contexts = contexts if low_contexts is None else low_contexts
    gates = torch.empty(steps, rows, 4 * hidden, dtype=torch.float32)
    tables, shares = (
        torch.empty(steps, rows, dim, dtype=torch.float32),
        torch.empty(steps, rows, exps.shape[1], dtype=torch.float32),
    )
    states[0], contexts[0], fed[0], fed_contexts[0] = state, context, state, context
    again = linear(fed[0], weight, bias)
    for t in range(steps):
        recurrent_cpu.gru(
            projected[t],
            linear(fed_contexts[t], fed_weight),
            again,
            states[t],
            gates=gates[t],
            after=states[t + 1],
            low=None if low_states is None else low_states[t + 1],
        )
        again = linear(fed[t + 1], weight, bias)
        reading_cpu.read(
            again[:, 3 * hidden :],
            reading_cpu.Exponentials(*memory),
            table=tables[t],
            shares=shares[t],
            out=contexts[t + 1],
            low=None if low_contexts is None else low_contexts[t + 1],
        )
    kept = _Kept(states, contexts, fed, fed_contexts, gates, tables, shares, *memory, weight, fed_weight)
    return fed, fed_contexts, kept


def _decode_back(kept: _Kept, of_states: Tensor | None, of_contexts: Tensor | None) -> tuple[Tensor, ...]:
    """Gradients of what `_decode` is given, in order."""
    from regard.layers import reading_cpu, recurrent_cpu  # noqa: PLC0415

    steps, rows, _ = kept.tables.shape
    hidden, dtype, memory = kept.states.shape[2], kept.fed.dtype, reading_cpu.Exponentials(*kept.memory)
    turned, fed_turned = kept.weight.t(), kept.fed_weight.t()
    to_input = torch.empty(steps, rows, 3 * hidden, dtype=dtype)
    to_again = torch.empty(steps + 1, rows, kept.weight.shape[0], dtype=dtype)
    to_again[steps, :, : 3 * hidden] = 0
    to_again[0, :, 3 * hidden :] = 0
    slopes, to_contexts = (
        torch.empty_like(kept.shares),
        torch.empty(steps, *kept.contexts.shape[1:], dtype=torch.float32),
    )
    carry, extra = torch.zeros(rows, hidden, dtype=torch.float32), None
    for t in reversed(range(steps)):
        reading_cpu.read_gradients(
            None if of_contexts is None else of_contexts[t],
            extra,
            memory,
            table=kept.tables[t],
            shares=kept.shares[t],
            slopes=slopes[t],
            to_out=to_contexts[t],
            to_query=to_again[t + 1, :, 3 * hidden :],
        )
        recurrent_cpu.gru_gradients(
            None if of_states is None else of_states[t],
            linear(to_again[t + 1], turned),
            carry,
            kept.gates[t],
            kept.states[t],
            to_input=to_input[t],
            to_again=to_again[t],
        )
        extra = linear(to_input[t], fed_turned)
    assert extra is not None
    to_state = carry.add_(linear(to_again[0], turned))
    to_keys, to_values, to_v = reading_cpu.memory_gradients(kept.tables, kept.shares, slopes, to_contexts, memory)
    to_weight, to_fed = _of_weight(to_again, kept.fed), _of_weight(to_input, kept.fed_contexts[:steps])
    to_bias = to_again[..., 2 * hidden : 3 * hidden].sum((0, 1), dtype=torch.float32)
    to_square, to_query = to_weight[: 3 * hidden], to_weight[3 * hidden :]
    return to_input, to_state, extra, to_keys, to_values, to_square, to_bias, to_fed, to_query, to_v
