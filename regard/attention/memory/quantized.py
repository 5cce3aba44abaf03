"""Quantized key-value cache: int8 with one scale per vector, a quarter of the memory.

    scale = max_d |x_d| / 127        q_d = round(x_d / scale) in -127 .. 127        x_d ~ scale q_d

The error of a number is at most half the scale of its vector, 1/254 of the largest number. A vector
of d numbers takes d + 2 bytes instead of 4 d. Every read dequantizes all pairs, so it is slower
than with a Memory (benchmarks/memories.py): use this for caches that would not fit otherwise.

Source: dettmers2022, section 2 (absmax quantization), here per vector.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.memory.base import (
    KeyValueCache,
    NewKeys,
    NewValues,
    check_can_grow,
    check_crop,
    check_new_pairs,
    select_pairs,
)
from regard.attention.memory.growing import Memory
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.attention.scores.base import map_all


class QuantizedVectors(NamedTuple):
    """Vectors quantized to int8, with one scale each."""

    numbers: Tensor
    """int8, (..., vector, dim)"""
    scale: Tensor
    """bfloat16, which has the range of float32: (..., vector, 1)"""

    @classmethod
    def quantize(cls, vectors: Float[Tensor, "... vector dim"]) -> Self:
        """Quantize vectors; zeros stay zeros.

        Numbers are divided by the scale as it is stored, in bfloat16, so that its rounding adds no
        error.
        """
        wide = vectors.detach().float()
        # With a zero, so that vectors of size 0 have a largest number, too.
        largest = nn.functional.pad(wide.abs(), (0, 1)).amax(-1, keepdim=True)
        scale = (largest / 127).to(torch.bfloat16)
        unit = scale.float().where(scale > 0, 1.0)
        return cls((wide / unit).round_().clamp_(-127, 127).to(torch.int8), scale)

    def dequantize(self, dtype: torch.dtype) -> Float[Tensor, "... vector dim"]:
        """Return scale q."""
        return self.numbers.to(dtype).mul_(self.scale.to(dtype))

    def append(self, vectors: Float[Tensor, "... new dim"]) -> "QuantizedVectors":
        pairs = zip(self, QuantizedVectors.quantize(vectors), strict=True)
        return QuantizedVectors(*(torch.cat(pair, -2) for pair in pairs))

    def select(self, index: Int[Tensor, " rows"]) -> "QuantizedVectors":
        return QuantizedVectors(*(select_pairs(part, index) for part in self))

    def crop(self, size: int) -> "QuantizedVectors":
        """Keep the first `size` vectors, as views."""
        return QuantizedVectors(self.numbers[..., :size, :], self.scale[..., :size, :])


@final
@dataclass(frozen=True, eq=False)
class QuantizedMemory(KeyValueCache):
    """Key-value cache in int8, dequantized at every read; no gradients. Create it by `of`."""

    quantized_keys: QuantizedVectors
    quantized_values: QuantizedVectors
    dtype: torch.dtype
    mask: Mask | None = None
    mapped_by: Score | None = None

    @classmethod
    def of(cls, memory: Memory) -> Self:
        """Quantize a memory, keeping its mask. Map its keys first."""
        keys, values = map(QuantizedVectors.quantize, (memory.keys, memory.values))
        return cls(keys, values, memory.keys.dtype, memory.mask, memory.mapped_by)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        return self.quantized_keys.dequantize(self.dtype)

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        return self.quantized_values.dequantize(self.dtype)

    @property
    def size(self) -> int:
        return self.quantized_keys.numbers.shape[-2]

    @property
    def length(self) -> int:
        return self.size

    @property
    def num_bytes(self) -> int:
        """Memory for keys and values, in bytes."""
        return sum(x.nbytes for x in (*self.quantized_keys, *self.quantized_values))

    def positions(self, num_queries: int) -> Positions:
        return Positions(num_queries, self.size, self.quantized_keys.numbers.device)

    def _map_keys(self, score: Score) -> Self:
        if type(score).map_keys is Score.map_keys:
            return replace(self, mapped_by=score)
        quantized = QuantizedVectors.quantize(map_all(score, "map_keys", self.keys))
        return replace(self, quantized_keys=quantized, mapped_by=score)

    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        check_can_grow(self)
        old_keys, old_values = self.quantized_keys, self.quantized_values
        check_new_pairs(old_keys.numbers, old_values.numbers, keys, values, dtype=self.dtype)
        new_keys, new_values = old_keys.append(keys), old_values.append(values)
        return replace(self, quantized_keys=new_keys, quantized_values=new_values)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        keys, values = self.quantized_keys.select(index), self.quantized_values.select(index)
        mask = None if self.mask is None else self.mask.select(index)
        return replace(self, quantized_keys=keys, quantized_values=values, mask=mask)

    def crop(self, size: int) -> Self:
        check_crop(size, self.size)
        keys, values = self.quantized_keys.crop(size), self.quantized_values.crop(size)
        return replace(self, quantized_keys=keys, quantized_values=values)
