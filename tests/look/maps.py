"""Attention maps of given weights, and captures of them."""

from torch import Tensor

from regard.layers.read import Kind
from regard.look.capture import Capture
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import Axis, Picture, Sample


def map_of(
    weights: Tensor,
    kind: Kind = "cross",
    queries: str = "output",
    keys: str = "source",
    *,
    layer: int = 1,
    direction: str = "",
) -> AttentionMap:
    """Return the map of a read with these weights, (head, query, key)."""
    name = f"{kind} {layer}{direction}"
    heads = tuple(f"head {number + 1}" for number in range(len(weights)))
    return AttentionMap(
        key=name,
        name=name,
        kind=kind,
        layer=layer,
        direction=direction,
        queries=queries,
        keys=keys,
        heads=heads if len(heads) > 1 else ("",),
        load=lambda head: weights[head],
    )


def sample_maps_of(
    title: str, axes: dict[str, Axis], *maps: AttentionMap, **pictures: Picture
) -> SampleMaps:
    return SampleMaps(sample=Sample(title=title, axes=axes, pictures=pictures), maps=maps)


def capture_of(*samples: SampleMaps) -> Capture:
    return Capture(lambda: samples, title="run", model="model")
