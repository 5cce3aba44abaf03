"""Reads images: a small convolutional stem, or plain patches, and a learned vector for each place.

    patches   x_i = W [pixels of patch i] + P_i                            dosovitskiy2021, section 3.1
    stem      three 3 x 3 convolutions, of which the last two halve the size, then x_i = (feature at i) + P_i

A stem sees edges before attention begins, which small sets of images need. (xiao2021)

Source: dosovitskiy2021, section 3.1; xiao2021, section 4.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Whole
from regard.layers.dropout import Dropout

__all__ = ["ImageReader"]


class ImageReader(nn.Module):
    """Images (batch, channels, height, width), pixels within [0, 1], to items (batch, places, dim), row by row.

    patch: None for the stem; else the side of a patch.
    Raises: ValueError if patches do not fill the image.
    """

    def __init__(self, shape: tuple[int, int, int], dim: int, *, patch: int | None = None, dropout: float = 0.0):
        super().__init__()
        channels, height, width = shape
        if patch is None:
            thin = max(8, dim // 3)
            self.stem = nn.Sequential(
                nn.Conv2d(channels, thin, 3, padding=1, bias=False),
                nn.GroupNorm(1, thin),
                nn.GELU(),
                nn.Conv2d(thin, 2 * thin, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(1, 2 * thin),
                nn.GELU(),
                nn.Conv2d(2 * thin, dim, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(1, dim),
            )
            rows, columns = ((size + 3) // 4 for size in (height, width))
        else:
            if height % patch or width % patch:
                raise ValueError(f"patches of {patch} do not fill images of {height} x {width}")
            self.stem = nn.Sequential(nn.Conv2d(channels, dim, patch, stride=patch))
            rows, columns = height // patch, width // patch
        self.grid = rows, columns
        self.positions = nn.Parameter(torch.randn(rows * columns, dim) * 0.02)
        self.dropout = Dropout(dropout)

    def forward(self, source: Float[Tensor, "batch channels height width"]) -> Whole:
        """Items, place by place."""
        items = self.stem(source - 0.5).flatten(2).transpose(1, 2)  # (batch, place, dim)
        return Whole.of(self.dropout(items + self.positions))
