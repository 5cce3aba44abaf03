"""Attention maps of given weights, and captures of them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.layers.read import Kind
from regard.look.capture import Capture
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import (
    Axis,
    DetectedBox,
    DetectedEvent,
    Image,
    Picture,
    Plane,
    Sample,
    Sound,
    Track,
)
from tests.helpers import close


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
        head=lambda head: weights[head],
    )


def sample_maps_of(
    title: str, axes: dict[str, Axis], *maps: AttentionMap, **pictures: Picture
) -> SampleMaps:
    return SampleMaps(sample=Sample(title=title, axes=axes, pictures=pictures), maps=maps)


def capture_of(*samples: SampleMaps) -> Capture:
    return Capture(lambda: samples, title="run", model="model")


def picture_of_each_kind() -> dict[str, Picture]:
    box = DetectedBox(label="a", score=0.5, place=(0.0, 0.25, 0.5, 0.5), query=2)
    event = DetectedEvent(label="b", score=1, onset=0, duration=1, query=0)
    track = Track(label="p", history=((0.0, 1.5),), future=((2.0, 3.0),))
    pixels, original = np.arange(24, dtype=np.uint8).reshape(2, 4, 3), np.zeros((4, 8, 3), np.uint8)
    return {
        "image": Image(pixels=pixels, boxes=(box,), labels=("a", "c"), original=original),
        "sound": Sound(bands=np.eye(3, 5), seconds=1.5, events=(event,), labels=("b", "d")),
        "plane": Plane(tracks=(track,)),
    }


def check_same(capture: Capture, other: Capture) -> None:
    """Check that a capture has the samples, steps and weights of another, up to rounding."""
    for one, two in zip(capture, other, strict=True):
        assert one.sample.title == two.sample.title
        assert one.sample.axes == one.sample.axes | two.sample.axes
        assert one.sample.output_ids == two.sample.output_ids
        for step, expected in zip(one.sample.steps, two.sample.steps, strict=True):
            assert step.token == expected.token
            pairs = [(step, expected), *zip(step.alternatives, expected.alternatives, strict=True)]
            for found, wanted in pairs:
                assert found.probability == pytest.approx(wanted.probability, rel=1e-4, abs=1e-7)
        for own, same in zip(one.find(), two.find(), strict=True):
            for name in ("name", "kind", "layer", "direction", "queries", "keys", "heads"):
                assert getattr(own, name) == getattr(same, name)
            close(own.weights, same.weights)
            assert torch.equal(own.weights.signbit(), same.weights.signbit())  # masked pairs
