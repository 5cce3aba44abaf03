"""Figures of a capture for a paper: one scene, in the view that fits what was read.

    alignment    target x source, the mean and each head                     texts
    chain        the text once a step, shaded by what was read of it         recurrent layers that read their past
    heat         a picture under what was read of it, head by head           images, boxes
                 a drawing under where each word of its text was read        drawings
    boxes, events    what was found, over the image, over the sound (all of it, if it was heard in pieces)
    tracks           the ways over the plane, and whom the person of the scene reads

Of several reads the one nearest to the answer is drawn: pooling, cross, recurrent, then self-attention; `kind` and
`layer` choose another. Where each word of a drawing was read is the mean over all layers, unless `layer` names one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.alignment import Alignment
from regard.look.chain import Chain
from regard.look.map import Map, Seen
from regard.look.names import Kind
from regard.look.plot import plot_alignment
from regard.look.plot_chain import plot_chain
from regard.look.plot_heat import plot_heat
from regard.look.plot_result import plot_boxes, plot_events, plot_tracks
from regard.look.scene import Axis, Image, Plane, Sound

if TYPE_CHECKING:
    from regard.look.capture import Capture


ViewName = Literal["alignment", "chain", "heat", "boxes", "events", "tracks"]
VIEWS: tuple[ViewName, ...] = ("alignment", "chain", "heat", "boxes", "events", "tracks")

_NEAREST: tuple[Kind, ...] = ("chain", "pooling", "cross", "recurrent", "encoder self", "decoder self", "other")
PictureT = TypeVar("PictureT", Image, Sound, Plane)


def draw(
    capture: "Capture",
    path: Path,
    *,
    scene: int = 0,
    view: ViewName | None = None,
    kind: Kind | None = None,
    layer: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw one scene of a capture to a .png, .svg or .pdf file.

    view:   which of VIEWS; the one that fits if not given.
    kind:   the reads to draw (regard.look.names); those nearest to the answer if not given.
    layer:  of several layers, which one head by head, from 1; the last if not given.
    Raises: UserError for another ending, a file that is there (unless overwrite), a scene, view, read or layer that is
            not; ValueError if nothing was recorded.
    """
    if not 0 <= scene < len(capture):
        raise UserError(f"scene must be between 0 and {len(capture) - 1}, but is {scene}")
    seen: Seen = capture[scene]
    chosen = view or _fitting(seen, kind)
    drawings: dict[str, Callable[[], Path]] = {
        "alignment": lambda: _alignment(seen, path, kind, layer, overwrite=overwrite),
        "chain": lambda: _chain(seen, path, layer, overwrite=overwrite),
        "heat": lambda: _heat(seen, path, kind, layer, overwrite=overwrite),
        "boxes": lambda: _boxes(seen, path, overwrite=overwrite),
        "events": lambda: _events(capture, scene, path, overwrite=overwrite),
        "tracks": lambda: _tracks(seen, path, kind, layer, overwrite=overwrite),
    }
    if chosen not in drawings:
        raise UserError(f"view must be one of {', '.join(VIEWS)}, but is {chosen!r}")
    return drawings[chosen]()


def _fitting(seen: Seen, kind: Kind | None) -> ViewName:
    pictures, axes = seen.scene.pictures.values(), seen.scene.axes
    if kind is None:
        # Where no box was found, the image alone says so.
        is_searched = "queries" in axes and axes["queries"].what == "box"
        if any(isinstance(one, Image) and (one.boxes or is_searched) for one in pictures):
            return "boxes"
        if any(isinstance(one, Sound) for one in pictures):
            return "events"
        if any(isinstance(one, Plane) for one in pictures):
            return "tracks"
        if "said" in axes and _on_image(seen, "said") and _words_of(seen):
            return "heat"
    maps = _maps(seen, kind)
    if maps[0].kind == "chain":
        return "chain"
    return "heat" if any(_on_image(seen, name) for name in (maps[0].keys, maps[0].queries)) else "alignment"


