"""What a page leaves out, so that it stays small: the rule, and the numbers that are kept by it.

all numbers as float32, if they fit;  else as float16, if they fit;  else of maps of more than SIDE x SIDE cells
- of each query the k numbers of largest magnitude, as float32, with their keys: k as large as fits
- of each block, SIDE x SIDE of them, the number of largest magnitude, as float16
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import UserError

BUDGET = 34_000_000
"""Bytes of numbers that a page holds at most, before they are packed: a third more as text."""
SIDE = 128
"""Blocks a side of the overview of a map that is cut."""

_MOST = 128
_MANY_KEYS = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Which maps are whole, in which type, and how many numbers of each query the others keep."""

    dtype: torch.dtype
    count: int = 0
    cut: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sizes: Mapping[str, tuple[int, int, int]], *, budget: int | None = None) -> Self:
        """The rule for maps of these sizes (heads, queries, keys); budget: BUDGET if not given.

        Raises: UserError if the maps are too many even so.
        """
        budget = BUDGET if budget is None else budget
        total = sum(math.prod(size) for size in sizes.values())
        for dtype in (torch.float32, torch.float16):
            if total * dtype.itemsize <= budget:
                return cls(dtype=dtype)
        large = {key: size for key, size in sizes.items() if size[1] * size[2] > SIDE * SIDE}
        left = budget - sum(4 * math.prod(size) for key, size in sizes.items() if key not in large)
        left -= sum(2 * heads * min(SIDE, queries) * min(SIDE, keys) for heads, queries, keys in large.values())
        each = sum(heads * queries * (4 + _key_type(keys).itemsize) for heads, queries, keys in large.values())
        count = min(_MOST, left // each) if each else 0
        if count < 1:
            raise UserError(
                f"{total:,} numbers of {len(sizes)} maps are too many for one page: record fewer inputs, layers "
                "(only=...), heads or queries"
            )
        return cls(dtype=torch.float32, count=count, cut=frozenset(large))

    def is_whole(self, key: str) -> bool:
        """Whether all numbers of a map are kept."""
        return key not in self.cut

    @property
    def rule(self) -> str:
        """What was left out, in words; empty if nothing was."""
        if self.cut:
            return (
                f"To keep this page small, large maps hold the {self.count} largest numbers of each query exactly, "
                f"and of the others the largest of each block ({SIDE} x {SIDE} blocks)."
            )
        if self.dtype == torch.float16:
            return "To keep this page small, numbers are rounded to half precision (11 bits)."
        return ""


def blocks(numbers: NDArray[np.float32]) -> NDArray[np.float16]:
    """Of each block the number of largest magnitude; SIDE blocks a side, or one for each cell."""
    starts = [np.arange(min(SIDE, size)) * size // min(SIDE, size) for size in numbers.shape]

    def reduced(take: np.ufunc) -> NDArray[np.float32]:
        return take.reduceat(take.reduceat(numbers, starts[0], axis=0), starts[1], axis=1)

    high, low = reduced(np.maximum), reduced(np.minimum)
    return np.where(high >= -low, high, low).astype(np.float16)


def largest(numbers: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.unsignedinteger]]:
    """The `count` numbers of largest magnitude of each query and their keys; behind the last that is not 0, no key."""
    kind = _key_type(numbers.shape[1])
    count = min(count, numbers.shape[1])
    tensor = torch.from_numpy(numbers)
    keys = tensor.abs().topk(count, dim=1).indices
    values = tensor.gather(1, keys).numpy()
    return values, np.where(values == 0, np.iinfo(kind).max, keys.numpy()).astype(kind)


def _key_type(num_keys: int) -> np.dtype[np.unsignedinteger]:
    """The largest number of the type stands for no key."""
    return np.dtype(np.uint16 if num_keys <= _MANY_KEYS else np.uint32)
