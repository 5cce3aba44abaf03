"""Figures of a capture: one sample, in a view that fits its attention maps.

    alignment    target x source, the mean and each head                      texts
    chain        the text at each step, shaded by its weights                 recurrent layers that
    read their past
    heat         weights over an image, head by head                          images, boxes
                 weights of each token of the output over the image           captions
                 weights of each token of the text over a generated image     drawings
    boxes, events    detections over the image or over the sound (in full, if it was processed in
    chunks)
    tracks           trajectories on the plane, and the weights of the sample's agent
    links            lines between queries and keys, as thick as the weights
    walk             X -> Q, K, V -> scores -> weights -> Z of a head, with its numbers
    multihead        the same for all heads, their concatenation, and W_O
    contributions    what each part of the model adds to the score at each item

By default the read nearest to the output is plotted: chain, pooling, cross, recurrent, then
self-attention; `kind` and `layer` select another. Token by token the mean over all layers is
plotted, unless `layer` is given. (xu2015, figure 2)
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import UserError
from regard.layers.read import Kind
from regard.look.figures.alignment import Alignment, plot_alignment
from regard.look.figures.chain import Chain, plot_chain
from regard.look.figures.heat import plot_heat
from regard.look.figures.links import plot_links
from regard.look.figures.results import plot_boxes, plot_events, plot_tracks
from regard.look.figures.walk import plot_contributions, plot_multihead, plot_walk
from regard.look.maps import CONTRIBUTION, AttentionMap, SampleMaps
from regard.look.sample import Axis, Image, Plane, Sound

ViewName = Literal[
    "alignment",
    "chain",
    "heat",
    "boxes",
    "events",
    "tracks",
    "links",
    "walk",
    "multihead",
    "contributions",
]
VIEWS: tuple[ViewName, ...] = get_args(ViewName)
_OPTION_VIEWS: dict[str, tuple[ViewName, ...]] = {
    "head": ("alignment", "links", "walk", "contributions"),
    "query": ("walk",),
    "width": ("alignment",),
}
"""Views that have an option."""

_NEAREST: tuple[Kind, ...] = (
    "chain",
    "pooling",
    "cross",
    "recurrent",
    "encoder self",
    "decoder self",
    "other",
)
PictureT = TypeVar("PictureT", Image, Sound, Plane)


def draw(
    samples: Sequence[SampleMaps],
    path: Path,
    *,
    sample: int = 0,
    view: ViewName | None = None,
    kind: Kind | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: int | None = None,
    width: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Plot one sample of a capture to a .png, .svg or .pdf file.

    samples: of a capture.
    sample: index of the sample.
    view:   one of VIEWS; by default the one that fits.
    kind:   kind of the reads to plot (regard.layers.read); by default those nearest to the output.
    layer:  layer to plot head by head, from 1; by default the last.
    head:   head of the views alignment (by default all), links (by default the mean over heads) and
            walk (by default the first), and score of the view contributions (by default the best),
            from 1.
    query:  query of the view walk, from 1; by default all.
    width:  largest width of the view alignment in centimeters; by default 18, and more if one
    matrix needs it.
    Raises: UserError for another suffix, an existing file (unless overwrite), if the sample, view,
            read, layer, head or query does not exist, the view does not have an option, or vectors
            that it shows were not recorded; ValueError if nothing was recorded.
    """
    if not 0 <= sample < len(samples):
        raise UserError(f"sample must be between 0 and {len(samples) - 1}, got {sample}")
    sample_maps = samples[sample]
    view_name = view or _default_view(sample_maps, kind)
    for name, number in (("head", head), ("query", query), ("width", width)):
        if number is not None and view_name not in (views := _OPTION_VIEWS[name]):
            plural = "s" if len(views) > 1 else ""
            raise UserError(
                f"`{name}` is an option of the view{plural} {', '.join(views)}, got view "
                f"{view_name!r}"
            )
    if width is not None and not 0 < width < math.inf:
        raise UserError(f"`width` must be a positive number of centimeters, got {width}")
    drawings: dict[str, Callable[[], Path]] = {
        "alignment": lambda: _alignment(
            sample_maps, path, kind, layer, head=head, width=width, overwrite=overwrite
        ),
        "chain": lambda: _chain(sample_maps, path, layer, overwrite=overwrite),
        "heat": lambda: _heat(sample_maps, path, kind, layer, overwrite=overwrite),
        "boxes": lambda: _boxes(sample_maps, path, overwrite=overwrite),
        "events": lambda: _events(samples, sample, path, overwrite=overwrite),
        "tracks": lambda: _tracks(sample_maps, path, kind, layer, overwrite=overwrite),
        "links": lambda: _links(sample_maps, path, kind, layer, head=head, overwrite=overwrite),
        "walk": lambda: plot_walk(
            sample_maps,
            _layer(_maps(sample_maps, kind), layer),
            path,
            head=0 if head is None else head - 1,
            query=None if query is None else query - 1,
            overwrite=overwrite,
        ),
        "contributions": lambda: plot_contributions(
            sample_maps, path, 0 if head is None else head - 1, overwrite=overwrite
        ),
        "multihead": lambda: plot_multihead(
            sample_maps, _layer(_maps(sample_maps, kind), layer), path, overwrite=overwrite
        ),
    }
    if view_name not in drawings:
        raise UserError(f"view must be one of {', '.join(VIEWS)}, got {view_name!r}")
    return drawings[view_name]()