def _maps(seen: Seen, kind: Kind | None) -> tuple[Map, ...]:
    """The reads of a kind, or of the one nearest to the answer, a layer each."""
    for one in _NEAREST if kind is None else (kind,):
        if maps := seen.find(one):
            return tuple(found for found in maps if (found.queries, found.keys) == (maps[-1].queries, maps[-1].keys))
    there = ", ".join(dict.fromkeys(found.kind for found in seen.maps)) or "none"
    raise UserError(f"nothing of kind {kind!r} was read: there is {there}")


def _words_of(seen: Seen) -> tuple[Map, ...]:
    """The reads of a text by what was drawn of it."""
    return tuple(one for one in seen.find() if one.queries == "said" and one.keys == "source")


def _layer(maps: Sequence[Map], layer: int | None) -> Map:
    numbers = [one.layer for one in maps]
    if layer is not None and layer not in numbers:
        raise UserError(f"layer must be one of {', '.join(map(str, numbers))}, but is {layer}")
    return maps[-1 if layer is None else numbers.index(layer)]


def _alignment(seen: Seen, path: Path, kind: Kind | None, layer: int | None, *, overwrite: bool) -> Path:
    maps = _maps(seen, kind)
    chosen = maps.index(_layer(maps, layer)) + 1
    layers = [
        Alignment(
            source=seen.keys(one).labels,
            target=seen.queries(one).labels,
            weights=one.weights.float(),
            layer=f"layer {one.layer}" if len(maps) > 1 else "",
            head_names=one.heads,
            title=seen.scene.title,
        )
        for one in maps
    ]
    return plot_alignment(layers, path, layer=chosen, overwrite=overwrite)


def _chain(seen: Seen, path: Path, layer: int | None, *, overwrite: bool) -> Path:
    chains = [
        Chain(
            labels=seen.keys(one).labels,
            weights=one.weights.float().mean(0),
            layer=one.layer,
            direction=one.direction,
            title=seen.scene.title,
        )
        for one in _maps(seen, "chain")
    ]
    return plot_chain(chains, path, layer=layer, overwrite=overwrite)


def _on_image(seen: Seen, axis: str) -> Image | None:
    picture = seen.scene.pictures.get(seen.scene.axes[axis].on)
    return picture if isinstance(picture, Image) else None


def _heat(seen: Seen, path: Path, kind: Kind | None, layer: int | None, *, overwrite: bool) -> Path:
    """Of one query the heads over the picture; of several keys, the words of a text, where each was read."""
    maps = (_words_of(seen) if kind is None else ()) or _maps(seen, kind)
    one = _layer(maps, layer)
    weights = one.weights.double().numpy()
    if (image := _on_image(seen, one.keys)) is not None:
        places = seen.keys(one).places
        panels = [("mean over heads", weights.mean(0).mean(0))] if len(one.heads) > 1 else []
        panels += [(name, head.mean(0)) for name, head in zip(one.heads, weights, strict=True)]
    elif (image := _on_image(seen, one.queries)) is not None:
        places = seen.queries(one).places
        chosen = maps if layer is None else (one,)
        mean = np.mean([found.weights.double().numpy().mean(0) for found in chosen], 0)
        panels = [(f"{label}  {mean[:, i].mean():.2f}", mean[:, i]) for i, label in enumerate(seen.keys(one).labels)]
    else:
        raise UserError(f"heat needs a read of an image, or by its places, but {one.name} is neither")
    return plot_heat(image.pixels, places, panels, path, title=seen.scene.title, overwrite=overwrite)


