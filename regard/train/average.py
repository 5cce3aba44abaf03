"""Averages of weights: over the last validations (a plain mean), and over all steps (an exponential one).

    mean   w = (w_1 + ... + w_n) / n
    EMA    e <- b e + (1 - b) w    after each step, with b = min(decay, (1 + step) / (10 + step))

The second b lets the average forget the first, random weights soon.
Source: junczysdowmunt2016, section 2.2 (mean); polyak1992 (averaging over steps).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from regard.errors import UserError
from regard.train.tensor_file import read_tensors
from regard.train.weights import placed, tensors_of


def mean_of_files(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of weights that lie in files, summed in float64; of whole numbers (counters) the last
    file's."""
    last = read_tensors(paths[-1])
    sums = {name: value.double() for name, value in last.items() if value.is_floating_point()}
    for path in paths[:-1]:
        tensors = read_tensors(path)
        for name in sums:
            sums[name] += tensors[name]
    return last | {name: (total / len(paths)).to(last[name].dtype) for name, total in sums.items()}


class MovingAverage:
    """An exponential moving average of a model's weights; buffers are taken as they are."""

    def __init__(self, model: nn.Module, *, decay: float):
        self._model = model
        self._decay = decay
        self.tensors = {name: value.detach().clone() for name, value in model.named_parameters()}

    def update(self, step: int) -> None:
        """Take in the weights after step number `step`, counted from 1."""
        weights = [_part(value.detach()) for value in self._model.parameters()]
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([_part(value) for value in self.tensors.values()], weights, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """All of the model's tensors, averaged where there is an average."""
        return tensors_of(self._model) | self.tensors

    def load(self, tensors: Mapping[str, Tensor], *, origin: str) -> None:
        """Go on from whole tensors that were saved."""
        if tensors.keys() != self.tensors.keys():
            raise UserError(f"{origin} is of another model.")
        for name, value in self.tensors.items():
            value.copy_(placed(tensors[name], like=value))


def _part(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
