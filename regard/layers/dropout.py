"""Dropout with cheap random bits on a CPU.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

On a CPU p is rounded to a multiple of 1/65536; see regard.ops.dropout.

Source: srivastava2014.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.dropout import dropout


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
        return dropout(x, self.p, training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
