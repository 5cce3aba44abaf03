"""Recurrent cells: the next state of a layer from its input, a context and its previous state.

    rnn     s' = tanh(A x + C c + B s + b)
    gru     r, z = sigmoid(A x + C c + B s + b)                two gates
            n    = tanh(A x + C c + b + r * (B s + b'))        candidate
            s'   = (1 - z) * n + z * s
    lstm    i, f, o = sigmoid(A x + C c + B s + b)             three gates
            g     = tanh(A x + C c + B s + b)                  candidate
            cell' = f * cell + i * g        s' = o * tanh(cell')

x is the input, c the context (absent in a cell without attention), s the state. Each of A, C, B, b
holds the rows of all gates in torch's order (r z n; i f g o): a cell equals torch's cell with the
input [x; c].

`project` computes A x + b separately, so that a known sequence takes one product before the loop
over its steps. Input weights are initialized as in glorot2010, state weights orthogonal, biases
zero except for lstm's forget gate, which is one.

Source: lectures, B.3, B.4; cho2014 (gru; the reset gate where torch has it); hochreiter1997,
        gers2000 (lstm).
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import run_pre_hooks
from regard.ops.linear import linear

CellState = tuple[Tensor, ...]
"""State of a cell, each part (batch, hidden): (s,), or (s, cell) for lstm."""


class Cell(nn.Module, ABC):
    """One step of a recurrent layer: from the previous state to the next.

    Parameters: input_weight A (gates * hidden, input_dim), context_weight C (gates * hidden,
    context_dim) or None if context_dim is 0, state_weight B (gates * hidden, hidden), bias b
    (gates * hidden).
    """

    gates: ClassVar[int]
    """Number of vectors of size hidden that are computed from the inputs."""
    parts: ClassVar[int] = 1

    def __init__(self, input_dim: int, hidden: int, *, context_dim: int = 0):
        super().__init__()
        rows = self.gates * hidden
        inputs = xavier_gates_(torch.empty(rows, input_dim + context_dim), self.gates)
        self.input_weight = nn.Parameter(inputs[:, :input_dim].clone())
        self.context_weight = nn.Parameter(inputs[:, input_dim:].clone()) if context_dim else None
        self.state_weight = nn.Parameter(orthogonal_gates_(torch.empty(rows, hidden), self.gates))
        self.bias = nn.Parameter(torch.zeros(rows))

    def project(
        self, items: Float[Tensor, "*batch input_dim"]
    ) -> Float[Tensor, "*batch gates_hidden"]:
        """Return A x + b for any number of items."""
        run_pre_hooks(self, items)
        return linear(items, self.input_weight, self.bias)

    def begin(self, rows: int) -> CellState:
        """Return the initial state of `rows` rows: zeros."""
        return (self.bias.new_zeros(rows, self.state_weight.shape[1]),) * self.parts

    def init_from(self, final: CellState) -> CellState:
        """Return the initial state that continues from the final state of an encoder layer."""
        return final

    def forward(
        self,
        projected: Float[Tensor, "batch gates_hidden"],
        state: CellState,
        *,
        context: Float[Tensor, "batch context_dim"] | None = None,
    ) -> CellState:
        """Return the state after an input x, where `projected` is project(x) and `context` is c."""
        weight = self.context_weight
        if (context is None) != (weight is None):
            raise ValueError(f"context must {'not ' if weight is None else ''}be given for {self}")
        if context is not None and weight is not None:
            projected = torch.addmm(projected, context, weight.t())
        return self._step(projected, state)

    def extra_repr(self) -> str:
        rows, input_dim = self.input_weight.shape
        context_dim = 0 if self.context_weight is None else self.context_weight.shape[1]
        return f"input_dim={input_dim}, context_dim={context_dim}, hidden={rows // self.gates}"

    @abstractmethod
    def _step(self, inputs: Tensor, state: CellState) -> CellState:
        """Return the state after an input, of which `inputs` is A x + C c + b."""


@final
class RNNCell(Cell):
    """s' = tanh(A x + C c + B s + b). (lectures, B.4)"""

    gates = 1

    def _step(self, inputs: Tensor, state: CellState) -> CellState:
        (before,) = state
        return (torch.tanh(torch.addmm(inputs, before, self.state_weight.t())),)


@final
class GRUCell(Cell):
    """s' = (1 - z) * n + z * s with gates r, z and candidate n. (cho2014)

    Parameters: those of Cell, and state_bias b' (hidden), which the reset gate multiplies.
    """

    gates = 3

    def __init__(self, input_dim: int, hidden: int, *, context_dim: int = 0):
        super().__init__(input_dim, hidden, context_dim=context_dim)
        self.state_bias = nn.Parameter(torch.zeros(hidden))

    def _step(self, inputs: Tensor, state: CellState) -> CellState:
        (before,) = state
        sizes = 2 * before.shape[-1], before.shape[-1]
        gates, candidate = inputs.split(sizes, -1)
        state_gates, state_candidate = linear(before, self.state_weight).split(sizes, -1)
        reset, update = torch.sigmoid(gates + state_gates).chunk(2, -1)
        state_candidate = state_candidate + self.state_bias.to(state_candidate.dtype)
        candidate = torch.tanh(torch.addcmul(candidate, reset, state_candidate))
        return (torch.lerp(candidate, before.to(candidate.dtype), update),)


@final
class LSTMCell(Cell):
    """cell' = f * cell + i * g, s' = o * tanh(cell'). (hochreiter1997)"""

    gates = 4
    parts = 2

    def __init__(self, input_dim: int, hidden: int, *, context_dim: int = 0):
        super().__init__(input_dim, hidden, context_dim=context_dim)
        nn.init.ones_(self.bias[hidden : 2 * hidden])

    def _step(self, inputs: Tensor, state: CellState) -> CellState:
        before, cell = state
        gates = torch.addmm(inputs, before, self.state_weight.t())
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(cell), cell


CELLS: dict[str, type[Cell]] = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
"""Cell classes by their names in configs."""


def xavier_gates_(
    weight: Float[Tensor, "rows columns"], gates: int
) -> Float[Tensor, "rows columns"]:
    """Initialize each gate as a separate layer, uniformly. (glorot2010)"""
    bound = math.sqrt(6 / (weight.shape[1] + weight.shape[0] // gates))
    return nn.init.uniform_(weight, -bound, bound)


def orthogonal_gates_(
    weight: Float[Tensor, "rows columns"], gates: int
) -> Float[Tensor, "rows columns"]:
    """Initialize the square matrix of each gate as orthogonal."""
    for square in weight.chunk(gates):
        nn.init.orthogonal_(square)
    return weight
