"""Figures of predictions: boxes in an image, events over a sound, tracks, images side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import NDArray

from regard.data.images.box_batches import fit_size
from regard.look.figures.canvas import add_axes, open_figure, weight_colors
from regard.look.figures.labels import readable, width_em
from regard.look.figures.request import FigureRequest, picture_of, weights_of
from regard.look.sample import Axis, DetectedBox, DetectedEvent, Image, Plane, format_score

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
"""Palette for color-blind readers. (wong2011)"""
_TAG_FONT = 6


def plot_boxes(figure: Figure, image: Image, *, title: str) -> None:
    """Plot an image with a frame, the label and the score of each box.

    A .png has at least the size of the image, up to a width of 4,096 pixels. Labels do not overlap:
    where many boxes leave no room, only those of larger scores are drawn.
    """
    pixels = image.pixels if image.original is None else image.original
    height, width = pixels.shape[:2]
    input_height, input_width = image.pixels.shape[:2]
    size = fit_size((width, height), input_width, input_height)
    sides = np.array((input_width, input_height)) * (width, height) / size
    colors = _label_colors(image.labels, [box.label for box in image.boxes])
    axes = add_axes(figure, (6.0, 6.0 * height / width), title)
    shown = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2)
    axes.imshow(shown, interpolation="nearest" if width < 200 else None)
    axes.set_axis_off()
    placed: list[Bbox] = []
    point = width / (72 * 6.0)  # in pixels of the image
    for box in sorted(image.boxes, key=lambda box: -box.score):
        x, y, w, h = (np.array(box.place) * np.tile(sides, 2)).tolist()
        style = {"fill": False, "edgecolor": colors[box.label], "linewidth": 1.4}
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), w, h, **style))
        text, high = _tag(box), 1.6 * _TAG_FONT * point
        wide = (width_em(text) * _TAG_FONT + 2) * point
        left, top = max(0.0, min(x, width - wide)), max(0.0, y - high)
        tag = Bbox.from_bounds(left, top, wide, high)
        if not tag.count_overlaps(placed):
            placed.append(tag)
            style = {"fontsize": _TAG_FONT, "va": "bottom", "zorder": 3}
            bottom = top + high - point
            axes.text(left + point, bottom, text, **style, **_tag_style(colors[box.label]))
    figure.draw_without_rendering()  # lays the axes out
    inches = axes.get_window_extent().width / figure.dpi
    figure.set_dpi(min(width, 4096) / inches)


def plot_events(
    figure: Figure,
    bands: NDArray[np.float32],
    events: Sequence[DetectedEvent],
    *,
    seconds: float,
    hertz: float = 0.0,
    attention: Sequence[Sequence[tuple[float, float, float]]] = (),
    about: str = "",
    title: str,
    labels: Sequence[str] = (),
) -> None:
    """Plot a spectrogram (bands, frames) of `seconds` with a span for each event.

    hertz:     highest frequency of the bands, which are evenly spaced on the mel scale; 0 if it is
               not known.
    attention: weights of each event on spans of the sound, as start, stop, weight: a row below the
               spectrogram, darker for larger weights.
    about:     what the weights are, above them.
    labels:    all labels of the model, which determine the colors.
    """
    names = [event.label for event in events]
    colors = _label_colors(labels, names)
    rows = 0.22 * len(attention)
    size = 9.0, 3.0 + (rows + 0.4 if attention else 0)
    axes = add_axes(figure, size, title, "" if events else "no event found above the threshold")
    if attention:
        below = make_axes_locatable(axes).append_axes("bottom", rows, pad=0.75)
        for row, spans in enumerate(attention):
            frames = [Rectangle((start, row), stop - start, 1) for start, stop, _ in spans]
            heat = PatchCollection(frames, cmap=weight_colors(), linewidth=0)
            weights = [weight for *_, weight in spans]
            heat.set_array(np.array(weights))
            heat.set_clim(0, max(weights, default=0) or 1.0)  # relative to the largest of the row
            below.add_collection(heat)
        below.set(xlim=(0, seconds), ylim=(len(attention), 0), xticks=[])
        shown = [readable(name, spaces=" ") for name in names]
        below.set_yticks(np.arange(len(attention)) + 0.5, shown, fontsize=7)
        below.tick_params(length=0)
        below.set_title(about, fontsize=8, loc="left")
    extent = (0, seconds, 0, len(bands))
    axes.imshow(bands, origin="lower", aspect="auto", cmap="gray_r", extent=extent)
    axes.set(xlabel="seconds", ylabel="frequency" if hertz else "mel band", xlim=(0, seconds))
    if hertz:
        candidates = (0, 250, 500, 1000, 2000, 4000, 8000, 16000)
        marks = np.array([mark for mark in candidates if mark <= hertz])
        units = [f"{mark / 1000:g} kHz" if mark >= 1000 else f"{mark} Hz" for mark in marks]
        places = len(bands) * np.log1p(marks / 700) / np.log1p(hertz / 700)
        axes.set_yticks(places, units, fontsize=7)
    for row, event in enumerate(events):
        color, stop = colors[event.label], event.onset + event.duration
        axes.axvspan(event.onset, stop, facecolor=color, alpha=0.25, edgecolor=color)
        high = len(bands) * (0.93 - 0.09 * (row % 3))  # staggered, because events may overlap
        place, align = event.onset + 0.005 * seconds, "left"
        if event.onset > 0.85 * seconds:
            place, align = stop - 0.005 * seconds, "right"
        place, style = min(place, 0.995 * seconds), _tag_style(color)
        axes.text(place, high, _tag(event), ha=align, fontsize=8, fontweight="bold", **style)


def plot_images(
    images: Sequence[tuple[str, NDArray[Any]]], path: Path, *, overwrite: bool = False
) -> None:
    """Plot images (channels, height, width) within [0, 1] side by side, with their names."""
    with open_figure(path, overwrite=overwrite) as figure:
        figure.set_size_inches(2.5 * len(images), 2.7)
        figure.set_layout_engine("constrained")
        grid = figure.subplots(1, len(images), squeeze=False)[0]
        for axes, (name, image) in zip(grid, images, strict=True):
            axes.imshow(np.clip(image, 0, 1).transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1)
            axes.set_title(readable(name, spaces=" "), fontsize=10)
            axes.set_axis_off()


def plot_tracks(figure: Figure, request: FigureRequest) -> None:
    """Plot observed tracks and predicted paths, in meters on the plane, the sample's agent first.

    Its attention to others, the mean over heads, is lines to them, wider for larger weights.
    """
    maps = request.maps
    tracks = picture_of(maps, Plane).tracks
    # The agent of a sample is the first item of its source, wherever it is among the queries.
    source = maps.sample.axes.get("source", Axis(labels=()))
    agent = next((int(place[0]) for place in source.places if place is not None), 0)
    own = request.read()
    query_tracks = [place and int(place[0]) for place in maps.queries(own).places]
    axes = add_axes(figure, (6.0, 6.0), request.title)
    if agent in query_tracks and maps.keys(own).places:
        shares = weights_of(own).double().mean(0)[query_tracks.index(agent)].tolist()
        for place, weight in zip(maps.keys(own).places, shares, strict=True):
            if place is not None and int(place[0]) != agent:
                ends = np.stack((tracks[agent].history[-1], tracks[int(place[0])].history[-1]))
                style = {"color": _COLORS[4], "alpha": 0.7, "solid_capstyle": "round"}
                axes.plot(*ends.T, linewidth=8 * weight, **style)
    ordered = [tracks[agent], *tracks[:agent], *tracks[agent + 1 :]]
    for i, track in enumerate(ordered):
        history, future = np.array(track.history), np.array(track.future)
        color, now = _COLORS[1] if i == 0 else _COLORS[0], history[-1]
        path_from_now = np.concatenate((now[None], future))
        steps = np.arange(len(path_from_now))[:, None]
        constant_velocity = now + steps * (now - history[-2])
        axes.plot(*constant_velocity.T, color="#8c97a3", linewidth=0.8, linestyle=":")
        axes.plot(*history.T, color=color, linewidth=1.6)
        axes.plot(*path_from_now.T, color=color, linewidth=1.6, linestyle="--")
        axes.plot(*now, marker="o", color=color, markersize=4)
        style = {"textcoords": "offset points", "fontsize": 7, "color": color}
        axes.annotate(readable(track.label, spaces=" "), now, (4, 4), **style)
    axes.set(xlabel="meters", ylabel="meters", aspect="equal")
    axes.margins(0.08)


def _tag(found: DetectedBox | DetectedEvent) -> str:
    return f"{readable(found.label, spaces=' ')} {format_score(found.score)}"


def _label_colors(labels: Sequence[str], found: Sequence[str]) -> dict[str, str]:
    ordered = dict.fromkeys([*labels, *sorted(found)])
    return {label: _COLORS[i % len(_COLORS)] for i, label in enumerate(ordered)}


def _tag_style(color: str) -> dict[str, Any]:
    """Return the color of a text on this color, by contrast (WCAG 2): black or white."""
    linear = []
    for part in to_rgb(color):
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    ink = "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"
    return {"color": ink, "bbox": {"facecolor": color, "edgecolor": "none", "pad": 0.8}}
