"""Reads images: through convolutions, or as plain patches, with a learned vector for each row and each column.

    patches   x_i = W [pixels of patch i] + R_row(i) + C_column(i)              dosovitskiy2021, section 3.1
    stem      x_i = (what the convolutions see at place i) + R_row(i) + C_column(i)

A stem sees edges before attention begins, which small sets of images need. (xiao2021)

Source: dosovitskiy2021, section 3.1; xiao2021, section 4; positions by row and column: carion2020, appendix A.4.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Whole
from regard.layers.convolutions import Stem
from regard.layers.dropout import Dropout


class ImageReader(nn.Module):
    """Images (batch, channels, height, width), pixels within [0, 1], to items (batch, places, dim), row by row.

    patch:    side of a patch; None for the stem.
    centers:  (places, 2), x and y of the middle of each place, as shares of the image's sides.
    halvings: how often the stem halves the sides, so that a place is 2^halvings pixels wide.
    Raises:   ValueError if patches do not fill the image.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dim: int,
        *,
        patch: int | None = None,
        halvings: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        channels, height, width = shape
        if patch is None:
            side = 2**halvings
            self.stem: nn.Module = Stem(channels, dim, halvings=halvings)
        else:
            side = patch
            if height % patch or width % patch:
                raise ValueError(f"patches of {patch} do not fill images of {height} x {width}")
            self.stem = nn.Conv2d(channels, dim, patch, stride=patch)
        self.grid = -(-height // side), -(-width // side)
        rows, columns = self.grid
        places = [((i + 0.5) * side / height, (j + 0.5) * side / width) for i in range(rows) for j in range(columns)]
        self.register_buffer("centers", torch.tensor(places).flip(-1), persistent=False)
        self.rows = nn.Parameter(torch.randn(rows, 1, dim) * 0.02)
        self.columns = nn.Parameter(torch.randn(columns, dim) * 0.02)
        self.dropout = Dropout(dropout)

    def forward(self, source: Float[Tensor, "batch channels height width"]) -> Whole:
        """Items, place by place."""
        seen = self.stem(source - 0.5).permute(0, 2, 3, 1)  # (batch, row, column, dim)
        items = seen + (self.rows + self.columns).to(seen.dtype)
        return Whole.of(self.dropout(items.flatten(1, 2)))
