"""Dropout with cheap random bits on the CPU.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

On the CPU torch draws one number per element, on one thread, which is a seventh of the training time of a small
Transformer. Here a single draw of torch's generator seeds a compiled loop, which compares 16 bits of a hash of each
element's index with p: p is rounded to a multiple of 1/65536, and the scale is that of the rounded p. The result
depends on the seed alone, for any number of threads, and the backward pass recomputes the bits instead of storing them.

Source: srivastava2014; steele2014 (the hash).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.dropout import draw_seed, drop, drop_sixteen_bits, to_threshold
from regard.ops.softmax import is_supported


class Dropout(nn.Module):
    """Dropout with probability p in training; the identity in evaluation.

    Raises: ValueError if p is not in [0, 1).
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p must be at least 0 and below 1, got {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return x with elements zeroed and the others scaled by 1 / (1 - p) (training), or x (evaluation)."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.dropout(x, self.p)  # fused, and cheap there
        if is_supported(x):
            return drop(x, draw_seed(), to_threshold(self.p))
        return drop_sixteen_bits(x, to_threshold(self.p))

    def extra_repr(self) -> str:
        """Dropout probability."""
        return f"p={self.p}"
