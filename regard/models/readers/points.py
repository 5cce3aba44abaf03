"""Reader of point clouds: groups of neighboring points become items; the order has no effect.

    c_1 .. c_m  = farthest point sampling:  c_1 is the first point in order of coordinates,
                  c_{i+1} = argmax_p  min_{j <= i} |p - c_j|
    N(c)        = the k nearest points p of c with |p - c| <= r, c included
    d(c)        = [c - least;  most - c] / extent       least, most: bounds of the cloud
    x_i         = W [max over p in N(c_i) of f((p - c_i) / r, features of p);
                     g(d(c_i), its sines and cosines)]
    f(u)        = W_2 relu(LayerNorm(W_1 u + b_1)) + b_2        g: two layers with GELU

An item stands at c_i, which proposals of boxes start from (`Placed`). There are no positions:
coordinates are content. Points are first put in order of their coordinates and features, so that
ties are decided in the same way for any order of the input; then every bit of the result is the
same, and the items are in the order of the sampling.

Source: lectures, E.3 (set to set: point clouds to boxes); misra2021, section 3; groups and sampling
qi2017, section 3.2; sines and cosines of coordinates tancik2020.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded, Placed
from regard.compat.torch import scan
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.models.readers.reader import Reader, Shape, check_padded
from regard.ops.constants import constant, tensor_of

_FAR = -9.0
"""Center of padding, relative to the extent: away from all boxes."""
_RATES = tuple(math.pi * 2**rate for rate in range(4))


class PointReader(Reader):
    """Reader of padded clouds (batch, points, 3 + features), giving items (batch, groups, dim).

    Coordinates are in meters from the middle of the cloud. A cloud of fewer points than groups has
    an item for each.

    extent:    sides of the space that is searched, in meters; centers are relative to it.
    features:  numbers of each point besides its coordinates.
    groups:    number of items.
    neighbors: number k of points in a group.
    radius:    largest distance r of a point from the center of its group, in meters.
    Raises:    ValueError if a size is not positive.
    """

    def __init__(
        self,
        dim: int,
        *,
        extent: Sequence[float],
        features: int = 0,
        groups: int = 256,
        neighbors: int = 24,
        radius: float = 0.4,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = {"groups": groups, "neighbors": neighbors, "radius": radius, "extent": min(extent)}
        for name, value in sizes.items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if len(extent) != 3:
            raise ValueError(f"extent must be three sides, got {len(extent)}")
        self.dim, self.groups, self.neighbors, self.radius = dim, groups, neighbors, radius
        self.numbers = 3 + features
        hidden = -(-dim // 2)
        self.local = nn.Sequential(
            Linear(self.numbers, hidden), nn.LayerNorm(hidden), nn.ReLU(), Linear(hidden, dim)
        )
        self.place = nn.Sequential(Linear(6 + 12 * len(_RATES), dim), nn.GELU(), Linear(dim, dim))
        self.combine = Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)
        self.extent = tuple(map(float, extent))

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", "points", self.numbers), ("batch", "groups", self.dim or "model")

    def forward(self, source: Padded) -> Placed:
        check_padded("source", source, self.shapes()[0])
        if not source.items.is_floating_point():
            raise ValueError(f"points must be floating point, got {source.items.dtype}")
        absent = _padding(source.lengths, source.items.shape[1])
        points = sort_points(widen(source.items), absent)
        places = points[..., :3]
        index = farthest_points(places, absent, self.groups)
        centers = places.gather(1, index[..., None].expand(-1, -1, 3))
        near, inside = nearest_points(places, absent, centers, self.neighbors, self.radius)
        rows = torch.arange(points.shape[0], device=points.device)[:, None, None]
        group = points[rows, near]  # (batch, groups, neighbors, 3 + features)
        offsets = (group[..., :3] - centers[:, :, None]) / self.radius
        dtype = next(self.parameters()).dtype
        local = self.local(torch.cat((offsets, group[..., 3:]), -1).to(dtype))
        local = local.masked_fill(~inside[..., None], -torch.inf).amax(2)
        least = places.masked_fill(absent[..., None], torch.inf).amin(1, keepdim=True)
        most = places.masked_fill(absent[..., None], -torch.inf).amax(1, keepdim=True)
        extent = constant(tensor_of, self.extent, device=points.device, dtype=points.dtype)
        rates = constant(tensor_of, _RATES, device=points.device, dtype=points.dtype)
        distances = torch.cat((centers - least, most - centers), -1) / extent.repeat(2)
        angle = (distances[..., None] * rates).flatten(-2)
        place = self.place(torch.cat((distances, angle.sin(), angle.cos()), -1).to(local.dtype))
        items = self.dropout(self.combine(torch.cat((local, place), -1)))
        counts = source.lengths.clamp(max=self.groups)
        absent = _padding(counts, self.groups)[..., None]
        centers = (centers / extent + 0.5).masked_fill(absent, _FAR)
        return Placed.of(items.masked_fill(absent, 0.0), counts, centers)

    @property
    def margin(self) -> tuple[float, ...]:
        """Distance, relative to the extent, of a center from its object's box: up to r / 4.

        Centers are points of surfaces, and so at the faces of the boxes, some of them just outside.
        """
        return tuple(self.radius / 4 / side for side in self.extent)


def _padding(lengths: Int[Tensor, " batch"], count: int) -> Bool[Tensor, "batch time"]:
    """Return True for padding in rows of `count` points or groups."""
    return torch.arange(count, device=lengths.device) >= lengths[:, None]


def sort_points(
    points: Float[Tensor, "batch time numbers"], absent: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time numbers"]:
    """Return the points of each row sorted by their numbers; absent ones are zero and last."""
    keys = points.detach().masked_fill(absent[..., None], torch.inf)
    order = torch.arange(points.shape[1], device=points.device).expand(points.shape[:2])
    for column in reversed(range(points.shape[-1])):
        order = order.gather(1, keys[..., column].gather(1, order).argsort(dim=1, stable=True))
    points = points.masked_fill(absent[..., None], 0.0)
    return points.gather(1, order[..., None].expand_as(points))


@torch.no_grad()
def farthest_points(
    points: Float[Tensor, "batch time 3"], absent: Bool[Tensor, "batch time"], count: int
) -> Int[Tensor, "batch groups"]:
    """Return the indices of `count` points of each row: point 0, then each the farthest one.

    Rows with fewer points have each of them once, then repetitions.
    """
    axes = points.transpose(1, 2).contiguous()  # (batch, 3, time)
    distance = torch.full_like(axes[:, 0], torch.inf).masked_fill(absent, -1.0)
    offsets, new_distance = torch.empty_like(axes), torch.empty_like(distance)
    index = torch.zeros(points.shape[0], 1, dtype=torch.int64, device=points.device)
    if torch.compiler.is_exporting():  # the graph has one step

        def step(state: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            distance, index = state
            center = axes.gather(2, index[:, None].expand(-1, 3, -1))
            distance = torch.minimum(distance, (axes - center).square().sum(1))
            distance = distance.scatter(1, index, -0.5)
            return (distance, distance.argmax(1, keepdim=True)), index.clone()

        return scan(step, (distance, index), axes.new_zeros(axes.shape[0], count))[1].squeeze(-1)
    selected = []
    for _ in range(count):
        selected.append(index)
        center = axes.gather(2, index[:, None].expand(-1, 3, -1))
        torch.sub(axes, center, out=offsets)
        torch.sum(offsets.square_(), 1, out=new_distance)
        torch.minimum(distance, new_distance, out=distance)
        distance.scatter_(1, index, -0.5)  # again only after all others
        index = distance.argmax(1, keepdim=True)
    return torch.cat(selected, 1)


@torch.no_grad()
def nearest_points(
    points: Float[Tensor, "batch time 3"],
    absent: Bool[Tensor, "batch time"],
    centers: Float[Tensor, "batch groups 3"],
    count: int,
    radius: float,
) -> tuple[Int[Tensor, "batch groups neighbors"], Tensor]:
    """Return the indices of the nearest points of each center, and which are within the radius."""
    distance = torch.cdist(centers, points, compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance.masked_fill(absent[:, None], torch.inf)
    near = distance.topk(min(count, points.shape[1]), dim=-1, largest=False)
    inside = near.values <= radius
    inside[..., 0] |= ~inside.any(-1)  # a row without points
    return near.indices, inside
