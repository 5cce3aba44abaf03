"""Averages of weights: mean of the last validations, exponential moving average (EMA) of all steps.

    mean   w = (w_1 + ... + w_n) / n
    EMA    e <- b e + (1 - b) w    after each step, with b = min(decay, (1 + step) / (10 + step))

The smaller b of the first steps lets the average forget the initial weights quickly.
Source: junczysdowmunt2016, section 2.2 (mean); polyak1992 (averaging over steps).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.compat.torch import interpolate_
from regard.training.optimizer import trainable_parameters
from regard.training.tensors import distribute_like, read_tensors, tensors_of, to_local


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of weights in files, in float64; integer tensors are the last file's."""
    last = read_tensors(paths[-1])
    sums = {name: value.double() for name, value in last.items() if value.is_floating_point()}
    for path in paths[:-1]:
        tensors = read_tensors(path)
        for name in sums:
            sums[name] += tensors[name]
    return last | {name: (total / len(paths)).to(last[name].dtype) for name, total in sums.items()}


class MovingAverage:
    """Exponential moving average of the trained parameters of a model; buffers are not averaged."""

    def __init__(self, model: nn.Module, *, decay: float):
        self._model = model
        self._decay = decay
        self._trained = trainable_parameters(model)
        self.tensors = {name: value.detach().clone() for name, value in self._trained.items()}

    def update(self, step: int) -> None:
        """Update the average with the weights after step number `step`, counted from 1."""
        weights = [to_local(value.detach()) for value in self._trained.values()]
        decay = min(self._decay, (1 + step) / (10 + step))
        interpolate_([to_local(value) for value in self.tensors.values()], weights, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """Return all tensors of the model, with the averages in place of its parameters."""
        return tensors_of(self._model) | self.tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load averages that were saved as whole (unsharded) tensors."""
        for name, value in self.tensors.items():
            value.copy_(distribute_like(tensors[name], like=value))
