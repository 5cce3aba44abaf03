"""The viewer: one HTML file that holds its captures and needs no network.

    page.html     markup, style and script, built from viewer/ and shipped as it is
      + page      JSON: scenes, axes, reads, pictures, steps           (viewer/src/page.ts says what is where)
      + chunks    numbers, zlib and base64, each under a name

Numbers are there exactly as long as that keeps the page small. A larger page is cut by a rule that it states
(regard.look.page_cut): of each query the k largest numbers exactly, and of each block of cells the largest.
"""

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

from regard.errors import UserError
from regard.files import written_whole
from regard.look.map import Map, Seen
from regard.look.page_cut import Cut, blocks, largest
from regard.look.recording_file import numbers_of
from regard.look.scene import Image, Picture, Plane, Sound
from regard.look.summaries import measures, with_rollout

if TYPE_CHECKING:
    from regard.look.capture import Capture


MAX_SCENES = 50
"""Scenes of a capture that a page shows, the first ones."""

_MARK = "<!-- data -->"
_FORMAT, _VERSION = "regard page", 1


def write(path: Path, captures: Sequence["Capture"]) -> None:
    """Write the page; it is there when it is whole, and replaces what was there then."""
    with written_whole(path) as file:
        file.writelines(part.encode("utf-8") for part in _parts(captures))


def text(captures: Sequence["Capture"]) -> str:
    """The same as a text."""
    return "".join(_parts(captures))


def _parts(captures: Sequence["Capture"]) -> Iterator[str]:
    page = (files("regard.look") / "page.html").read_text(encoding="utf-8")
    before, mark, after = page.partition(_MARK)
    assert mark, "the page must say where its data goes"
    shown = [[with_rollout(seen) for seen in capture[:MAX_SCENES]] for capture in captures]
    if not any(seen.maps for scenes in shown for seen in scenes):
        raise UserError("there is nothing to look at: nothing was read")
    cut = Cut.of({f"{i}/{one.key}": _size(seen, one) for i, scenes in enumerate(shown) for seen, one in _maps(scenes)})
    yield before
    content = []
    chunks = _Chunks(cut)
    for i, (capture, scenes) in enumerate(zip(captures, shown, strict=True)):
        plain = []
        for seen in scenes:
            reads = []
            for one in seen.maps:
                yield from chunks.of(f"{i}/{one.key}", one)
                reads.append(_read(one) | chunks.facts[f"{i}/{one.key}"])
            plain.append(_scene(seen, reads))
        content.append({"title": capture.title, "model": capture.model, "scenes": plain})
    left_out = sum(max(0, len(capture) - MAX_SCENES) for capture in captures)
    rules = [cut.rule, f"{left_out} more scenes are not shown." if left_out else ""]
    whole = {"format": _FORMAT, "version": _VERSION, "captures": content, "rule": " ".join(filter(None, rules))}
    # No part of a label can end the script that it stands in.
    told = json.dumps(whole, allow_nan=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="page">{told}</script>\n'
    yield after


class _Chunks:
    """The numbers of maps as scripts that are data, each map once."""

    def __init__(self, cut: Cut):
        self._cut = cut
        self.facts: dict[str, dict[str, Any]] = {}
        """By the key of a map: its summaries, and where its weights are."""

    def of(self, key: str, one: Map) -> Iterator[str]:
        """The scripts of a map that has none yet."""
        if key in self.facts:
            return
        name = str(len(self.facts))
        if self._cut.is_whole(key):
            weights = one.weights
            kind = torch.float16 if weights.dtype == torch.float16 else self._cut.dtype
            yield _script(name, numbers_of(weights, kind))
            found = {title: [measure(head) for head in weights] for title, measure in measures(one).items()}
            stated = {"form": "whole", "dtype": str(kind).removeprefix("torch."), "chunk": name}
            self.facts[key] = {"summaries": found, "weights": stated}
        else:
            yield from self._cut_down(key, name, one)

    def _cut_down(self, key: str, name: str, one: Map) -> Iterator[str]:
        """A head at a time: they may be more than memory holds."""
        overviews, names, found, count = [], [], {title: [] for title in measures(one)}, 0
        for number in range(len(one.heads)):
            weights = one.head(number)
            for title, measure in measures(one).items():
                found[title].append(measure(weights))
            numbers = numbers_of(weights, torch.float32)
            overviews.append(blocks(numbers))
            values, keys = largest(numbers, self._cut.count)
            count = values.shape[1]
            names.append(f"{name}-{number}")
            yield _script(names[-1], values, keys)
        rows, columns = overviews[0].shape
        yield _script(name, np.stack(overviews))
        overview = {"rows": rows, "columns": columns, "chunk": name}
        stated = {"form": "top", "count": count, "overview": overview, "heads": names}
        self.facts[key] = {"summaries": found, "weights": stated}


def _script(name: str, *arrays: NDArray[Any]) -> str:
    packed = zlib.compress(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), 6)
    content = base64.b64encode(packed).decode()
    return f'<script type="application/octet-stream" class="chunk" id="chunk-{name}">{content}</script>\n'


def _maps(scenes: Sequence[Seen]) -> Iterator[tuple[Seen, Map]]:
    return ((seen, one) for seen in scenes for one in seen.maps)


def _size(seen: Seen, one: Map) -> tuple[int, int, int]:
    return len(one.heads), len(seen.queries(one)), len(seen.keys(one))


def _read(one: Map) -> dict[str, Any]:
    names = ("name", "kind", "layer", "direction", "measure", "queries", "keys", "heads", "facts")
    return {name: getattr(one, name) for name in names}


def _scene(seen: Seen, reads: list[dict[str, Any]]) -> dict[str, Any]:
    scene = seen.scene
    return {
        "title": scene.title,
        "axes": {name: asdict(axis) for name, axis in scene.axes.items()},
        "reads": reads,
        "pictures": {name: _picture(picture) for name, picture in scene.pictures.items()},
        "steps": [asdict(step) for step in scene.steps],
    }


def _picture(picture: Picture) -> dict[str, Any]:
    match picture:
        case Image():
            height, width = picture.pixels.shape[:2]
            boxes = [asdict(box) for box in picture.boxes]
            return {"kind": "image", "url": _url(picture.pixels), "width": width, "height": height, "boxes": boxes}
        case Sound():
            low, high = float(picture.bands.min()), float(picture.bands.max())
            shades = 255 * (1 - (picture.bands[::-1] - low) / max(high - low, 1e-9))  # loud is dark, low is below
            events = [asdict(event) for event in picture.events]
            return {"kind": "sound", "url": _url(shades.astype(np.uint8)), "seconds": picture.seconds, "events": events}
        case Plane():
            return {"kind": "plane", "unit": picture.unit, "tracks": [asdict(track) for track in picture.tracks]}


def _url(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
