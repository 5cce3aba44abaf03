"""Recurrent cells: a layer's next state from its input, a context that was read, and its state before.

    rnn     s' = tanh(A x + C c + B s + b)                              the lectures' s_j = tanh(A' [x; s; c] + b)
    gru     r, z = sigmoid(A x + C c + B s + b)                         two gates
            n = tanh(A x + C c + b + r * (B s + b_s))                   candidate
            s' = (1 - z) * n + z * s
    lstm    i, f, o = sigmoid(A x + C c + B s + b)                      three gates
            g = tanh(A x + C c + B s + b)                               candidate
            cell' = f * cell + i * g,   s' = o * tanh(cell')

[x; c] is the input of torch's cells, and gates lie in torch's order (r z n; i f g o). What concerns x alone is a
function of its own, `project`, so that a whole sequence whose items are known takes one product.

Source: lectures, B; cho2014 (gru, as in torch: the reset gate acts on B s + b_s); hochreiter1997, gers2000 (lstm).
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["CELLS", "Cell", "CellState", "GRUCell", "LSTMCell", "RNNCell"]

CellState = tuple[Tensor, ...]
"""What a cell hands to its next step: (s,), or (s, cell) for lstm; each (batch, hidden). s is the output."""


class Cell(nn.Module, ABC):
    """One step of a recurrent layer.

    Parameters: input_weight (gates * hidden, input_dim) is A, context_weight (gates * hidden, context_dim) is C and
    absent when context_dim is 0, state_weight (gates * hidden, hidden) is B, bias (gates * hidden) is b.
    """

    gates: ClassVar[int]
    """How many vectors of size `hidden` are computed from the inputs."""

    def __init__(self, hidden: int, *, input_dim: int, context_dim: int = 0):
        super().__init__()
        for name, size, least in (("hidden", hidden, 1), ("input_dim", input_dim, 1), ("context_dim", context_dim, 0)):
            if size < least:
                raise ValueError(f"{name} of {type(self).__name__} must be at least {least}, but is {size}")
        rows = self.gates * hidden
        self.input_weight = nn.Parameter(_uniform(rows, input_dim, fan_in=input_dim + context_dim))
        context_weight = _uniform(rows, context_dim, fan_in=input_dim + context_dim) if context_dim else None
        self.context_weight = None if context_weight is None else nn.Parameter(context_weight)
        self.state_weight = nn.Parameter(_orthogonal(self.gates, hidden))
        self.bias = nn.Parameter(torch.zeros(rows))

    def project(self, items: Float[Tensor, "*batch input_dim"]) -> Float[Tensor, "*batch gates_x_hidden"]:
        """A x + b, for any number of items at once."""
        return linear(items, self.input_weight, self.bias)

    @abstractmethod
    def forward(self, projected: Float[Tensor, "batch gates_x_hidden"], context: Tensor | None, state: CellState) -> CellState:
        """The state after this step; `projected` is project(x), `context` (batch, context_dim) what was read."""

    def first(self, hidden: Float[Tensor, "batch hidden"]) -> CellState:
        """The state before the first step, whose output is `hidden`."""
        return (hidden,)

    def _with_context(self, projected: Tensor, context: Tensor | None) -> Tensor:
        """A x + C c + b."""
        if context is None:
            return projected
        assert self.context_weight is not None
        return torch.addmm(projected, context, self.context_weight.t())


@final
class RNNCell(Cell):
    gates = 1

    def forward(self, projected, context, state):
        (previous,) = state
        inputs = self._with_context(projected, context)
        return (torch.tanh(torch.addmm(inputs, previous, self.state_weight.t())),)


@final
class GRUCell(Cell):
    gates = 3

    def __init__(self, hidden: int, *, input_dim: int, context_dim: int = 0):
        super().__init__(hidden, input_dim=input_dim, context_dim=context_dim)
        self.state_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, projected, context, state):
        (previous,) = state
        hidden = previous.shape[-1]
        inputs = self._with_context(projected, context)
        of_inputs, candidate_inputs = inputs.split((2 * hidden, hidden), -1)
        of_state, candidate_state = linear(previous, self.state_weight).split((2 * hidden, hidden), -1)
        reset, keep = torch.sigmoid(of_inputs + of_state).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate_inputs, reset, candidate_state + self.state_bias))
        return (candidate + keep * (previous - candidate),)


@final
class LSTMCell(Cell):
    gates = 4

    def __init__(self, hidden: int, *, input_dim: int, context_dim: int = 0):
        super().__init__(hidden, input_dim=input_dim, context_dim=context_dim)
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] = 1.0

    def first(self, hidden):
        return hidden, torch.zeros_like(hidden)

    def forward(self, projected, context, state):
        previous, cell = state
        inputs = self._with_context(projected, context)
        gates = torch.addmm(inputs, previous, self.state_weight.t())
        into, keep, candidate, out = gates.chunk(4, -1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(into) * torch.tanh(candidate)
        return torch.sigmoid(out) * torch.tanh(cell), cell


CELLS: dict[str, type[Cell]] = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}


def _uniform(rows: int, columns: int, *, fan_in: int) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(rows, columns).uniform_(-bound, bound)


def _orthogonal(gates: int, hidden: int) -> Tensor:
    return torch.cat([nn.init.orthogonal_(torch.empty(hidden, hidden)) for _ in range(gates)])
