"""A map: the weights of one read of one scene, head by head, between two labeled axes."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from regard.look.names import Kind
from regard.look.scene import Axis, Scene

GRADIENT = "weight x gradient"
"""The measure of regard.look.gradients."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Map:
    """The weights of one read of one scene."""

    key: str
    """Maps of the same key have the same numbers: several answers share what was read of their source."""
    name: str
    """Of the read, such as core.decoder.0.cross.read."""
    kind: Kind
    layer: int
    """From 1."""
    direction: str = ""
    """Of a chain: "from the start" or "from the end"."""
    measure: str = "weight"
    """What the numbers are: "weight", "weight x gradient", "rollout"."""
    queries: str
    """Name of the scene's axis of queries."""
    keys: str
    """Name of the scene's axis of keys."""
    heads: tuple[str, ...]
    """A name for each head; one empty name for a read without heads."""
    facts: dict[str, str] = field(default_factory=dict)
    """Which kernel computed the read, under which mask and bias."""
    load: Callable[[int], Float[Tensor, "query key"]]
    """Brings the numbers of one head."""

    def head(self, number: int) -> Float[Tensor, "query key"]:
        """The numbers of a head, on the CPU, in the dtype that they are kept in."""
        return self.load(number)

    @property
    def weights(self) -> Float[Tensor, "head query key"]:
        """Those of all heads."""
        return torch.stack([self.load(number) for number in range(len(self.heads))])


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A scene with all that was read in it."""

    scene: Scene
    maps: tuple[Map, ...]

    def queries(self, one: Map) -> Axis:
        """The axis of a map's queries."""
        return self.scene.axes[one.queries]

    def keys(self, one: Map) -> Axis:
        """The axis of a map's keys."""
        return self.scene.axes[one.keys]

    def find(
        self, kind: Kind | None = None, *, layer: int | None = None, name: str | None = None, measure: str = "weight"
    ) -> tuple[Map, ...]:
        """The maps of a kind, a layer or a name."""
        return tuple(
            one
            for one in self.maps
            if kind in (None, one.kind)
            and layer in (None, one.layer)
            and name in (None, one.name)
            and one.measure == measure
        )
