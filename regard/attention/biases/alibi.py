"""ALiBi: a linear penalty on the distance between query and key, with a slope for each head."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import check_integer
from regard.attention.biases.base import DistanceBias
from regard.ops.constants import constant, tensor_of


@final
class Alibi(DistanceBias):
    """ALiBi: bias = -slope_h |p - j|, a penalty linear in the distance, with a slope per head.

    Under a causal mask this is press2022's -slope_h (p - j); without one it is symmetric.
    Slopes of l heads, l a power of two: 2^{-8/l}, 2^{-16/l}, ..., 2^{-8}. For other l: those of the
    next smaller power of two, then every other one of the next larger power, from the first, as in
    the paper's code. Nothing is learned or saved. A read needs an axis of heads.
    Source: press2022, section 3.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        below = 2 ** (num_heads.bit_length() - 1)
        # slope = 2^{-4 eighths / below}.
        eighths = [*range(2, 2 * below + 1, 2), *range(1, 2 * below, 2)][:num_heads]
        self._slopes = tuple(2 ** (-4 * eighth / below) for eighth in eighths)

    @property
    def slopes(self) -> Float[Tensor, " head"]:
        """Slope of each head, in double precision."""
        return tensor_of(self._slopes)

    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "head ..."]:
        wide = torch.promote_types(dtype, torch.float32)
        slopes = constant(tensor_of, self._slopes, device=distance.device, dtype=wide)
        return (-slopes.view(-1, *(1,) * distance.dim()) * distance.abs()).to(dtype)

    def extra_repr(self) -> str:
        return f"num_heads={len(self._slopes)}"
