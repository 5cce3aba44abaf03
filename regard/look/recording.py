"""Recordings: attention weights by the name of the read, call by call.

recording["core.decoder.0.cross.read"][12]          (batch, [head,] query, key) of its 13th call
recording.calls("core.decoder.0.cross.read")[12]    kernel, mask and sizes of this call
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.read import Role
from regard.look.vectors import Vectors


@dataclass(frozen=True, kw_only=True)
class Call:
    """Metadata of one call of a read."""

    segment: int = 0
    """Number of the segment of the trace that the call belongs to (regard.trace)."""
    step: int | None = None
    """Number of the step of a search in that segment; None: the encoder pass, or no search."""
    sizes: tuple[int, ...]
    """Shape (batch, [head,] query, key) of the weights."""
    kernel: str
    mask: str | None
    """repr of the mask of the read and its memory; None: every query may attend to every key."""
    bias: str | None
    autocast: str | None
    """dtype of autocast, for the model and for these weights; None without autocast."""
    first_key: int = 0
    """Position of the first key: the number of earlier ones that a sliding memory discarded; 0 if
    keys are not at consecutive positions."""


class Recording:
    """Attention weights by the name of the read, call by call (in decoding, a call is a step)."""

    def __init__(self, roles: Mapping[str, Role | None], *, dtype: torch.dtype = torch.float32):
        self.dtype = dtype
        self.vectors: Vectors | None = None
        self._roles = dict(roles)
        self._calls: dict[str, list[Call]] = {name: [] for name in roles}
        # Arrays, not tensors: these could be inference tensors, or wrapped by torch.func.
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in roles}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the reads that ran, in the model's order. Raises: ValueError if none did."""
        names = tuple(name for name, calls in self._calls.items() if calls)
        if not names:
            raise ValueError(
                f"nothing was recorded: none of {list_names(self._calls)} ran inside the recording "
                "(hooks do not see a function that torch.compile has compiled)"
            )
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Sequence[Float[Tensor, "... query key"]]:
        """Return the weights of each call of one read: (batch, [head,] query, key), on the CPU."""
        return [torch.from_numpy(array) for array in self._arrays[name]]

    def calls(self, name: str) -> Sequence[Call]:
        return self._calls[name]

    def role(self, name: str) -> Role | None:
        """Return the role of a read in its model, None if it is unknown."""
        return self._roles[name]

    def counts(self) -> dict[str, int]:
        return {name: len(calls) for name, calls in self._calls.items()}

    def steps(self, name: str) -> Float[Tensor, "... step key"]:
        """Return the calls of step-by-step decoding as one tensor: (batch, [head,] step, key).

        Keys that were added to the memory after a step have weight zero in it.
        """
        calls = self[name]
        num_keys = max(call.shape[-1] for call in calls)
        padded = [nn.functional.pad(call, (0, num_keys - call.shape[-1])) for call in calls]
        return torch.cat(padded, -2)

    def __repr__(self) -> str:
        calls = ", ".join(f"{name}: {count}" for name, count in self.counts().items())
        return f"Recording(calls of each read: {calls})"

    def append(self, name: str, call: Call, weights: np.ndarray) -> None:
        self._calls[name].append(call)
        self._arrays[name].append(weights)


def list_names(names: Collection[str]) -> str:
    """Return the names, at most eight, as one string."""
    first = ", ".join(list(names)[:8])
    return first if len(names) <= 8 else f"{first}, ... ({len(names)} in total)"