def _default_view(sample_maps: SampleMaps, kind: Kind | None) -> ViewName:
    pictures, axes = sample_maps.sample.pictures.values(), sample_maps.sample.axes
    if kind is None:
        # A detector that finds no box gets the image without boxes.
        is_detection = "queries" in axes and axes["queries"].kind == "box"
        if any(
            isinstance(picture, Image) and (picture.boxes or is_detection) for picture in pictures
        ):
            return "boxes"
        if any(isinstance(picture, Sound) for picture in pictures):
            return "events"
        if any(isinstance(picture, Plane) for picture in pictures):
            return "tracks"
        if "output" in axes and _on_image(sample_maps, "output") and _text_maps(sample_maps):
            return "heat"
    maps = _maps(sample_maps, kind)
    if maps[0].kind == "chain":
        return "chain"
    return (
        "heat"
        if any(_on_image(sample_maps, name) for name in (maps[0].keys, maps[0].queries))
        else "alignment"
    )


def _maps(sample_maps: SampleMaps, kind: Kind | None) -> tuple[AttentionMap, ...]:
    """Return the maps of a kind, or of the kind nearest to the output, one per layer."""
    for candidate in _NEAREST if kind is None else (kind,):
        if maps := sample_maps.find(candidate):
            axes = maps[-1].queries, maps[-1].keys
            return tuple(
                attention_map
                for attention_map in maps
                if (attention_map.queries, attention_map.keys) == axes
            )
    kinds = (
        ", ".join(dict.fromkeys(attention_map.kind for attention_map in sample_maps.maps)) or "none"
    )
    raise UserError(
        f"there are no reads of kind {kind}, only of kind {kinds}: choose another kind or view"
    )


def _text_maps(sample_maps: SampleMaps) -> tuple[AttentionMap, ...]:
    """Return the maps of a text (keys) by the generated tokens (queries)."""
    return tuple(
        attention_map
        for attention_map in sample_maps.find()
        if attention_map.queries == "output" and attention_map.keys == "source"
    )


def _layer(maps: Sequence[AttentionMap], layer: int | None) -> AttentionMap:
    layers = [attention_map.layer for attention_map in maps]
    if layer is not None and layer not in layers:
        raise UserError(f"layer must be one of {', '.join(map(str, layers))}, got {layer}")
    return maps[-1 if layer is None else layers.index(layer)]


def _select_head(attention_map: AttentionMap, head: int | None) -> tuple[Tensor, str]:
    """Return the weights (head, query, key) of one head, from 1, and its name; None: of all."""
    count = len(attention_map.heads)
    if head is None:
        return attention_map.weights.float(), ""
    if not 1 <= head <= count:
        raise UserError(f"head must be between 1 and {count}, got {head}")
    return attention_map.head(head - 1).float()[None], f"head {head} of {count}"


