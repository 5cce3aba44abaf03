"""Captures on disk: one safetensors file, whose header says in JSON what its tensors are.

    "maps/0"             numbers (head, query, key) of a map; several answers may share one
    "pictures/0/image"   pixels, or the bands of a sound
    __metadata__         {"format": "regard capture", "version": "1", "index": JSON of scenes, axes, maps, steps}

Nothing of it is code: labels and numbers. It is written head by head under another name, and renamed when it is whole.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError
from regard.look.map import Map, Seen
from regard.look.names import KINDS
from regard.look.recording_file import DTYPES, numbers_of
from regard.look.scene import Alternative, Axis, Beam, Box, Event, Image, Picture, Plane, Scene, Sound, Step, Track

__all__ = ["open_capture", "save_capture"]

_FORMAT, _VERSION = "regard capture", 1
_FLOATS = {name: dtype for dtype, name in DTYPES.items()}


class _Part(NamedTuple):
    """A tensor of the file: its kind and shape, and the arrays that make it up, one after the other."""

    dtype: str
    shape: tuple[int, ...]
    arrays: Callable[[], Iterable[np.ndarray]]


def save_capture(path: Path, title: str, model: str, scenes: Sequence[Seen], *, dtype: torch.dtype) -> None:
    """Write scenes with their maps. The file is there when it is whole; what was there is replaced then."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, but is {dtype}")
    parts: dict[str, _Part] = {}
    names: dict[str, str] = {}
    plain = []
    for number, seen in enumerate(scenes):
        maps = []
        for one in seen.maps:
            if one.key not in names:
                names[one.key] = f"maps/{len(names)}"
                shape = len(one.heads), len(seen.queries(one)), len(seen.keys(one))
                parts[names[one.key]] = _Part(DTYPES[dtype], shape, lambda one=one: _heads_of(one, dtype))
            maps.append(_plain_map(one) | {"tensor": names[one.key]})
        pictures = {}
        for name, picture in seen.scene.pictures.items():
            pictures[name], array = _plain_picture(picture)
            if array is not None:
                tensor = f"pictures/{number}/{name}"
                pictures[name]["tensor"] = tensor
                kind = "U8" if array.dtype == np.uint8 else "F32"
                parts[tensor] = _Part(kind, array.shape, lambda array=array: [array])
        axes = {name: asdict(axis) for name, axis in seen.scene.axes.items()}
        steps = [asdict(step) for step in seen.scene.steps]
        plain.append({"title": seen.scene.title, "axes": axes, "pictures": pictures, "steps": steps, "maps": maps})
    index = {"title": title, "model": model, "scenes": plain}
    _write(path, parts, {"format": _FORMAT, "version": str(_VERSION), "index": json.dumps(index)})


