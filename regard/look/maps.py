"""Attention maps: weights of one read for one sample, head by head, between two labeled axes."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.read import Kind
from regard.look.sample import Axis, Sample
from regard.look.vectors import ReadVectors
from regard.system.terminal import format_count

GRADIENT = "weight x gradient"
CONTRIBUTION = "contribution"
IMPLIED = "implied weight"
"""Weight of a value in a read of a memory that is written: of any sign and any sum."""
STATE = "state"
"""Matrix S of such a memory, after the last pair: numbers of keys by numbers of values."""
LOGITS = "logits"
"""Axis of contributions of a decoder: each output token has a logit of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """Weights of one read for one sample."""

    key: str
    """Key of the weights, which maps of equal weights share: a source's encoder maps."""
    name: str
    """Name of the read, such as core.decoder.0.cross.read."""
    kind: Kind
    layer: int
    """From 1."""
    direction: str = ""
    """Direction of a chain, "forward" or "backward"; else empty."""
    measure: str = "weight"
    """Quantity of the values: "weight", "weight x gradient", "rollout", "contribution", "implied
    weight", "state"."""
    queries: str
    """Name of the sample's axis of queries."""
    keys: str
    """Name of the sample's axis of keys."""
    heads: tuple[str, ...]
    """Name of each head; one empty name for a read without heads."""
    facts: dict[str, str] = field(default_factory=dict)
    """Kernel, mask and bias of the read."""
    head: Callable[[int], Float[Tensor, "query key"]]
    """Returns the values of a head, on the CPU, in the dtype that they were recorded in."""
    vectors: Callable[[], ReadVectors] | None = None
    """Loads the vectors of the read, from inputs to outputs; None if not recorded."""

    def __repr__(self) -> str:
        kind = f"{self.kind} {self.direction}".strip()
        heads = format_count(len(self.heads), "head")
        return f"AttentionMap({self.name}: {self.measure}, {kind}, layer {self.layer}, {heads})"

    def metadata(self) -> dict[str, Any]:
        """Return all fields but the numbers."""
        names = [field.name for field in fields(self) if field.name not in ("head", "vectors")]
        return {name: getattr(self, name) for name in names}

    @property
    def weights(self) -> Float[Tensor, "head query key"]:
        """Values of all heads."""
        return torch.stack([self.head(number) for number in range(len(self.heads))])


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleMaps:
    """Sample with its attention maps."""

    sample: Sample
    maps: tuple[AttentionMap, ...]

    def __repr__(self) -> str:
        title = textwrap.shorten(self.sample.title, 80, placeholder=" ...")
        return f"SampleMaps({title}: {format_count(len(self.maps), 'map')})"

    def queries(self, attention_map: AttentionMap) -> Axis:
        return self.sample.axes[attention_map.queries]

    def keys(self, attention_map: AttentionMap) -> Axis:
        return self.sample.axes[attention_map.keys]

    def find(
        self, kind: Kind | None = None, *, layer: int | None = None, measure: str = "weight"
    ) -> tuple[AttentionMap, ...]:
        """Return the maps of a kind and layer."""
        found = [own for own in self.maps if kind in (None, own.kind) and own.measure == measure]
        return tuple(own for own in found if layer in (None, own.layer))
