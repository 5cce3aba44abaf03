"""A GRU over a whole sequence at once: an encoder, and a decoder with additive attention.

    encoder    q_t = B s_{t-1} + b'             s_t = gates(p_t, q_t, s_{t-1}), both directions
    decoder    [q_t; u_t] = [B; W] s_{t-1} + b'     s_t = gates(p_t, C c_{t-1}, q_t, s_{t-1})
               c_t = read(u_{t+1})

Run step by step, autograd records a node for each small operation and accumulates the gradient of
each weight at every step. On a CPU both run as one autograd function instead (regard.native.gru);
there is no plain form: None means that the caller computes step by step.

Source: bahdanau2015, appendix A.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.ops.dispatch import native
from regard.ops.linear import linear


class DirectionWeights(NamedTuple):
    """Weights of one direction of a layer of a GRU encoder."""

    item: Float[Tensor, "gates input_dim"]
    item_bias: Float[Tensor, " gates"]
    state: Float[Tensor, "gates hidden"]
    state_bias: Float[Tensor, " gates"]


class GRUWeights(NamedTuple):
    """Weights of the GRU cell of a decoder."""

    input: Float[Tensor, "gates input_dim"]
    bias: Float[Tensor, " gates"]
    state: Float[Tensor, "gates hidden"]
    state_bias: Float[Tensor, " hidden"]
    """Inside the reset gate."""
    context: Float[Tensor, "gates value_dim"]


class ReadWeights(NamedTuple):
    """Weights of the additive read of a decoder."""

    query: Float[Tensor, "dim hidden"]
    v: Float[Tensor, " dim"]


class GRUDecoderState(NamedTuple):
    """State of a GRU decoder between two steps: hidden state and last context vector."""

    state: Float[Tensor, "batch hidden"]
    context: Float[Tensor, "batch value_dim"]


class SourceMemory(NamedTuple):
    """Encoded source that a GRU decoder reads."""

    keys: Float[Tensor, "batch source dim"]
    """Keys mapped by the score."""
    values: Float[Tensor, "batch source value_dim"]
    lengths: Int[Tensor, " batch"]


def encode(
    items: Float[Tensor, "batch source input_dim"],
    lengths: Int[Tensor, " batch"],
    layers: Sequence[Sequence[DirectionWeights]],
    *,
    dropout: float,
    training: bool,
) -> tuple[Float[Tensor, "batch source hidden"], list[Float[Tensor, "batch hidden"]]] | None:
    """Return the states of the top layer, zeros after the end of a row, and all final states.

    layers: one or two directions each; the second runs backward. dropout: on the items between
    layers. None if there is no faster form than to run step by step.
    """
    weights = [weight for layer in layers for direction in layer for weight in direction]
    implementation = native("gru_encode", lengths, items, *weights)
    if implementation is None:
        return None
    items, finals = items.transpose(0, 1).contiguous(), []
    for number, directions in enumerate(layers):
        if number:
            items = nn.functional.dropout(items, dropout, training)
        of_item, item_biases, of_state, state_biases = zip(*directions, strict=True)
        projected = linear(items, torch.cat(of_item), torch.cat(item_biases))
        items, ends = implementation.run(projected, lengths, list(of_state), list(state_biases))
        finals.append(ends.transpose(0, 1).flatten(1))
    return items.transpose(0, 1), finals


def decode(
    targets: Float[Tensor, "batch target input_dim"],
    before: GRUDecoderState,
    source: SourceMemory,
    cell: GRUWeights,
    read: ReadWeights,
) -> tuple[Float[Tensor, "target batch hidden"], Float[Tensor, "target batch value_dim"]] | None:
    """Return s_t and c_t of all steps; None if there is no faster form than to run step by step."""
    implementation = native("gru_decode", targets, *before, *source, *cell, *read)
    if implementation is None:
        return None
    projected = linear(targets.transpose(0, 1).contiguous(), cell.input, cell.bias)
    return implementation.run(projected, before, source, cell, read)


def product_dtype() -> torch.dtype:
    """Return the dtype of products: that of autocast, or float32."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
