"""How much each weight mattered to a number that the model computed: weight times gradient.

    out_i = sum_j a_ij v_j      so      dy/da_ij = (dy/dout_i) . v_j      shown: a_ij dy/da_ij

To first order, the change of y if that weight alone were scaled up, the others staying as they are (they need not sum
to one then). The gradient of the read's own output gives it, so the kernel that computed the read can stay.

Source: chefer2021, section 3 (there without the sum over layers, and with its negative part cut off).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.part import Part, Tile
from regard.look.recording import Recording


class Taken(NamedTuple):
    """A call whose output is part of a graph."""

    name: str
    index: int
    """Among the kept calls of the read."""
    values: Tensor
    """([batch, [head,]] key, value_dim), a head for each head of queries."""
    output: Tensor
    """([batch, [head,]] query, value_dim)"""


def products(recording: Recording, taken: Sequence[Taken], number: Tensor) -> Recording:
    """A recording of the same calls that holds weight times gradient of `number`.

    Raises: ValueError if `number` is not one number, or came from no call of the recording.
    """
    if number.numel() != 1:
        raise ValueError(f"one number is differentiated at a time, but there are {tuple(number.shape)}")
    if not taken or not number.requires_grad:
        raise ValueError("there is no graph to differentiate: run the model with gradients inside the recording")
    found = torch.autograd.grad(number.sum(), [one.output for one in taken], retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise ValueError("the number does not depend on any read that was recorded")
    result = Recording([name for name, count in recording.counts().items() if count], part=Part(), dtype=torch.float32)
    for one, gradient in zip(taken, found, strict=True):
        weights = recording[one.name][one.index].float()
        if gradient is None:
            changed = torch.zeros_like(weights)
        else:
            by_weight = gradient.float() @ one.values.detach().float().transpose(-1, -2)
            changed = weights * by_weight.cpu().reshape(weights.shape)
        result.keep(one.name, recording.calls(one.name)[one.index], [Tile(_whole(changed), changed)])
    return result


def _whole(tensor: Tensor) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in tensor.shape)
