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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from regard.errors import UserError
from regard.look.arrays import numbers_of
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.measures import summaries, with_rollout
from regard.look.page.reduce import SIDE, PageCut, block_maxima, top_k
from regard.look.sample import Image, Picture, Sound

MAX_SAMPLES = 50
"""Largest number of samples of a capture on a page; the first ones are shown."""
WALK_BUDGET = 12_000_000
"""Maximum bytes of the vectors of reads on a page, and of their projections, in float32."""


def text(captures: Sequence[tuple[str, str, Sequence[SampleMaps]]]) -> str:
    """Return the page of captures: the title of each, the name of its model, and its samples."""
    return with_scripts(scripts_of(captures))


def scripts_of(captures: Sequence[tuple[str, str, Sequence[SampleMaps]]]) -> list[str]:
    """Return the elements of data of a page of captures."""
    shown, sizes, left_out = [], {}, 0
    for i, (_, _, samples) in enumerate(captures):
        shown.append([with_rollout(one) for one in samples[:MAX_SAMPLES]])
        left_out += max(0, len(samples) - MAX_SAMPLES)
        for sample_maps in shown[-1]:
            for own in sample_maps.maps:
                queries, keys = sample_maps.queries(own), sample_maps.keys(own)
                sizes[f"{i}/{own.key}"] = len(own.heads), len(queries), len(keys)
    if not sizes:
        raise UserError("there is nothing to show: the captures contain no reads")
    content, numbers = [], _Numbers(PageCut.of(sizes))
    for i, (title, model, _) in enumerate(captures):
        samples_json = []
        for sample_maps in shown[i]:
            reads = []
            for own in sample_maps.maps:
                read = own.metadata() | numbers.add(f"{i}/{own.key}", f"{i}/{own.name}", own)
                del read["key"]
                reads.append(read)
            sample = sample_maps.sample
            pictures = {name: _picture_to_json(one) for name, one in sample.pictures.items()}
            samples_json.append(sample.metadata() | {"reads": reads, "pictures": pictures})
        content.append({"title": title, "model": model, "samples": samples_json})
    notes = numbers.notes()
    if left_out:
        notes.append(f"{left_out} more samples are not shown.")
    data = {"format": "regard page", "version": 4, "captures": content, "note": " ".join(notes)}
    return [*numbers.scripts, json_script("page", data)]


def with_scripts(scripts: Sequence[str]) -> str:
    """Return the viewer with elements of data."""
    html = (files("regard.look.page") / "page.html").read_text(encoding="utf-8")
    before, _, after = html.partition("<!-- data -->")
    return "".join((before, *scripts, after))


def json_script(name: str, data: Any) -> str:
    """Return JSON as an element of a page."""
    # Escaped, so that no label can end the element.
    content = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{content}</script>\n'


def chunk_script(name: str, *arrays: NDArray[Any]) -> str:
    """Return numbers as an element of a page: compressed with zlib, in base64."""
    packed = zlib.compress(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), 6)
    content = base64.b64encode(packed).decode()
    kind = 'type="application/octet-stream" class="chunk"'
    return f'<script {kind} id="chunk-{name}">{content}</script>\n'


class _Numbers:
    """Weights and vectors of maps as script elements; each map and projection is written once."""

    def __init__(self, page_cut: PageCut):
        self.scripts: list[str] = []
        self._page_cut = page_cut
        self._facts: dict[str, dict[str, Any]] = {}
        self._projections: dict[str, dict[str, Any] | None] = {}
        self._remaining = {"vectors": WALK_BUDGET, "projections": WALK_BUDGET}
        self._left_out = 0

    def add(self, key: str, read: str, own: AttentionMap) -> dict[str, Any]:
        """Write the scripts of a map, once; return its summaries and the form of its numbers."""
        if key not in self._facts:
            number = len(self._facts)
            weights = self._weights(str(number), key, own)
            walk = self._walk(number + 1, read, own)
            self._facts[key] = {"summaries": summaries(own), "weights": weights, "walk": walk}
        return self._facts[key]

    def notes(self) -> list[str]:
        """Return notes on the page about numbers that are rounded or left out."""
        notes = []
        if self._page_cut.cut:
            notes.append(
                f"To keep this page small, large maps contain only the {self._page_cut.count} "
                "largest weights of each query, and the largest weight of each of "
                f"{SIDE} x {SIDE} blocks."
            )
        elif self._page_cut.dtype == torch.float16:
            notes.append("To keep this page small, weights are rounded to float16.")
        if self._left_out:
            notes.append(
                f"To keep this page small, numbers of the view walk are left out {self._left_out} "
                "times: show fewer inputs."
            )
        return notes

    def _weights(self, name: str, key: str, own: AttentionMap) -> dict[str, Any]:
        if key not in self._page_cut.cut:
            weights = own.weights
            dtype = torch.float16 if weights.dtype == torch.float16 else self._page_cut.dtype
            self.scripts.append(chunk_script(name, numbers_of(weights, dtype)))
            return {"form": "whole", "dtype": str(dtype).removeprefix("torch."), "chunk": name}
        # Head by head: all heads may not fit into memory.
        overviews, names, count = [], [], 0
        for head in range(len(own.heads)):
            numbers = numbers_of(own.head(head), torch.float32)
            overviews.append(block_maxima(numbers))
            values, keys = top_k(numbers, self._page_cut.count)
            count = values.shape[1]
            names.append(f"{name}-{head}")
            self.scripts.append(chunk_script(names[-1], values, keys))
        rows, columns = overviews[0].shape
        self.scripts.append(chunk_script(name, np.stack(overviews)))
        overview = {"rows": rows, "columns": columns, "chunk": name}
        return {"form": "top", "count": count, "overview": overview, "heads": names}

    def _walk(self, number: int, read: str, own: AttentionMap) -> dict[str, Any] | None:
        """Return the form of the vectors of a map; None if not recorded, or too large."""
        if own.vectors is None:
            return None
        vectors = own.vectors()
        stored = self._write("vectors", f"walk-{number}", vectors.tensors())
        if stored is None:
            return None
        if read not in self._projections:
            name, projections = f"projections-{len(self._projections)}", vectors.projections
            self._projections[read] = self._write("projections", name, projections)
        return stored | {
            "projections": self._projections[read],
            "projected": list(vectors.projections),
            "score": vectors.score_text(has_bias="bias" in own.facts),
            "weight": vectors.choice_text(),
            "formula": asdict(vectors.formula),
        }

    def _write(
        self, budget: str, name: str, tensors: Mapping[str, Tensor]
    ) -> dict[str, Any] | None:
        """Write the script of tensors; return their shapes and chunk, None if they do not fit."""
        size = sum(4 * tensor.numel() for tensor in tensors.values())
        if size > self._remaining[budget]:
            self._left_out += 1
        if size == 0 or size > self._remaining[budget]:
            return None
        self._remaining[budget] -= size
        arrays = [numbers_of(tensor, torch.float32) for tensor in tensors.values()]
        self.scripts.append(chunk_script(name, *arrays))
        shapes = {part: list(tensor.shape) for part, tensor in tensors.items()}
        return {"tensors": shapes, "chunk": name}


def _picture_to_json(picture: Picture) -> dict[str, Any]:
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
