"""Influence of each weight on a scalar that the model computed: weight times gradient.

    out_i = sum_j a_ij v_j      so      dy/da_ij = (dy/dout_i) . v_j      shown: a_ij dy/da_ij

To first order, this is the change of y when that weight alone is scaled up, the others unchanged (they need not
sum to one then). It follows from the gradient of the read's output, so the model can keep its kernel.

Source: chefer2021, section 3 (there without the sum over layers, and with its negative part cut off).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.part import Part, Tile
from regard.look.recording import Recording


class GradientCall(NamedTuple):
    """Call whose output is part of an autograd graph."""

    name: str
    index: int
    """Index among the recorded calls of the read."""
    values: Tensor
    """([batch, [head,]] key, value_dim), with as many heads as the queries"""
    output: Tensor
    """([batch, [head,]] query, value_dim)"""


def multiply_by_gradients(recording: Recording, graph_calls: Sequence[GradientCall], number: Tensor) -> Recording:
    """Return a recording of the same calls that holds weight times gradient of `number`.

    Raises: ValueError if `number` is not a scalar, or does not depend on a call of the recording.
    """
    if number.numel() != 1:
        raise ValueError(f"number must be a scalar, got shape {tuple(number.shape)}")
    if not graph_calls or not number.requires_grad:
        raise ValueError("there is no graph to differentiate: run the model with gradients inside the recording")
    outputs = [call.output for call in graph_calls]
    gradients = torch.autograd.grad(number.sum(), outputs, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ValueError("the number does not depend on any read that was recorded")
    result = Recording([name for name, count in recording.counts().items() if count], part=Part(), dtype=torch.float32)
    for call, gradient in zip(graph_calls, gradients, strict=True):
        weights = recording[call.name][call.index].float()
        if gradient is None:
            products = torch.zeros_like(weights)
        else:
            by_weight = gradient.float() @ call.values.detach().float().transpose(-1, -2)
            products = weights * by_weight.cpu().reshape(weights.shape)
        whole = tuple(slice(0, size) for size in products.shape)
        result.keep(call.name, recording.calls(call.name)[call.index], [Tile(whole, products)])
    return result