def _alignment(
    sample_maps: SampleMaps,
    path: Path,
    kind: Kind | None,
    layer: int | None,
    *,
    head: int | None,
    width: float | None,
    overwrite: bool,
) -> Path:
    maps = _maps(sample_maps, kind)
    shown = _layer(maps, layer)
    drawn = maps if head is None else (shown,)
    selected = [_select_head(attention_map, head) for attention_map in drawn]
    layers = [
        Alignment(
            source=sample_maps.keys(attention_map).labels,
            target=sample_maps.queries(attention_map).labels,
            weights=weights,
            layer=", ".join(
                filter(None, (f"layer {attention_map.layer}" if len(maps) > 1 else "", name))
            ),
            head_names=attention_map.heads if head is None else (name,),
            title=sample_maps.sample.title,
            axes=(
                _axis_title(sample_maps, "keys", attention_map),
                _axis_title(sample_maps, "queries", attention_map),
            ),
        )
        for attention_map, (weights, name) in zip(drawn, selected, strict=True)
    ]
    return plot_alignment(
        layers, path, layer=drawn.index(shown) + 1, width=width, overwrite=overwrite
    )


def _axis_title(
    sample_maps: SampleMaps, role: Literal["queries", "keys"], attention_map: AttentionMap
) -> str:
    """Return the title of an axis, as on the page: "queries: output tokens"."""
    name: str = getattr(attention_map, role)
    kind = sample_maps.sample.axes[name].kind
    if re.search("(s|x|z|ch|sh)$", kind):
        kinds = f"{kind}es"
    else:
        kinds = f"{kind[:-1]}ies" if re.search("[^aeiou]y$", kind) else f"{kind}s"
    if kinds == role:
        return role
    return (
        f"{role}: {name} {kinds}"
        if name in ("source", "output", "decoder input")
        else f"{role}: {kinds}"
    )


def _links(
    sample_maps: SampleMaps,
    path: Path,
    kind: Kind | None,
    layer: int | None,
    *,
    head: int | None,
    overwrite: bool,
) -> Path:
    """Plot the lines of one head, or of the mean over heads."""
    attention_map = _layer(_maps(sample_maps, kind), layer)
    weights, which = _select_head(attention_map, head)
    if head is None and len(weights) > 1:
        which = f"mean of {len(weights)} heads"
    about = ", ".join(filter(None, (attention_map.kind, f"layer {attention_map.layer}", which)))
    return plot_links(
        sample_maps.queries(attention_map).labels,
        sample_maps.keys(attention_map).labels,
        weights.mean(0).numpy(),
        path,
        title=sample_maps.sample.title,
        about=about,
        overwrite=overwrite,
    )


def _chain(sample_maps: SampleMaps, path: Path, layer: int | None, *, overwrite: bool) -> Path:
    chains = [
        Chain(
            labels=sample_maps.keys(attention_map).labels,
            weights=attention_map.weights.float().mean(0),
            layer=attention_map.layer,
            direction=attention_map.direction,
            title=sample_maps.sample.title,
        )
        for attention_map in _maps(sample_maps, "chain")
    ]
    return plot_chain(chains, path, layer=layer, overwrite=overwrite)


def _on_image(sample_maps: SampleMaps, axis: str) -> Image | None:
    picture = sample_maps.sample.pictures.get(sample_maps.sample.axes[axis].picture)
    return picture if isinstance(picture, Image) else None


def _heat(
    sample_maps: SampleMaps, path: Path, kind: Kind | None, layer: int | None, *, overwrite: bool
) -> Path:
    """Plot the heads, or each output token, over an image of keys; over an image of queries, plot
    each key."""
    maps = (_text_maps(sample_maps) if kind is None else ()) or _maps(sample_maps, kind)
    attention_map = _layer(maps, layer)
    weights = attention_map.weights.double().numpy()
    queries, keys = sample_maps.queries(attention_map), sample_maps.keys(attention_map)
    layers = maps if layer is None else (attention_map,)
    if (
        image := _on_image(sample_maps, attention_map.keys)
    ) is not None and attention_map.queries == "output":
        places, mean, about = keys.places, _mean_over_heads(layers), _about_mean(layers)
        panels = list(zip(queries.labels, mean, strict=True))
    elif image is not None:
        places, about = keys.places, f"{attention_map.kind}, layer {attention_map.layer}"
        about += f", mean over {len(queries)} queries" if len(queries) > 1 else ""
        panels = (
            [("mean over heads", weights.mean(0).mean(0))] if len(attention_map.heads) > 1 else []
        )
        panels += [
            (name, head.mean(0)) for name, head in zip(attention_map.heads, weights, strict=True)
        ]
    elif (image := _on_image(sample_maps, attention_map.queries)) is not None:
        places, mean, about = queries.places, _mean_over_heads(layers), _about_mean(layers)
        panels = [
            (f"{label}  {mean[:, i].mean():.2f}", mean[:, i]) for i, label in enumerate(keys.labels)
        ]
    else:
        raise _not_possible(sample_maps, "heat", "attention weights over an image")
    about = f"attention weights: {about}; uniform {1 / len(keys):.3g}"
    return plot_heat(
        image.pixels,
        places,
        panels,
        path,
        title=sample_maps.sample.title,
        about=about,
        overwrite=overwrite,
    )