def open_capture(path: Path) -> tuple[str, str, list[Seen]]:
    """Title, model and scenes of a file; numbers are loaded when they are looked at.

    Raises: UserError that names the file and what is wrong with it.
    """
    if not path.is_file():
        raise UserError(f"{path} is no file of a capture: it is {'a folder' if path.is_dir() else 'not there'}")
    try:
        with safe_open(path, framework="numpy") as file:
            facts, tensors = file.metadata() or {}, set(file.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged, or no capture: {error}") from error
    if facts.get("format") != _FORMAT:
        raise UserError(f"{path} is no capture: its header does not say that it is a {_FORMAT!r}")
    if facts.get("version") != str(_VERSION):
        raise UserError(f"{path} has version {facts.get('version')} of the format; this regard reads {_VERSION}")
    try:
        index = json.loads(facts["index"])
        scenes = [_seen(path, scene, tensors) for scene in index["scenes"]]
        title, model = str(index["title"]), str(index["model"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {type(error).__name__} {error}") from error
    if not any(seen.maps for seen in scenes):
        raise UserError(f"{path} holds no reads: there is nothing to look at")
    return title, model, scenes


def _heads_of(one: Map, dtype: torch.dtype) -> Iterable[np.ndarray]:
    for head in range(len(one.heads)):
        yield numbers_of(one.head(head), dtype)


def _plain_map(one: Map) -> dict[str, Any]:
    names = ("key", "name", "kind", "layer", "direction", "measure", "queries", "keys", "heads", "facts")
    return {name: getattr(one, name) for name in names}


def _plain_picture(picture: Picture) -> tuple[dict[str, Any], np.ndarray | None]:
    match picture:
        case Image():
            boxes = [asdict(box) for box in picture.boxes]
            return {"kind": "image", "boxes": boxes}, np.ascontiguousarray(picture.pixels, np.uint8)
        case Sound():
            events = [asdict(event) for event in picture.events]
            bands = np.ascontiguousarray(picture.bands, np.float32)
            return {"kind": "sound", "seconds": picture.seconds, "begin": picture.begin, "events": events}, bands
        case Plane():
            return {"kind": "plane", "unit": picture.unit, "tracks": [asdict(track) for track in picture.tracks]}, None


def _write(path: Path, parts: dict[str, _Part], facts: dict[str, str]) -> None:
    sizes = {"U8": 1, **{name: dtype.itemsize for name, dtype in _FLOATS.items()}}
    header: dict[str, Any] = {"__metadata__": facts}
    start = 0
    for name, part in parts.items():
        stop = start + math.prod(part.shape) * sizes[part.dtype]
        header[name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for part in parts.values():
                for array in part.arrays():
                    file.write(np.ascontiguousarray(array).data)
            if file.tell() != 8 + len(text) + start:
                raise ValueError("a map has not the size of its axes")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _seen(path: Path, scene: dict[str, Any], tensors: set[str]) -> Seen:
    axes = {str(name): _axis(axis) for name, axis in scene["axes"].items()}
    pictures = {str(name): _picture(path, picture) for name, picture in scene["pictures"].items()}
    steps = tuple(_step(step) for step in scene["steps"])
    maps = tuple(_map(path, one, axes, tensors) for one in scene["maps"])
    return Seen(scene=Scene(title=str(scene["title"]), axes=axes, pictures=pictures, steps=steps), maps=maps)


def _map(path: Path, one: dict[str, Any], axes: dict[str, Axis], tensors: set[str]) -> Map:
    tensor = one.pop("tensor")
    if tensor not in tensors:
        raise ValueError(f"tensor {tensor!r} is missing")
    if one["kind"] not in KINDS or one["queries"] not in axes or one["keys"] not in axes:
        raise ValueError(f"no read: {one}")
    heads = tuple(map(str, one.pop("heads")))
    expected = [len(heads), len(axes[one["queries"]]), len(axes[one["keys"]])]
    with safe_open(path, framework="pt") as file:
        got = list(file.get_slice(tensor).get_shape())
    if got != expected:
        raise ValueError(f"{tensor} must be {expected} (heads, queries, keys), but is {got}")

    def load(head: int) -> Tensor:
        with safe_open(path, framework="pt") as file:
            return file.get_slice(tensor)[head]

    return Map(**one, heads=heads, load=load)


def _axis(axis: dict[str, Any]) -> Axis:
    places = tuple(None if place is None else tuple(map(float, place)) for place in axis["places"])
    return Axis(labels=tuple(map(str, axis["labels"])), what=axis["what"], on=axis["on"], places=places)


def _picture(path: Path, picture: dict[str, Any]) -> Picture:
    if picture["kind"] == "plane":
        return Plane(unit=picture["unit"], tracks=tuple(_track(track) for track in picture["tracks"]))
    with safe_open(path, framework="numpy") as file:
        array = file.get_tensor(picture["tensor"])
    if picture["kind"] == "image":
        return Image(pixels=array, boxes=tuple(Box(**box | {"place": tuple(box["place"])}) for box in picture["boxes"]))
    if picture["kind"] != "sound":
        raise ValueError(f"no picture: {picture['kind']!r}")
    events = tuple(Event(**event) for event in picture["events"])
    return Sound(bands=array, seconds=picture["seconds"], begin=picture.get("begin", 0.0), events=events)


def _track(track: dict[str, Any]) -> Track:
    seen, ahead = (tuple((float(x), float(y)) for x, y in track[name]) for name in ("seen", "ahead"))
    return Track(label=track["label"], seen=seen, ahead=ahead)


def _step(step: dict[str, Any]) -> Step:
    return Step(
        token=step["token"],
        probability=step["probability"],
        alternatives=tuple(Alternative(**one) for one in step["alternatives"]),
        beams=tuple(Beam(**one) for one in step["beams"]),
    )
