"""Options of a figure: a sample, a view, and the read that it shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.errors import UserError
from regard.layers.read import Kind
from regard.look.maps import AttentionMap, SampleMaps

_NEAREST = ("chain", "pooling", "cross", "recurrent", "encoder self", "decoder self", "other")


@dataclass(frozen=True, kw_only=True)
class FigureRequest:
    """Options of `Capture.plot`."""

    samples: Sequence[SampleMaps]
    sample: int = 0
    view: str | None = None
    kind: Kind | None = None
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    width: float | None = None

    @property
    def maps(self) -> SampleMaps:
        """The sample with its maps."""
        return self.samples[self.sample]

    @property
    def title(self) -> str:
        """Title of the sample."""
        return self.maps.sample.title

    def reads(self) -> tuple[AttentionMap, ...]:
        """Return the maps of the kind, or of the kind nearest to the output, one per layer."""
        for candidate in _NEAREST if self.kind is None else (self.kind,):
            if maps := self.maps.find(candidate):
                axes = maps[-1].queries, maps[-1].keys
                return tuple(own for own in maps if (own.queries, own.keys) == axes)
        kinds = ", ".join(dict.fromkeys(own.kind for own in self.maps.maps)) or "none"
        raise UserError(f"there are no reads of kind {self.kind}, only of kind {kinds}")

    def read(self, maps: Sequence[AttentionMap] = ()) -> AttentionMap:
        """Return the map of the layer, by default the last."""
        maps = maps or self.reads()
        layers = [own.layer for own in maps]
        if self.layer is None:
            return maps[-1]
        if self.layer not in layers:
            raise UserError(f"layer must be one of {', '.join(map(str, layers))}, got {self.layer}")
        return maps[layers.index(self.layer)]

    def head_of(self, count: int) -> int | None:
        """Return the index of the chosen head, from 0; None if none is chosen."""
        return _index("head", self.head, count)

    def query_of(self, count: int) -> int | None:
        """Return the index of the chosen query, from 0; None if none is chosen."""
        return _index("query", self.query, count)


def weights_of(own: AttentionMap) -> Tensor:
    """Return the weights of all heads. Raises: ValueError if they are not finite."""
    weights = own.weights.float()
    if not bool(weights.isfinite().all()):
        raise ValueError("weights must be finite, got NaN or infinity from the model")
    return weights


def _index(name: str, number: int | None, count: int) -> int | None:
    if number is not None and not 1 <= number <= count:
        raise UserError(f"{name} must be between 1 and {count}, got {number}")
    return None if number is None else number - 1
