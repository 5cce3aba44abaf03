"""Image reader: convolutional stem or patch embedding, with learned positions by row and column.

    patches   x_i = W [pixels of patch i] + R_row(i) + C_column(i)          (dosovitskiy2021)
    stem      x_i = (output of the convolutions at cell i) + R_row(i) + C_column(i)

Without positions of its own, R and C are left out: those of the core may be learned, with a vector
for the class token and each patch, as in dosovitskiy2021.

Source: dosovitskiy2021, section 3.1; xiao2021, section 4; positions by row and column: carion2020,
        appendix A.4.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Unpadded
from regard.layers.convolutions import Stem
from regard.layers.dropout import Dropout
from regard.models.readers.reader import Reader, Shape
from regard.ops.constants import constant, tensor_of


class ImageReader(Reader):
    """Reader of images (batch, channels, height, width): items (batch, positions, dim) by row.

    Pixels are in [0, 1]; (pixel - mean) / std is read, with one mean and std for all channels, or
    one for each.
    patch:    side of a patch; None for the stem.
    downsampling_layers: number of halvings of the stem, 2 if not given; an item covers
    2^downsampling_layers pixels a side.
    positions: False without vectors of rows and columns.
    Raises:   ValueError if the sides of the image are not multiples of `patch`, or for
              downsampling_layers with it.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dim: int,
        *,
        patch: int | None = None,
        downsampling_layers: int | None = None,
        positions: bool = True,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (1.0,),
        dropout: float = 0.0,
    ):
        super().__init__()
        self.dim, self.shape = dim, tuple(shape)
        channels, height, width = shape
        self.mean, self.std = tuple(mean), tuple(std)
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            given = f"{len(self.mean)} and {len(self.std)}"
            raise ValueError(f"mean and std must be one number or {channels}, got {given}")
        if patch is None:
            halvings = 2 if downsampling_layers is None else downsampling_layers
            side = 2**halvings
            self.stem: nn.Module = Stem(channels, dim, downsampling_layers=halvings)
        else:
            if downsampling_layers is not None:
                raise ValueError("downsampling_layers must be None with patch")
            side = patch
            if height % patch or width % patch:
                raise ValueError(
                    f"patch must divide the sides of the images, {height} x {width}, got {patch}"
                )
            self.stem = nn.Conv2d(channels, dim, patch, stride=patch)
        self.grid = -(-height // side), -(-width // side)
        self.side, (rows, columns) = side, self.grid
        self.rows = nn.Parameter(torch.randn(rows, 1, dim) * 0.02) if positions else None
        self.columns = nn.Parameter(torch.randn(columns, dim) * 0.02) if positions else None
        self.dropout = Dropout(dropout)

    @property
    def centers(self) -> Float[Tensor, "positions 2"]:
        """x and y of the center of each item, as shares of the image's width and height."""
        axes = []
        for count, size in zip(self.grid, self.shape[1:], strict=True):
            middles = torch.arange(count, dtype=torch.float64, device="cpu") + 0.5
            axes.append(middles * self.side / size)
        rows, columns = torch.meshgrid(*axes, indexing="ij")
        return torch.stack((columns, rows), -1).flatten(0, 1)

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", *self.shape), ("batch", self.grid[0] * self.grid[1], self.dim or "model")

    def forward(self, source: Float[Tensor, "batch channels height width"]) -> Unpadded:
        if tuple(source.shape[1:]) != self.shape:
            expected = ", ".join(map(str, ("batch", *self.shape)))
            raise ValueError(f"images must be ({expected}), got {tuple(source.shape)}")
        mean, std = (
            constant(tensor_of, numbers, device=source.device, dtype=source.dtype).view(-1, 1, 1)
            for numbers in (self.mean, self.std)
        )
        items = self.stem((source - mean) / std).permute(0, 2, 3, 1)  # (batch, row, column, dim)
        if self.rows is not None and self.columns is not None:
            items = items + (self.rows + self.columns).to(items.dtype)
        return Unpadded.of(self.dropout(items.flatten(1, 2)))
