"""Figures of a capture: one sample, in one of the views at the end of this file.

By default the read nearest to the output is plotted: chain, pooling, cross, recurrent, then
self-attention; `kind` and `layer` select another. Token by token the mean over all layers is
plotted, unless `layer` is given. (xu2015, figure 2)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.figures.alignment import plot_alignment
from regard.look.figures.canvas import open_figure
from regard.look.figures.chain import Chain, plot_chain
from regard.look.figures.heat import plot_heat
from regard.look.figures.links import plot_links
from regard.look.figures.request import FigureRequest, average, image_of, picture_of, weights_of
from regard.look.figures.results import plot_boxes, plot_events, plot_tracks
from regard.look.figures.walk import plot_contributions, plot_multihead, plot_walk
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import Image, Plane, Sound


def draw(request: FigureRequest, path: Path, *, overwrite: bool = False) -> None:
    """Plot one sample of a capture to a .png, .svg or .pdf file.

    Raises: UserError for another suffix, an existing file (unless overwrite), if the sample, view,
            read, layer, head or query does not exist, the view does not have an option, or vectors
            that it shows were not recorded; ValueError if nothing was recorded.
    """
    count, view = len(request.samples), request.view
    if not 0 <= request.sample < count:
        raise UserError(f"sample must be between 0 and {count - 1}, got {request.sample}")
    view = view or _default_view(request)
    if view not in _VIEWS:
        raise UserError(f"view must be one of {', '.join(_VIEWS)}, got {view!r}")
    views_of_options = {
        "head": ("alignment", "links", "walk", "contributions"),
        "query": ("walk",),
        "width": ("alignment",),
    }
    for name, views in views_of_options.items():
        if getattr(request, name) is not None and view not in views:
            raise UserError(f"`{name}` is an option of {', '.join(views)}, got view {view!r}")
    with open_figure(path, overwrite=overwrite) as figure:
        _VIEWS[view](figure, request)


def _default_view(request: FigureRequest) -> str:
    sample = request.maps.sample
    pictures, axes = sample.pictures.values(), sample.axes
    if request.kind is None:
        # A detector that finds no box gets the image without boxes.
        is_detection = "queries" in axes and axes["queries"].kind == "box"
        for picture in pictures:
            if isinstance(picture, Image) and (picture.boxes or is_detection):
                return "boxes"
            if isinstance(picture, Sound):
                return "events"
            if isinstance(picture, Plane):
                return "tracks"
        if "output" in axes and image_of(request.maps, "output") and _text_maps(request.maps):
            return "heat"
    own = request.reads()[0]
    if own.kind == "chain":
        return "chain"
    on_image = image_of(request.maps, own.keys) or image_of(request.maps, own.queries)
    return "heat" if on_image else "alignment"


def _alignment(figure: Figure, request: FigureRequest) -> None:
    """Plot the mean over layers, and of the shown layer the mean over heads and each head."""
    maps, shown = request.reads(), request.read()
    layer = f"layer {shown.layer}" if len(maps) > 1 else ""
    panels = [(", ".join(filter(None, (layer, name))), one) for name, one in request.heads(shown)]
    if len(maps) > 1 and request.head is None:
        means = torch.stack([average(weights_of(own)) for own in maps])
        panels = [(f"mean of {len(maps)} layers", average(means)), *panels]
    queries, keys = request.maps.queries(shown), request.maps.keys(shown)
    down, across = f"{shown.queries} ({queries.kind})", f"{shown.keys} ({keys.kind})"
    plot_alignment(
        figure,
        panels,
        queries=queries.labels,
        keys=keys.labels,
        title=request.title,
        about=f"queries down: {down}, keys across: {across}",
        width=request.width,
    )


def _chain(figure: Figure, request: FigureRequest) -> None:
    maps = request.maps.find("chain")
    if not maps:
        raise UserError("this sample has no recurrent self-attention")
    chains = []
    for own in request.maps.find("chain", layer=request.read(maps).layer):
        labels = request.maps.keys(own).labels
        chains.append(Chain(labels, weights_of(own).mean(0), own.direction))
    plot_chain(figure, chains, title=request.title)


def _text_maps(maps: SampleMaps) -> list[AttentionMap]:
    """Return the maps of a text (keys) by the generated tokens (queries)."""
    return [own for own in maps.find() if (own.queries, own.keys) == ("output", "source")]


def _heat(figure: Figure, request: FigureRequest) -> None:
    """Plot each head, output token, or key (if the queries are an image) over an image."""
    maps = (_text_maps(request.maps) if request.kind is None else ()) or request.reads()
    own = request.read(maps)
    queries, keys = request.maps.queries(own), request.maps.keys(own)
    layers = maps if request.layer is None else (own,)
    image, of_queries = image_of(request.maps, own.keys), image_of(request.maps, own.queries)
    about, places = _about_mean(layers), keys.places
    if image is not None and own.queries == "output":
        panels = list(zip(queries.labels, _mean_over_heads(layers), strict=True))
    elif image is not None:
        about = f"{own.kind}, layer {own.layer}"
        if len(queries) > 1:
            about += f", mean over {len(queries)} queries"
        weights = weights_of(own).double().numpy()
        panels = list(zip(own.heads, weights.mean(1), strict=True))
        if len(own.heads) > 1:
            panels = [("mean over heads", weights.mean(0).mean(0)), *panels]
    elif of_queries is not None:
        image, places, panels = of_queries, queries.places, []
        for label, shares in zip(keys.labels, _mean_over_heads(layers).T, strict=True):
            panels.append((f"{label}  {shares.mean():.2f}", shares))
    else:
        raise UserError("this sample has no attention weights over an image")
    about = f"attention weights: {about}; uniform {1 / len(keys):.3g}"
    plot_heat(figure, image.pixels, places, panels, title=request.title, about=about)


def _about_mean(maps: Sequence[AttentionMap]) -> str:
    kind, count = maps[0].kind, len(maps[0].heads)
    if len(maps) > 1:
        return f"{kind}, mean over {len(maps)} layers and their heads"
    return f"{kind}, layer {maps[0].layer}" + (f", mean over {count} heads" if count > 1 else "")


def _mean_over_heads(maps: Sequence[AttentionMap]) -> NDArray[np.float64]:
    """Return the weights (query, key) of several layers, averaged over layers and heads."""
    return np.mean([weights_of(own).double().numpy().mean(0) for own in maps], 0)


def _events(figure: Figure, request: FigureRequest) -> None:
    """Plot a whole sound, whose chunks are consecutive samples."""
    samples = request.samples
    first = last = request.sample
    while first > 0 and _begin(samples[first]) > 0:
        first -= 1
    while last + 1 < len(samples) and _begin(samples[last + 1]) > 0:
        last += 1
    chunks = samples[first : last + 1]
    sounds = [picture_of(chunk, Sound) for chunk in chunks]
    title = request.title
    if len(sounds) > 1:
        own = sounds[request.sample - first]
        span = f", {own.begin:g} to {own.begin + own.seconds:g} s"
        title = title.partition(" -> ")[0].removesuffix(span)
    found = []
    for chunk, sound in zip(chunks, sounds, strict=True):
        for event in sound.events:
            placed = replace(event, onset=event.onset + sound.begin)
            found.append((placed, _spans(chunk, sound, event.query)))
    found.sort(key=lambda one: (one[0].onset, one[0].duration, one[0].label, one[0].score))
    events, attention = [event for event, _ in found], [spans for _, spans in found]
    about = ""
    if maps := request.maps.find("cross"):
        about = f"attention of each event, its largest weight darkest: {_about_mean(maps[-1:])}"
    plot_events(
        figure,
        _join_spectrograms(sounds),
        events,
        seconds=max(sound.begin + sound.seconds for sound in sounds),
        hertz=sounds[0].hertz,
        attention=attention if all(attention) else (),
        about=about,
        title=title,
        labels=sounds[0].labels,
    )


def _spans(chunk: SampleMaps, sound: Sound, query: int) -> list[tuple[float, float, float]]:
    """Return start, stop and mean weight over heads of each span that a query attends to."""
    maps = chunk.find("cross")
    if not maps or query >= len(chunk.queries(maps[-1])):
        return []
    weights = weights_of(maps[-1]).double().mean(0)[query].tolist()
    spans = []
    for place, weight in zip(chunk.keys(maps[-1]).places, weights, strict=False):
        if place is not None:
            spans.append((sound.begin + place[0], sound.begin + place[1], weight))
    return spans


def _begin(maps: SampleMaps) -> float:
    begins = [one.begin for one in maps.sample.pictures.values() if isinstance(one, Sound)]
    return begins[0] if begins else 0.0


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


_VIEWS: dict[str, Callable[[Figure, FigureRequest], None]] = {
    "alignment": _alignment,
    "chain": _chain,
    "heat": _heat,
    "boxes": lambda figure, request: plot_boxes(
        figure, picture_of(request.maps, Image), title=request.title
    ),
    "events": _events,
    "tracks": plot_tracks,
    "links": plot_links,
    "walk": plot_walk,
    "multihead": plot_multihead,
    "contributions": plot_contributions,
}