def _boxes(seen: Seen, path: Path, *, overwrite: bool) -> Path:
    image = _picture(seen, Image, "boxes")
    height, width = image.pixels.shape[:2]
    boxes = []
    for box in image.boxes:
        left, top, wide, high = box.place
        boxes.append((box.label, box.score, (left * width, top * height, wide * width, high * height)))
    pixels = image.pixels if image.pixels.ndim == 3 else np.repeat(image.pixels[..., None], 3, 2)
    return plot_boxes(pixels, boxes, path, title=seen.scene.title, overwrite=overwrite)


def _events(capture: "Capture", scene: int, path: Path, *, overwrite: bool) -> Path:
    """All of a sound, whose pieces are scenes one after the other."""
    first = last = scene
    while _begin(capture, first) > 0 and first > 0:
        first -= 1
    while last + 1 < len(capture) and _begin(capture, last + 1) > 0:
        last += 1
    sounds = [_picture(seen, Sound, "events") for seen in capture[first : last + 1]]
    title = capture[scene].scene.title
    if len(sounds) > 1:
        own = sounds[scene - first]
        title = title.partition(" -> ")[0].removesuffix(f", {own.begin:g} to {own.begin + own.seconds:g} s")
    events = sorted(
        (one.onset + sound.begin, one.duration, one.label, one.score) for sound in sounds for one in sound.events
    )
    told = [(label, score, onset, duration) for onset, duration, label, score in events]
    seconds = max(sound.begin + sound.seconds for sound in sounds)
    return plot_events(_joined(sounds), told, path, seconds=seconds, title=title, overwrite=overwrite)


def _begin(capture: "Capture", scene: int) -> float:
    sounds = [one for one in capture[scene].scene.pictures.values() if isinstance(one, Sound)]
    return sounds[0].begin if sounds else 0.0


def _joined(sounds: Sequence[Sound]) -> NDArray[np.float32]:
    """One spectrogram of pieces that may overlap: what two of them hear is taken half from each."""
    num_bands, num_frames = sounds[0].bands.shape
    starts = [round(sound.begin / sound.seconds * num_frames) for sound in sounds]
    bands = np.zeros((num_bands, starts[-1] + num_frames), np.float32)
    bands[:, :num_frames] = sounds[0].bands
    for before, start, sound in zip(starts, starts[1:], sounds[1:], strict=False):
        half = max(0, before + num_frames - start) // 2
        bands[:, start + half : start + num_frames] = sound.bands[:, half:]
    return bands


def _tracks(seen: Seen, path: Path, kind: Kind | None, layer: int | None, *, overwrite: bool) -> Path:
    """The ways of all, those of the scene's person first; whom this one reads, in a layer's mean over heads."""
    plane = _picture(seen, Plane, "tracks")
    # The person of a scene is the first item of its source, wherever that stands among the queries of a read.
    source = seen.scene.axes.get("source", Axis(labels=()))
    own = next((int(place[0]) for place in source.places if place is not None), 0)
    weights: list[tuple[int, float]] = []
    one = _layer(_maps(seen, kind), layer)
    asked = [place and int(place[0]) for place in seen.queries(one).places]
    if own in asked and seen.keys(one).places:
        read = one.weights.double().mean(0)[asked.index(own)].tolist()
        for place, weight in zip(seen.keys(one).places, read, strict=True):
            if place is not None and int(place[0]) != own:
                weights.append((int(place[0]), weight))
    order = [own, *(i for i in range(len(plane.tracks)) if i != own)]
    tracks = [plane.tracks[i] for i in order]
    return plot_tracks(
        [one.label for one in tracks],
        np.array([one.seen for one in tracks]),
        np.array([one.ahead for one in tracks]),
        path,
        weights=[(order.index(who), weight) for who, weight in weights],
        title=seen.scene.title,
        overwrite=overwrite,
    )


def _picture(seen: Seen, kind: type[PictureT], view: str) -> PictureT:
    for picture in seen.scene.pictures.values():
        if isinstance(picture, kind):
            return picture
    raise UserError(f"there is no {kind.__name__.lower()} in this scene to draw {view} on")
