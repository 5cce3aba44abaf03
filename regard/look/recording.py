"""Recordings: attention weights by the name of the read, call by call.

recording["core.decoder.0.cross.read"][12]          (batch, [head,] query, key) of its 13th call
recording.calls["core.decoder.0.cross.read"][12]    facts and vectors of this call
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.read import Role
from regard.look.vectors import CallVectors


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of a read."""

    segment: int = 0
    """Number of the segment of the trace that the call belongs to (regard.trace)."""
    step: int | None = None
    """Number of the step of a search in that segment; None: the encoder pass, or no search."""
    weights: np.ndarray
    """(batch, [head,] query, key). An array: a tensor could be one of inference or torch.func."""
    vectors: CallVectors | None = None
    """None if they were not recorded."""
    facts: dict[str, str]
    """Kernel; and, if there are any, mask, bias and the dtype of autocast."""
    state: np.ndarray | None = None
    """(batch, [head,] key_dim, value_dim): S of a memory that is written, with implied weights."""
    first_key: int = 0
    """Position of the first key: the number of earlier ones that a sliding memory discarded; 0 if
    keys are not at consecutive positions."""

    def head(self, row: int, head: int) -> Float[Tensor, "query key"]:
        """Return the weights of a head in a row of the batch; several head axes count as one."""
        weights = torch.from_numpy(self.weights)
        if weights.dim() > 2:
            weights = weights[row]
        return weights.flatten(0, -3)[head] if weights.dim() > 2 else weights


class Recording:
    """Attention weights by the name of the read, call by call (in decoding, a call is a step)."""

    def __init__(self, roles: Mapping[str, Role | None]):
        self.roles = dict(roles)
        """Role of each read in its model, None if it is unknown."""
        self.calls: dict[str, list[Call]] = {name: [] for name in roles}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the reads that ran, in the model's order. Raises: ValueError if none did."""
        names = tuple(name for name, calls in self.calls.items() if calls)
        if not names:
            raise ValueError(
                f"nothing was recorded: none of {list_names(self.calls)} ran inside the recording "
                "(hooks do not see a function that torch.compile has compiled)"
            )
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Sequence[Float[Tensor, "... query key"]]:
        """Return the weights of each call of one read: (batch, [head,] query, key), on the CPU."""
        return [torch.from_numpy(call.weights) for call in self.calls[name]]

    def __len__(self) -> int:
        """Return the number of calls of all reads."""
        return sum(map(len, self.calls.values()))

    def __repr__(self) -> str:
        calls = ", ".join(f"{name}: {len(calls)}" for name, calls in self.calls.items())
        return f"Recording(calls of each read: {calls})"


def list_names(names: Collection[str]) -> str:
    """Return the names, at most eight, as one string."""
    first = ", ".join(name or "the model" for name in list(names)[:8])
    return first if len(names) <= 8 else f"{first}, ... ({len(names)} in total)"
