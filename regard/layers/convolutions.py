"""Convolutional stem: local features at reduced resolution, as input to attention.

    down(x)      = gelu(norm(conv_3x3(x), stride 2))                     half height and width
    refine(x)    = gelu(x + norm(conv_3x3(gelu(norm(conv_3x3(x))))))     a residual block (he2016)
    stem(x)      = (refine . down)^n  (x)                                 n = downsampling_layers

The channels double with every `down`, up to `dim`. A stem of one or two begins with a convolution
at full resolution, which keeps the detail of small images. The norm is over groups of eight
channels of one image, so it does not depend on the batch size.

Source: he2016, section 3; norm wu2018; a stem before attention xiao2021.
"""

from jaxtyping import Float
from torch import Tensor, nn

_GROUP = 8
_SMALL = 2


class Refine(nn.Module):
    """Residual block of two convolutions; (batch, channels, height, width) in and out."""

    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(channels, channels),
            nn.GELU(),
            *_convolution(channels, channels, is_last=True),
        )
        self.activation = nn.GELU()

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Return gelu(x + f(x)); at initialization f(x) = 0."""
        return self.activation(x + self.layers(x))


class Stem(nn.Sequential):
    """Stem: (batch, channels, height, width) -> (batch, dim, height / 2^n, width / 2^n).

    downsampling_layers: n, the number of halvings of height and width, at least 1.
    """

    def __init__(self, channels: int, dim: int, *, downsampling_layers: int):
        if downsampling_layers < 1:
            raise ValueError(f"downsampling_layers must be at least 1, got {downsampling_layers}")
        widths = [max(_GROUP, dim >> left) for left in range(downsampling_layers - 1, 0, -1)]
        layers: list[nn.Module] = []
        if downsampling_layers <= _SMALL:
            before = max(_GROUP, dim >> downsampling_layers)
            layers += [*_convolution(channels, before), nn.GELU()]
            channels = before
        for width in (*widths, dim):
            layers += [*_convolution(channels, width, stride=2), nn.GELU(), Refine(width)]
            channels = width
        super().__init__(*layers)


def _convolution(
    channels: int, width: int, *, stride: int = 1, is_last: bool = False
) -> list[nn.Module]:
    """Return a convolution and its norm, whose scale starts at zero in a residual branch."""
    norm = nn.GroupNorm(width // _GROUP if width % _GROUP == 0 else 1, width)
    if is_last:
        nn.init.zeros_(norm.weight)
    return [nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False), norm]
