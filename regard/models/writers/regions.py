"""Regions of n axes: boxes (n = 2), time intervals (n = 1), as center and size in [0, 1].

    region = (c_1 .. c_n, s_1 .. s_n)          from c - s/2 to c + s/2
    IoU    = |a and b| / |a or b|              |.| area or length
    GIoU   = IoU - (|hull| - |a or b|) / |hull|          hull: smallest region that contains both

Source: giou rezatofighi2019; sinusoidal embedding of a region liu2022.
"""

import functools
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.layers.linear import Linear
from regard.ops.constants import constant, tensor_of

Regions = Float[Tensor, "*batch sides"]
_TINY = 1e-9
_EDGE = 1e-4


def corners(regions: Regions) -> tuple[Float[Tensor, "*batch axes"], Float[Tensor, "*batch axes"]]:
    """Return the first and the last point of each region on every axis."""
    center, size = regions.chunk(2, -1)
    return center - size / 2, center + size / 2


def region_iou(a: Regions, b: Float[Tensor, "*other sides"]) -> Float[Tensor, "..."]:
    """Return the IoU of two sets of regions, which broadcast."""
    return _iou(corners(a), corners(b))[0]


def overlaps(a: Regions, b: Float[Tensor, "*other sides"]) -> tuple[Tensor, Tensor]:
    """Return IoU and GIoU of two sets of regions, which broadcast."""
    (a_first, a_last), (b_first, b_last) = ends = corners(a), corners(b)
    iou, either = _iou(*ends)
    hull = _volume(torch.minimum(a_first, b_first), torch.maximum(a_last, b_last))
    return iou, iou - (hull - either) / (hull + _TINY)


def _iou(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the IoU and the area of the union of regions, from their corners."""
    (a_first, a_last), (b_first, b_last) = a, b
    both = _volume(torch.maximum(a_first, b_first), torch.minimum(a_last, b_last))
    either = _volume(*a) + _volume(*b) - both
    return both / (either + _TINY), either


def _volume(first: Tensor, last: Tensor) -> Tensor:
    """Return the area or length between two points; 0 if the last is before the first.

    The axes are multiplied one by one: a product over an axis of two or three numbers is several
    times slower.
    """
    sides = (last - first).clamp(min=0).unbind(-1)
    return functools.reduce(torch.mul, sides)


def refine_regions(regions: Regions, change: Regions) -> Regions:
    """Return sigmoid(logit(region) + change): regions moved and resized within [0, 1]."""
    return torch.sigmoid(torch.logit(regions, _EDGE) + change)


class RegionEmbedding(nn.Module):
    """Embedding of regions: MLP(sines and cosines of their coordinates at `rates` frequencies)."""

    def __init__(self, axes: int, dim: int, *, rates: int = 8):
        super().__init__()
        self._rates = tuple(math.pi * 2**rate for rate in range(rates))
        self.layers = nn.Sequential(Linear(4 * axes * rates, dim), nn.GELU(), Linear(dim, dim))

    def forward(self, regions: Float[Tensor, "*batch sides"]) -> Float[Tensor, "*batch dim"]:
        wide = widen(regions)
        rates = constant(tensor_of, self._rates, device=wide.device, dtype=wide.dtype)
        angle = (wide[..., None] * rates).flatten(-2)
        features = torch.cat((angle.sin(), angle.cos()), -1)
        return self.layers(features.to(next(self.parameters()).dtype))
