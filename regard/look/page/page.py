"""HTML viewer: one file that contains its captures and needs no network.

    page.html     markup, style and script, built from viewer/
      + page      JSON: samples, axes, reads, pictures, steps    (documented in viewer/src/page.ts)
      + chunks    weights by name, compressed with zlib, in base64

The weights are exact as long as the page stays small. A larger page is reduced
(regard.look.page.reduce), and says so: the k largest weights of each query exactly, and the largest
weight of each block of cells.
"""

import base64
import io
import json
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from regard.errors import UserError
from regard.look.arrays import numbers_of
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.measures import measures, with_rollout
from regard.look.page.reduce import PageCut, block_maxima, top_k
from regard.look.sample import Image, Picture, Sound
from regard.look.vectors import VECTORS
from regard.system.writing import open_atomically

MAX_SAMPLES = 50
"""Largest number of samples of a capture on a page; the first ones are shown."""

WALK_BUDGET = 12_000_000
"""Maximum bytes of the vectors of reads on a page, and of their projections, in float32."""

_MARK = "<!-- data -->"
_FORMAT, _VERSION = "regard page", 4


class PageSamples(NamedTuple):
    """Samples of one capture, with its title and the description of its model."""

    title: str
    model: str
    samples: Sequence[SampleMaps]


def write(path: Path, captures: Sequence[PageSamples]) -> None:
    """Write the page. An existing file is replaced atomically."""
    with open_atomically(path) as file:
        file.writelines(part.encode("utf-8") for part in _parts(captures))


def text(captures: Sequence[PageSamples]) -> str:
    """Return the page as a string."""
    return "".join(_parts(captures))


def _parts(captures: Sequence[PageSamples]) -> Iterator[str]:
    page = (files("regard.look.page") / "page.html").read_text(encoding="utf-8")
    before, mark, after = page.partition(_MARK)
    assert mark, "page.html must contain the mark"
    shown, sizes, left_out = [], {}, 0
    for i, capture in enumerate(captures):
        shown.append([with_rollout(one) for one in capture.samples[:MAX_SAMPLES]])
        left_out += max(0, len(capture.samples) - MAX_SAMPLES)
        for sample_maps in shown[-1]:
            for own in sample_maps.maps:
                num_queries = len(sample_maps.queries(own))
                size = len(own.heads), num_queries, len(sample_maps.keys(own))
                sizes[f"{i}/{own.key}"] = size
    if not sizes:
        raise UserError("there is nothing to show: the captures contain no reads")
    yield before
    content = []
    chunks, walks = _Chunks(PageCut.of(sizes)), _Walks()
    for i, (capture, samples) in enumerate(zip(captures, shown, strict=True)):
        samples_json = []
        for sample_maps in samples:
            reads = []
            for own in sample_maps.maps:
                key = f"{i}/{own.key}"
                yield from chunks.add(key, own)
                yield from walks.add(key, f"{i}/{own.name}", own)
                read = own.metadata() | chunks.facts[key] | {"walk": walks.facts[key]}
                del read["key"]
                reads.append(read)
            samples_json.append(_sample_to_json(sample_maps, reads))
        content.append({"title": capture.title, "model": capture.model, "samples": samples_json})
    notes = [chunks.page_cut.note, walks.note]
    if left_out:
        notes.append(f"{left_out} more samples are not shown.")
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "captures": content,
        "note": " ".join(filter(None, notes)),
    }
    # Escaped, so that no label can end the script element.
    script = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="page">{script}</script>\n'
    yield after


class _Chunks:
    """Weights of maps as script elements of data; each map is written once."""

    def __init__(self, page_cut: PageCut):
        self.page_cut = page_cut
        self.facts: dict[str, dict[str, Any]] = {}
        """Summaries of each map and the form of its weights, by the key of the map."""

    def add(self, key: str, own: AttentionMap) -> Iterator[str]:
        """Yield the scripts of a map; none if it is already written."""
        if key in self.facts:
            return
        name = str(len(self.facts))
        summaries: dict[str, list[float | None]] = {title: [] for title in measures(own)}
        if self.page_cut.is_whole(key):
            weights = own.weights
            dtype = torch.float16 if weights.dtype == torch.float16 else self.page_cut.dtype
            yield _script(name, numbers_of(weights, dtype))
            for title, measure in measures(own).items():
                summaries[title] = [measure(head) for head in weights]
            form = {"form": "whole", "dtype": str(dtype).removeprefix("torch."), "chunk": name}
            self.facts[key] = {"summaries": summaries, "weights": form}
            return
        # Head by head: all heads may not fit into memory.
        overviews, names, count = [], [], 0
        for head in range(len(own.heads)):
            weights = own.head(head)
            for title, measure in measures(own).items():
                summaries[title].append(measure(weights))
            numbers = numbers_of(weights, torch.float32)
            overviews.append(block_maxima(numbers))
            values, keys = top_k(numbers, self.page_cut.count)
            count = values.shape[1]
            names.append(f"{name}-{head}")
            yield _script(names[-1], values, keys)
        rows, columns = overviews[0].shape
        yield _script(name, np.stack(overviews))
        overview = {"rows": rows, "columns": columns, "chunk": name}
        form = {"form": "top", "count": count, "overview": overview, "heads": names}
        self.facts[key] = {"summaries": summaries, "weights": form}