def _about_mean(maps: Sequence[AttentionMap]) -> str:
    """Return the kind of maps, and what they are averaged over."""
    kind, count = maps[0].kind, len(maps[0].heads)
    if len(maps) > 1:
        return f"{kind}, mean over {len(maps)} layers and their heads"
    return f"{kind}, layer {maps[0].layer}" + (f", mean over {count} heads" if count > 1 else "")


def _mean_over_heads(maps: Sequence[AttentionMap]) -> NDArray[np.float64]:
    """Return the weights (query, key) of several layers, averaged over layers and heads."""
    return np.mean([attention_map.weights.double().numpy().mean(0) for attention_map in maps], 0)


def _boxes(sample_maps: SampleMaps, path: Path, *, overwrite: bool) -> Path:
    image = _picture(sample_maps, Image, "boxes")
    height, width = image.pixels.shape[:2]
    pixels = image.pixels if image.original is None else image.original
    scale = max(pixels.shape[1] / width, pixels.shape[0] / height)  # the larger side fits exactly
    height, width, boxes = height * scale, width * scale, []
    for box in image.boxes:
        left, top, wide, high = box.place
        boxes.append(
            (box.label, box.score, (left * width, top * height, wide * width, high * height))
        )
    pixels = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2)
    title = sample_maps.sample.title
    return plot_boxes(pixels, boxes, path, title=title, labels=image.labels, overwrite=overwrite)


def _events(samples: Sequence[SampleMaps], sample: int, path: Path, *, overwrite: bool) -> Path:
    """Plot a whole sound, whose chunks are consecutive samples."""
    first = last = sample
    while _begin(samples, first) > 0 and first > 0:
        first -= 1
    while last + 1 < len(samples) and _begin(samples, last + 1) > 0:
        last += 1
    sounds = [_picture(chunk, Sound, "events") for chunk in samples[first : last + 1]]
    title = samples[sample].sample.title
    if len(sounds) > 1:
        own = sounds[sample - first]
        title = title.partition(" -> ")[0].removesuffix(
            f", {own.begin:g} to {own.begin + own.seconds:g} s"
        )
    found = sorted(
        (
            (
                event.onset + sound.begin,
                event.duration,
                event.label,
                event.score,
                _spans(chunk, sound, event.query),
            )
            for chunk, sound in zip(samples[first : last + 1], sounds, strict=True)
            for event in sound.events
        ),
        key=lambda one: one[:4],
    )
    events = [(label, score, onset, duration) for onset, duration, label, score, _ in found]
    maps = samples[sample].find("cross")
    seconds = max(sound.begin + sound.seconds for sound in sounds)
    return plot_events(
        _join_spectrograms(sounds),
        events,
        path,
        seconds=seconds,
        hertz=sounds[0].hertz,
        attention=[spans for *_, spans in found] if all(spans for *_, spans in found) else (),
        about=f"attention of each event, its largest weight darkest: {_about_mean(maps[-1:])}"
        if maps
        else "",
        title=title,
        labels=sounds[0].labels,
        overwrite=overwrite,
    )


