"""Captures on disk: one safetensors file, whose header says in JSON what its tensors are.

    "maps/0"             numbers (head, query, key) of a map; several answers may share one
    "pictures/0/image"   pixels, or the bands of a sound
    __metadata__         {"format": "regard capture", "version": "1", "index": JSON of scenes, axes, maps, steps}

Nothing of it is code: labels and numbers. It is written head by head under another name, and renamed when it is whole.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError
from regard.files import check_file, parse_json, written_whole
from regard.look.map import Map, Seen
from regard.look.names import KINDS
from regard.look.plain import made
from regard.look.recording_file import DTYPES, numbers_of
from regard.look.scene import Axis, Box, Event, Image, Picture, Plane, Scene, Sound, Step, Track

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
    check_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            tensors = {name: _Stored.of(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged, or no capture: {error}") from error
    if facts.get("format") != _FORMAT:
        raise UserError(f"{path} is no capture: its header does not say that it is a {_FORMAT!r}")
    if facts.get("version") != str(_VERSION):
        raise UserError(f"{path} has version {facts.get('version')} of the format; this regard reads {_VERSION}")
    if "index" not in facts:
        raise UserError(f"{path} is damaged: its header has no index")
    index = parse_json(facts["index"], origin=str(path))
    try:
        found = made(_Index, index, "index")
        scenes = [_seen(path, scene, tensors) for scene in found.scenes]
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not any(seen.maps for seen in scenes):
        raise UserError(f"{path} holds no reads: there is nothing to look at")
    return found.title, found.model, scenes


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
    with written_whole(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts.values():
            for array in part.arrays():
                file.write(np.ascontiguousarray(array).data)
        if file.tell() != 8 + len(text) + start:
            raise ValueError("a map has not the size of its axes")


class _Stored(NamedTuple):
    """A tensor of an opened file."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, found: Any) -> "_Stored":
        return cls(found.get_dtype(), tuple(found.get_shape()))


@dataclass(frozen=True, kw_only=True)
class _StoredMap:
    """A map as the index has it."""

    key: str
    name: str
    kind: str
    layer: int
    direction: str = ""
    measure: str = "weight"
    queries: str
    keys: str
    heads: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)
    tensor: str


@dataclass(frozen=True, kw_only=True)
class _StoredPicture:
    """A picture as the index has it, of whichever kind."""

    kind: str
    tensor: str = ""
    boxes: tuple[Box, ...] = ()
    events: tuple[Event, ...] = ()
    tracks: tuple[Track, ...] = ()
    seconds: float = 0.0
    begin: float = 0.0
    unit: str = "m"


@dataclass(frozen=True, kw_only=True)
class _StoredScene:
    """A scene as the index has it."""

    title: str
    axes: dict[str, Axis]
    pictures: dict[str, _StoredPicture]
    steps: tuple[Step, ...]
    maps: tuple[_StoredMap, ...]


@dataclass(frozen=True, kw_only=True)
class _Index:
    """All that the header says beside the tensors."""

    title: str
    model: str
    scenes: tuple[_StoredScene, ...]


def _seen(path: Path, scene: _StoredScene, tensors: Mapping[str, _Stored]) -> Seen:
    axes = scene.axes
    pictures = {name: _picture(path, picture, tensors) for name, picture in scene.pictures.items()}
    for name, axis in axes.items():
        _check_places(name, axis, pictures)
    maps = tuple(_map(path, one, axes, tensors) for one in scene.maps)
    return Seen(scene=Scene(title=scene.title, axes=axes, pictures=pictures, steps=scene.steps), maps=maps)


def _check_places(name: str, axis: Axis, pictures: Mapping[str, Picture]) -> None:
    """Raise ValueError unless the places of an axis are such as its picture has."""
    if not axis.on:
        return
    if axis.on not in pictures:
        raise ValueError(f"the axis {name!r} lies on {axis.on!r}, which is no picture of its scene")
    picture = pictures[axis.on]
    size = {Image: 4, Sound: 2, Plane: 1}[type(picture)]
    if not all(place is None or len(place) == size for place in axis.places):
        raise ValueError(f"the places of the axis {name!r} must be {size} numbers each")
    if isinstance(picture, Plane) and not all(
        place is None or (place[0].is_integer() and 0 <= place[0] < len(picture.tracks)) for place in axis.places
    ):
        raise ValueError(f"the places of the axis {name!r} must be numbers of its {len(picture.tracks)} tracks")


def _map(path: Path, one: _StoredMap, axes: Mapping[str, Axis], tensors: Mapping[str, _Stored]) -> Map:
    kind = next((kind for kind in KINDS if kind == one.kind), None)
    if kind is None or one.queries not in axes or one.keys not in axes or one.layer < 1:
        raise ValueError(f"no read: {one.kind!r} of {one.queries!r} and {one.keys!r} in layer {one.layer}")
    expected = len(one.heads), len(axes[one.queries]), len(axes[one.keys])
    found = _tensor(one.tensor, tensors, tuple(_FLOATS))
    if found.shape != expected or 0 in expected:
        raise ValueError(f"{one.tensor} must be {list(expected)} (heads, queries, keys), but is {list(found.shape)}")

    def load(head: int) -> Tensor:
        with safe_open(path, framework="pt") as file:
            numbers = file.get_slice(one.tensor)[head]
        if not numbers.isfinite().all():
            raise UserError(f"{path} is damaged: {one.tensor} holds numbers that are not finite")
        return numbers

    settings = {entry.name: getattr(one, entry.name) for entry in fields(one)}
    del settings["tensor"]
    return Map(**settings | {"kind": kind}, load=load)


def _picture(path: Path, picture: _StoredPicture, tensors: Mapping[str, _Stored]) -> Picture:
    if picture.kind == "plane":
        return Plane(unit=picture.unit, tracks=picture.tracks)
    if picture.kind not in ("image", "sound"):
        raise ValueError(f"no picture: {picture.kind!r}")
    is_image = picture.kind == "image"
    found = _tensor(picture.tensor, tensors, ("U8",) if is_image else ("F32",))
    is_grid = len(found.shape) == 2 or (is_image and len(found.shape) == 3 and found.shape[2] == 3)
    if not is_grid or 0 in found.shape:
        raise ValueError(f"{picture.tensor} is no {picture.kind}: its shape is {list(found.shape)}")
    with safe_open(path, framework="numpy") as file:
        array = file.get_tensor(picture.tensor)
    if is_image:
        return Image(pixels=array, boxes=picture.boxes)
    if picture.seconds <= 0 or not np.isfinite(array).all():
        raise ValueError(f"{picture.tensor} is no sound: {picture.seconds} seconds, or numbers that are not finite")
    return Sound(bands=array, seconds=picture.seconds, begin=picture.begin, events=picture.events)


def _tensor(name: str, tensors: Mapping[str, _Stored], dtypes: Sequence[str]) -> _Stored:
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    if tensors[name].dtype not in dtypes:
        raise ValueError(f"{name} must be of {' or '.join(dtypes)}, but is of {tensors[name].dtype}")
    return tensors[name]