class _Walks:
    """Vectors of maps as script elements of data, up to a limit, each map and projection once."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, Any] | None] = {}
        """Vectors of each map, by the key of the map; None: not recorded, or left out."""
        self._projections: dict[str, dict[str, Any] | None] = {}
        self._remaining = {"vectors": WALK_BUDGET, "projections": WALK_BUDGET}
        self._left_out = 0

    def add(self, key: str, read: str, own: AttentionMap) -> Iterator[str]:
        """Yield the scripts of a map's vectors, unless written, not recorded, or too large."""
        if key in self.facts:
            return
        self.facts[key] = None
        if own.vectors is None:
            return
        vectors = own.vectors()
        parts = {part: getattr(vectors, part) for part in VECTORS}
        tensors = {part: tensor for part, tensor in parts.items() if tensor is not None}
        stored = yield from self._write("vectors", f"walk-{len(self.facts)}", tensors)
        if stored is None:
            return
        if read not in self._projections:
            name, projections = f"projections-{len(self._projections)}", vectors.projections
            self._projections[read] = yield from self._write("projections", name, projections)
        self.facts[key] = stored | {
            "projections": self._projections[read],
            "projected": list(vectors.projections),
            "score": vectors.score_text(has_bias="bias" in own.facts),
            "weight": vectors.choice_text(),
            "formula": asdict(vectors.formula),
        }

    @property
    def note(self) -> str:
        """Note on the page about vectors that are left out; empty if there are none."""
        if not self._left_out:
            return ""
        return (
            f"To keep this page small, numbers of the view walk are left out {self._left_out} "
            "times: show fewer inputs."
        )

    def _write(
        self, budget: str, name: str, tensors: Mapping[str, Tensor]
    ) -> Generator[str, None, dict[str, Any] | None]:
        """Yield the script of tensors; return their shapes and chunk, None if they do not fit."""
        size = sum(4 * tensor.numel() for tensor in tensors.values())
        if size > self._remaining[budget]:
            self._left_out += 1
        if size == 0 or size > self._remaining[budget]:
            return None
        self._remaining[budget] -= size
        yield _script(name, *(numbers_of(tensor, torch.float32) for tensor in tensors.values()))
        shapes = {part: list(tensor.shape) for part, tensor in tensors.items()}
        return {"tensors": shapes, "chunk": name}


def _script(name: str, *arrays: NDArray[Any]) -> str:
    packed = zlib.compress(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), 6)
    content = base64.b64encode(packed).decode()
    kind = 'type="application/octet-stream" class="chunk"'
    return f'<script {kind} id="chunk-{name}">{content}</script>\n'


def _sample_to_json(sample_maps: SampleMaps, reads: list[dict[str, Any]]) -> dict[str, Any]:
    sample = sample_maps.sample
    return {
        "title": sample.title,
        "axes": msgspec.to_builtins(sample.axes),
        "reads": reads,
        "pictures": {name: _picture_to_json(picture) for name, picture in sample.pictures.items()},
        "steps": msgspec.to_builtins(sample.steps),
    }


def _picture_to_json(picture: Picture) -> dict[str, Any]:
    """Return the fields of a picture, with its pixels as the URL of a PNG."""
    fields = msgspec.to_builtins(picture, enc_hook=lambda _: None)
    if isinstance(picture, Image):
        height, width = picture.pixels.shape[:2]
        del fields["pixels"], fields["original"]
        return fields | {"url": _url(picture.pixels), "width": width, "height": height}
    if isinstance(picture, Sound):
        low, high = float(picture.bands.min()), float(picture.bands.max())
        # Loud is dark, low is below.
        shades = 255 * (1 - (picture.bands[::-1] - low) / max(high - low, 1e-9))
        del fields["bands"], fields["begin"]
        return fields | {"url": _url(shades.astype(np.uint8))}
    return fields


def _url(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