def _spans(chunk: SampleMaps, sound: Sound, query: int) -> list[tuple[float, float, float]]:
    """Return start, stop and weight of each span of a sound that a query attends to, averaged over
    heads."""
    maps = chunk.find("cross")
    if not maps or query >= len(chunk.queries(maps[-1])):
        return []
    weights = maps[-1].weights.double().mean(0)[query].tolist()
    return [
        (sound.begin + place[0], sound.begin + place[1], weight)
        for place, weight in zip(chunk.keys(maps[-1]).places, weights, strict=False)
        if place is not None
    ]


def _begin(samples: Sequence[SampleMaps], sample: int) -> float:
    sounds = [
        picture
        for picture in samples[sample].sample.pictures.values()
        if isinstance(picture, Sound)
    ]
    return sounds[0].begin if sounds else 0.0


def _join_spectrograms(sounds: Sequence[Sound]) -> NDArray[np.float32]:
    """Return one spectrogram of chunks that may overlap, each overlap half from either chunk."""
    num_bands, num_frames = sounds[0].bands.shape
    starts = [round(sound.begin / sound.seconds * num_frames) for sound in sounds]
    bands = np.zeros((num_bands, starts[-1] + num_frames), np.float32)
    bands[:, :num_frames] = sounds[0].bands
    for before, start, sound in zip(starts, starts[1:], sounds[1:], strict=False):
        half = max(0, before + num_frames - start) // 2
        bands[:, start + half : start + num_frames] = sound.bands[:, half:]
    return bands


def _tracks(
    sample_maps: SampleMaps, path: Path, kind: Kind | None, layer: int | None, *, overwrite: bool
) -> Path:
    """Plot all tracks, that of the sample's agent first, and its weights of the others, averaged
    over heads."""
    plane = _picture(sample_maps, Plane, "tracks")
    # The agent of a sample is the first item of its source, wherever it is among the queries of a
    # read.
    source = sample_maps.sample.axes.get("source", Axis(labels=()))
    own = next((int(place[0]) for place in source.places if place is not None), 0)
    weights: list[tuple[int, float]] = []
    attention_map = _layer(_maps(sample_maps, kind), layer)
    query_tracks = [place and int(place[0]) for place in sample_maps.queries(attention_map).places]
    key_places = sample_maps.keys(attention_map).places
    if own in query_tracks and key_places:
        own_weights = attention_map.weights.double().mean(0)[query_tracks.index(own)].tolist()
        for place, weight in zip(key_places, own_weights, strict=True):
            if place is not None and int(place[0]) != own:
                weights.append((int(place[0]), weight))
    order = [own, *(i for i in range(len(plane.tracks)) if i != own)]
    tracks = [plane.tracks[i] for i in order]
    return plot_tracks(
        [track.label for track in tracks],
        np.array([track.history for track in tracks]),
        np.array([track.future for track in tracks]),
        path,
        weights=[(order.index(track), weight) for track, weight in weights],
        title=sample_maps.sample.title,
        overwrite=overwrite,
    )


def _picture(sample_maps: SampleMaps, kind: type[PictureT], view: str) -> PictureT:
    for picture in sample_maps.sample.pictures.values():
        if isinstance(picture, kind):
            return picture
    shown = {
        "boxes": "boxes in an image",
        "events": "events in a sound",
        "tracks": "tracks on a plane",
    }[view]
    raise _not_possible(sample_maps, view, shown)


def _not_possible(sample_maps: SampleMaps, view: str, shown: str) -> UserError:
    """Return the error for a view of what a sample does not have, with the views that it has."""
    maps, pictures = sample_maps.maps, sample_maps.sample.pictures.values()
    has = {
        "alignment": True,
        "chain": any(one.kind == "chain" for one in maps),
        "heat": any(
            _on_image(sample_maps, name) for one in maps for name in (one.keys, one.queries)
        ),
        "boxes": any(isinstance(picture, Image) for picture in pictures),
        "events": any(isinstance(picture, Sound) for picture in pictures),
        "tracks": any(isinstance(picture, Plane) for picture in pictures),
        "links": True,
        "walk": True,
        "multihead": True,
        "contributions": bool(sample_maps.find(measure=CONTRIBUTION)),
    }
    views = [name for name, is_possible in has.items() if is_possible and name != view]
    return UserError(
        f"view {view!r} shows {shown}, which this sample does not have; its views are "
        f"{', '.join(views)}"
    )
