"""A memory of small numbers: int8 with a scale a vector, to hold four times as many pairs.

    scale = max_d |x_d| / 127        q_d = round(x_d / scale) in -127 .. 127        x_d ~ scale q_d

The error of a number is at most half its vector's scale, 1/254 of the vector's largest number. A vector of d numbers
takes d + 2 bytes in place of 4 d: 3.9 times less at d = 64. Numbers are widened at every read, so a read takes
longer, not shorter, than of a Memory (benchmarks/memories.py): this is for what would not fit otherwise.

Source: dettmers2022, section 2 (absmax quantization), here a vector at a time.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.memory import Memory, Store, check_can_grow, check_new_pairs, check_unmapped
from regard.attention.places import Places
from regard.attention.scores import Score


class Small(NamedTuple):
    """Vectors as int8 numbers and a scale each."""

    numbers: Tensor
    """int8, (..., vector, dim)"""
    scale: Tensor
    """bfloat16, which has the range of float32: (..., vector, 1)"""

    @classmethod
    def of(cls, vectors: Float[Tensor, "... vector dim"]) -> Self:
        """Each vector to its nearest; zeros stay zeros.

        Numbers are rounded against the scale as it is stored, so that its own rounding adds no error.
        """
        wide = vectors.detach().float()
        scale = (wide.abs().amax(-1, keepdim=True) / 127).to(torch.bfloat16)
        unit = scale.float().where(scale > 0, 1.0)
        return cls((wide / unit).round_().clamp_(-127, 127).to(torch.int8), scale)

    def wide(self, dtype: torch.dtype) -> Float[Tensor, "... vector dim"]:
        """scale q."""
        return self.numbers.to(dtype).mul_(self.scale.to(dtype))

    def followed_by(self, vectors: Float[Tensor, "... new dim"]) -> "Small":
        """These vectors, then new ones."""
        new = Small.of(vectors)
        return Small(torch.cat((self.numbers, new.numbers), -2), torch.cat((self.scale, new.scale), -2))

    def select(self, index: Int[Tensor, " rows"]) -> "Small":
        """Those rows of the first axis."""
        return Small(self.numbers.index_select(0, index), self.scale.index_select(0, index))

    def crop(self, size: int) -> "Small":
        """The first vectors, as views."""
        return Small(self.numbers[..., :size, :], self.scale[..., :size, :])


@final
@dataclass(frozen=True, eq=False)
class QuantizedMemory(Store):
    """Pairs as int8 numbers with a scale each, widened at every read. Made by `of`. A value; no gradients."""

    small_keys: Small
    small_values: Small
    dtype: torch.dtype
    """What reads see."""
    mask: Mask | None = None
    mapped_by: Score | None = None

    @classmethod
    def of(cls, memory: Memory) -> Self:
        """The pairs of a memory, its mask and mapping: map keys first, for mapped keys are what reads compare."""
        return cls(Small.of(memory.keys), Small.of(memory.values), memory.keys.dtype, memory.mask, memory.mapped_by)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Widened, anew at every look."""
        return self.small_keys.wide(self.dtype)

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Widened, anew at every look."""
        return self.small_values.wide(self.dtype)

    @property
    def size(self) -> int:
        """Number of keys."""
        return self.small_keys.numbers.shape[-2]

    @property
    def num_bytes(self) -> int:
        """What it takes to hold the pairs."""
        return sum(x.nbytes for x in (*self.small_keys, *self.small_values))

    def places(self, num_queries: int) -> Places:
        """Where queries stand that read this memory: the last of them at the last key."""
        return Places(num_queries, self.size, self.small_keys.numbers.device)

    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped, and made small again unless the score leaves them as they are."""
        if self.mapped_by is score:
            return self
        check_unmapped(self)
        if type(score).map_keys is Score.map_keys:
            return replace(self, mapped_by=score)
        return replace(self, small_keys=Small.of(score.map_keys(self.keys)), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs, made small. Keys must be mapped as the ones already here are.

        Raises: as `Memory.extend` does.
        """
        check_can_grow(self)
        check_new_pairs(self.small_keys.numbers, self.small_values.numbers, keys, values, dtype=self.dtype)
        return replace(
            self,
            small_keys=self.small_keys.followed_by(keys),
            small_values=self.small_values.followed_by(values),
        )

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""
        return replace(
            self,
            small_keys=self.small_keys.select(index),
            small_values=self.small_values.select(index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def crop(self, size: int) -> Self:
        """The first `size` pairs."""
        if not 0 <= size <= self.size:
            raise ValueError(f"size must be between 0 and {self.size}, but is {size}")
        return replace(self, small_keys=self.small_keys.crop(size), small_values=self.small_values.crop(size))
