"""A rotation that knows queries from keys: xPos, rotary positions with a decay of the distance.

    rotate_query(x)_i = z^(i/b) R(i) x_i     rotate_keys(x)_j = z^(-j/b) R(j) x_j
    <rotate_query(q)_i, rotate_keys(k)_j> = sum over pairs of z^((i - j)/b) <R(i - j) q_i, k_j>

z < 1 of each pair is smaller for those that turn fast. Source: xPos (Sun et al. 2023).
"""

import torch
from torch import Tensor

from regard import MultiHead, Rotary, testing
from regard.layers.positions.base import Start


class XPos(Rotary):
    """xPos for heads of `dim` numbers; `distance` is b."""

    def __init__(self, dim: int, *, distance: float = 512.0) -> None:
        super().__init__(dim)
        self.distance = distance

    def decay(self, vectors: Tensor, start: Start) -> Tensor:
        pair = torch.arange(0, self.dim, 2, device=vectors.device, dtype=torch.float64)
        position = (torch.arange(vectors.shape[-2], device=vectors.device) + start).double()
        decay = ((pair / self.dim + 0.4) / 1.4) ** (position[:, None] / self.distance)
        return torch.cat((decay, decay), -1)

    def rotate_query(self, vectors: Tensor, start: Start = 0) -> Tensor:
        return (self.rotate(vectors, start) * self.decay(vectors, start)).to(vectors.dtype)

    def rotate_keys(self, vectors: Tensor, start: Start = 0) -> Tensor:
        return (self.rotate(vectors, start) / self.decay(vectors, start)).to(vectors.dtype)


if __name__ == "__main__":
    testing.check(MultiHead(16, 2, positions=XPos(8)))
