"""Options of a figure: a sample, a view, and the read that it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from regard.errors import UserError
from regard.layers.read import Kind
from regard.look.arrays import MASKED
from regard.look.maps import IMPLIED, AttentionMap, SampleMaps
from regard.look.sample import Image, Plane, Sound

PictureT = TypeVar("PictureT", Image, Sound, Plane)
_NEAREST = ("chain", "pooling", "cross", "recurrent", "encoder self", "decoder self", "other")


@dataclass(frozen=True)
class FigureRequest:
    """Options of `Capture.plot`."""

    samples: Sequence[SampleMaps]
    sample: int
    view: str | None
    kind: Kind | None
    layer: int | None
    head: int | None
    query: int | None
    width: float | None

    @property
    def maps(self) -> SampleMaps:
        return self.samples[self.sample]

    @property
    def title(self) -> str:
        return self.maps.sample.title

    def reads(self) -> tuple[AttentionMap, ...]:
        """Return the maps of the kind, or of the kind nearest to the output, one per layer."""
        for candidate in _NEAREST if self.kind is None else (self.kind,):
            if maps := self.maps.find(candidate):
                axes = maps[-1].queries, maps[-1].keys
                return tuple(own for own in maps if (own.queries, own.keys) == axes)
        kinds = ", ".join(dict.fromkeys(own.kind for own in self.maps.find())) or "none"
        more = "; FILE.html shows implied weights" if self.maps.find(measure=IMPLIED) else ""
        raise UserError(f"there are no reads of kind {self.kind}, only of kind {kinds}{more}")

    def read(self, maps: Sequence[AttentionMap] = ()) -> AttentionMap:
        """Return the map of the layer, by default the last."""
        maps = maps or self.reads()
        layers = [own.layer for own in maps]
        if self.layer is None:
            return maps[-1]
        if self.layer not in layers:
            raise UserError(f"layer must be one of {', '.join(map(str, layers))}, got {self.layer}")
        return maps[layers.index(self.layer)]

    def heads(self, own: AttentionMap) -> list[tuple[str, Tensor]]:
        """Return the named weights of the head; by default the mean of all heads, then each."""
        weights, count = weights_of(own), len(own.heads)
        head = self.index("head", count)
        if head is not None:
            return [(f"head {head + 1} of {count}", weights[head])]
        if count == 1:
            return [("", weights[0])]
        return [(f"mean of {count} heads", average(weights)), *zip(own.heads, weights, strict=True)]

    def index(self, option: str, count: int) -> int | None:
        """Return the index, from 0, of the option "head" or "query"; None if it is not given."""
        number = getattr(self, option)
        if number is None:
            return None
        if not 1 <= number <= count:
            raise UserError(f"{option} must be between 1 and {count}, got {number}")
        return number - 1


def average(weights: Float[Tensor, "head query key"]) -> Float[Tensor, "query key"]:
    """Return the mean over heads, -0 where all of them mask a pair."""
    return weights.mean(0).masked_fill(is_masked(weights).all(0), MASKED)


def is_masked(weights: Tensor) -> Tensor:
    """Return True for the recorded weights of masked pairs."""
    return (weights == 0) & weights.signbit()


def image_of(maps: SampleMaps, axis: str) -> Image | None:
    """Return the image that the places of an axis lie on; None if there is none."""
    picture = maps.sample.pictures.get(maps.sample.axes[axis].picture)
    return picture if isinstance(picture, Image) else None


def picture_of(maps: SampleMaps, kind: type[PictureT]) -> PictureT:
    """Return the picture of this class. Raises: UserError if the sample has none."""
    for picture in maps.sample.pictures.values():
        if isinstance(picture, kind):
            return picture
    raise UserError(f"this sample has no {kind.__name__.lower()}")


def weights_of(own: AttentionMap) -> Tensor:
    """Return the weights of all heads. Raises: ValueError if there are none, or not finite ones."""
    weights = own.weights.float()
    if not weights.numel():
        raise UserError(f"{own.name or 'the read'} has no queries or no keys: nothing to draw")
    if not bool(weights.isfinite().all()):
        raise ValueError("weights must be finite, got NaN or infinity from the model")
    return weights
