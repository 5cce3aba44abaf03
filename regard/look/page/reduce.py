"""Reduction of the weights of a page, so that it stays small.

All weights as float32, if they fit; else as float16, if they fit; else, of maps of more than SIDE x
SIDE cells:

- the k weights of largest magnitude of each query, as float32, with their keys; k as large as fits
- the weight of largest magnitude of each of SIDE x SIDE blocks, as float16
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
"""Maximum bytes of a page's weights, before compression and base64 (which adds a third)."""
SIDE = 128
"""Number of blocks per side in the overview of a reduced map."""


@dataclass(frozen=True, kw_only=True)
class PageCut:
    """Dtype of complete maps, keys of the reduced ones, and their weights kept per query."""

    dtype: torch.dtype
    count: int = 0
    cut: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sizes: Mapping[str, tuple[int, int, int]]) -> Self:
        """Return the reduction of maps (heads, queries, keys). Raises: UserError if none fits."""
        total = sum(math.prod(size) for size in sizes.values())
        for dtype in (torch.float32, torch.float16):
            if total * dtype.itemsize <= BUDGET:
                return cls(dtype=dtype)
        large, remaining, per_count = [], BUDGET, 0
        for key, (heads, queries, keys) in sizes.items():
            if queries * keys <= SIDE * SIDE:
                remaining -= 4 * heads * queries * keys
            else:
                large.append(key)
                remaining -= 2 * heads * min(SIDE, queries) * min(SIDE, keys)
                per_count += heads * queries * (4 + _key_dtype(keys).itemsize)
        count = min(128, remaining // per_count) if per_count else 0
        if count < 1:
            raise UserError(
                f"{total:,} weights of {len(sizes)} maps are too many for one page: record fewer "
                "inputs or reads (only=...)"
            )
        return cls(dtype=torch.float32, count=count, cut=frozenset(large))


def block_maxima(numbers: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return the number of largest magnitude of each block; SIDE blocks per side at most."""
    starts = [np.arange(min(SIDE, size)) * size // min(SIDE, size) for size in numbers.shape]

    def reduce_blocks(ufunc: np.ufunc) -> NDArray[np.float32]:
        return ufunc.reduceat(ufunc.reduceat(numbers, starts[0], axis=0), starts[1], axis=1)

    high, low = reduce_blocks(np.maximum), reduce_blocks(np.minimum)
    return np.where(high >= -low, high, low).astype(np.float16)


def top_k(
    numbers: NDArray[np.float32], count: int
) -> tuple[NDArray[np.float32], NDArray[np.unsignedinteger]]:
    """Return each query's `count` largest numbers and their keys; zeros have the key "none"."""
    dtype = _key_dtype(numbers.shape[1])
    count = min(count, numbers.shape[1])
    tensor = torch.from_numpy(numbers)
    keys = tensor.abs().topk(count, dim=1).indices
    values = tensor.gather(1, keys).numpy()
    return values, np.where(values == 0, np.iinfo(dtype).max, keys.numpy()).astype(dtype)


def _key_dtype(num_keys: int) -> np.dtype[np.unsignedinteger]:
    """Return the dtype of keys; its largest number stands for "none"."""
    return np.dtype(np.uint16 if num_keys <= 0xFFFF else np.uint32)
