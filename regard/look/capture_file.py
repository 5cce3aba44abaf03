"""Captures on disk: one safetensors file, with an index of its tensors as JSON in the header.

    "maps/0"             values (head, query, key) of a map; several outputs may share it
    "vectors/0/queries"  vectors of a map, if they were recorded (regard.look.vectors), in float32
    or float64 "projections/READ/query"  weights of its projections
    "pictures/0/image"   pixels, or the bands of a sound
    __metadata__         {"format": "regard capture", "version": "3", "index": JSON of samples,
                         axes, maps, steps}

The file contains labels and numbers, no code. It is written head by head under another name, and
renamed when complete.
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
from regard.layers.read import Kind
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.recording_file import DTYPES, numbers_of
from regard.look.sample import (
    Axis,
    DecodingStep,
    DetectedBox,
    DetectedEvent,
    Image,
    Picture,
    Plane,
    Sample,
    Sound,
    Track,
)
from regard.look.vectors import VECTORS, ReadFormula, ReadVectors
from regard.settings.from_json import parse_dataclass
from regard.system.files import check_file, parse_json
from regard.system.writing import open_atomically

_FORMAT, _VERSION = "regard capture", 3
_PROJECTIONS = {
    "query": "queries item",
    "key": "keys source",
    "value": "values value_source",
    "output": "result outputs",
}
"""Axes of each projection; those of all heads are stacked."""
_OPTIONAL = ("items", "source", "result")
_FLOATS = {name: dtype for dtype, name in DTYPES.items()}


class _TensorEntry(NamedTuple):
    """Tensor of the file: its dtype and shape, and the arrays that it is the concatenation of."""

    dtype: str
    shape: tuple[int, ...]
    arrays: Callable[[], Iterable[np.ndarray]]


def save_capture(
    path: Path, title: str, model: str, samples: Sequence[SampleMaps], *, dtype: torch.dtype | None
) -> None:
    """Write samples with their maps. An existing file is replaced atomically.

    dtype: of the weights; None: float16, or float32 if vectors were recorded.
    """
    has_vectors = any(
        attention_map.vectors for sample_maps in samples for attention_map in sample_maps.maps
    )
    if dtype is None:
        dtype = torch.float32 if has_vectors else torch.float16
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    entries: dict[str, _TensorEntry] = {}
    names: dict[str, str] = {}
    vectors: dict[str, dict[str, Any] | None] = {}
    plain = []
    for number, sample_maps in enumerate(samples):
        maps = []
        for attention_map in sample_maps.maps:
            key = attention_map.key
            if key not in names:
                names[key] = f"maps/{len(names)}"
                num_queries, num_keys = (
                    len(sample_maps.queries(attention_map)),
                    len(sample_maps.keys(attention_map)),
                )
                entries[names[key]] = _TensorEntry(
                    DTYPES[dtype],
                    (len(attention_map.heads), num_queries, num_keys),
                    lambda attention_map=attention_map: _heads_of(attention_map, dtype),
                )
                vectors[key] = _vectors_to_json(
                    attention_map, f"vectors/{len(vectors)}", entries, dtype
                )
            maps.append(
                _map_to_json(attention_map) | {"tensor": names[key], "vectors": vectors[key]}
            )
        pictures = {}
        for name, picture in sample_maps.sample.pictures.items():
            pictures[name], array = _picture_to_json(picture)
            if array is not None:
                tensor = f"pictures/{number}/{name}"
                pictures[name]["tensor"] = tensor
                kind = "U8" if array.dtype == np.uint8 else "F32"
                entries[tensor] = _TensorEntry(kind, array.shape, lambda array=array: [array])
        axes = {name: asdict(axis) for name, axis in sample_maps.sample.axes.items()}
        steps = [asdict(step) for step in sample_maps.sample.steps]
        plain.append(
            {
                "title": sample_maps.sample.title,
                "axes": axes,
                "pictures": pictures,
                "steps": steps,
                "maps": maps,
            }
        )
    index = {"title": title, "model": model, "samples": plain}
    _write(path, entries, {"format": _FORMAT, "version": str(_VERSION), "index": json.dumps(index)})


def open_capture(path: Path) -> tuple[str, str, list[SampleMaps]]:
    """Return the title, model and samples of a file; maps are loaded on access.

    Raises: UserError if the file is damaged or not a capture.
    """
    check_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            tensors = {name: _StoredTensor.of(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a capture: {error}") from error
    if facts.get("format") != _FORMAT:
        raise UserError(f"{path} is not a capture: the format in its header must be {_FORMAT!r}")
    if facts.get("version") != str(_VERSION):
        raise UserError(
            f"{path}: version of the capture format must be {_VERSION}, got "
            f"{facts.get('version')}: record it again"
        )
    if "index" not in facts:
        raise UserError(f"{path} is damaged: its header has no index")
    index = parse_json(facts["index"], origin=str(path))
    try:
        capture = parse_dataclass(_CaptureIndex, index, "index")
        samples = [_sample_maps(path, sample, tensors) for sample in capture.samples]
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not any(sample_maps.maps for sample_maps in samples):
        raise UserError(f"{path} contains no reads: there is nothing to show")
    return capture.title, capture.model, samples


def _heads_of(attention_map: AttentionMap, dtype: torch.dtype) -> Iterable[np.ndarray]:
    for head in range(len(attention_map.heads)):
        yield numbers_of(attention_map.head(head), dtype)


def _map_to_json(attention_map: AttentionMap) -> dict[str, Any]:
    names = (
        "key",
        "name",
        "kind",
        "layer",
        "direction",
        "measure",
        "queries",
        "keys",
        "heads",
        "facts",
    )
    return {name: getattr(attention_map, name) for name in names}


def _vectors_to_json(
    attention_map: AttentionMap, folder: str, entries: dict[str, _TensorEntry], dtype: torch.dtype
) -> dict[str, Any] | None:
    """Add the vectors of a map to the tensors of the file, and return their names."""
    if attention_map.vectors is None:
        return None
    vectors, wide = (
        attention_map.vectors(),
        torch.float64 if dtype == torch.float64 else torch.float32,
    )
    tensors = {part: tensor for part in VECTORS if (tensor := getattr(vectors, part)) is not None}
    names = {part: f"{folder}/{part}" for part in tensors}
    projections = {part: f"projections/{attention_map.name}/{part}" for part in vectors.projections}
    parts = [*((names[part], tensor) for part, tensor in tensors.items())]
    parts += [(projections[part], tensor) for part, tensor in vectors.projections.items()]
    for name, tensor in parts:
        array = numbers_of(tensor, wide)
        entries.setdefault(
            name, _TensorEntry(DTYPES[wide], array.shape, lambda array=array: [array])
        )
    return {"tensors": names, "projections": projections, "formula": asdict(vectors.formula)}


def _picture_to_json(picture: Picture) -> tuple[dict[str, Any], np.ndarray | None]:
    match picture:
        case Image():
            boxes = [asdict(box) for box in picture.boxes]
            facts = {"kind": "image", "labels": picture.labels, "boxes": boxes}
            return facts, np.ascontiguousarray(picture.pixels, np.uint8)
        case Sound():
            events = [asdict(event) for event in picture.events]
            bands = np.ascontiguousarray(picture.bands, np.float32)
            return {
                "kind": "sound",
                "seconds": picture.seconds,
                "begin": picture.begin,
                "hertz": picture.hertz,
                "labels": picture.labels,
                "events": events,
            }, bands
        case Plane():
            return {
                "kind": "plane",
                "unit": picture.unit,
                "tracks": [asdict(track) for track in picture.tracks],
            }, None


def _write(path: Path, entries: dict[str, _TensorEntry], facts: dict[str, str]) -> None:
    sizes = {"U8": 1, **{name: dtype.itemsize for name, dtype in _FLOATS.items()}}
    header: dict[str, Any] = {"__metadata__": facts}
    start = 0
    for name, entry in entries.items():
        stop = start + math.prod(entry.shape) * sizes[entry.dtype]
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open_atomically(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries.values():
            for array in entry.arrays():
                file.write(np.ascontiguousarray(array).data)
        if file.tell() != 8 + len(text) + start:
            raise ValueError("the shape of a map does not match the lengths of its axes")


class _StoredTensor(NamedTuple):
    """Dtype and shape of a tensor of an opened file."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor_slice: Any) -> "_StoredTensor":
        return cls(tensor_slice.get_dtype(), tuple(tensor_slice.get_shape()))


@dataclass(frozen=True, kw_only=True)
class _StoredVectors:
    """Vectors of a map in the index: names of their tensors."""

    tensors: dict[str, str]
    projections: dict[str, str]
    formula: ReadFormula


@dataclass(frozen=True, kw_only=True)
class _StoredMap:
    """Map in the index."""

    key: str
    name: str
    kind: Kind
    layer: int
    direction: str = ""
    measure: str = "weight"
    queries: str
    keys: str
    heads: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)
    tensor: str
    vectors: _StoredVectors | None = None


@dataclass(frozen=True, kw_only=True)
class _StoredPicture:
    """Picture of any kind in the index."""

    kind: str
    tensor: str = ""
    labels: tuple[str, ...] = ()
    boxes: tuple[DetectedBox, ...] = ()
    events: tuple[DetectedEvent, ...] = ()
    tracks: tuple[Track, ...] = ()
    seconds: float = 0.0
    begin: float = 0.0
    hertz: float = 0.0
    unit: str = "m"


@dataclass(frozen=True, kw_only=True)
class _StoredSample:
    """Sample in the index."""

    title: str
    axes: dict[str, Axis]
    pictures: dict[str, _StoredPicture]
    steps: tuple[DecodingStep, ...]
    maps: tuple[_StoredMap, ...]


@dataclass(frozen=True, kw_only=True)
class _CaptureIndex:
    """Index in the header of the file."""

    title: str
    model: str
    samples: tuple[_StoredSample, ...]


def _sample_maps(
    path: Path, sample: _StoredSample, tensors: Mapping[str, _StoredTensor]
) -> SampleMaps:
    axes = sample.axes
    pictures = {name: _picture(path, picture, tensors) for name, picture in sample.pictures.items()}
    for name, axis in axes.items():
        _check_places(name, axis, pictures)
    maps = tuple(_map(path, stored_map, axes, tensors) for stored_map in sample.maps)
    return SampleMaps(
        sample=Sample(title=sample.title, axes=axes, pictures=pictures, steps=sample.steps),
        maps=maps,
    )


def _check_places(name: str, axis: Axis, pictures: Mapping[str, Picture]) -> None:
    """Raise ValueError unless the places of an axis are valid on its picture."""
    if not axis.picture:
        return
    if axis.picture not in pictures:
        raise ValueError(
            f"the picture of the axis {name!r} must be one of the sample's, got {axis.picture!r}"
        )
    picture = pictures[axis.picture]
    size = {Image: 4, Sound: 2, Plane: 1}[type(picture)]
    if not all(place is None or len(place) == size for place in axis.places):
        raise ValueError(f"the places of the axis {name!r} must be {size} numbers each")
    if isinstance(picture, Plane) and not all(
        place is None or (place[0].is_integer() and 0 <= place[0] < len(picture.tracks))
        for place in axis.places
    ):
        raise ValueError(
            f"the places of the axis {name!r} must be indices of its {len(picture.tracks)} tracks"
        )


def _map(
    path: Path,
    stored_map: _StoredMap,
    axes: Mapping[str, Axis],
    tensors: Mapping[str, _StoredTensor],
) -> AttentionMap:
    queries, keys, tensor = stored_map.queries, stored_map.keys, stored_map.tensor
    if queries not in axes or keys not in axes or stored_map.layer < 1:
        raise ValueError(
            f"invalid read: {stored_map.kind!r} of {queries!r} and {keys!r} in layer "
            f"{stored_map.layer}"
        )
    expected = len(stored_map.heads), len(axes[queries]), len(axes[keys])
    shape = _tensor(tensor, tensors, tuple(_FLOATS)).shape
    if shape != expected or 0 in expected:
        raise ValueError(
            f"{tensor} must have the shape (heads, queries, keys) = {list(expected)}, got "
            f"{list(shape)}"
        )

    def load(head: int) -> Tensor:
        with safe_open(path, framework="pt") as file:
            numbers = file.get_slice(tensor)[head]
        if not numbers.isfinite().all():
            raise UserError(f"{path} is damaged: {tensor} contains values that are not finite")
        return numbers

    names = [entry.name for entry in fields(stored_map) if entry.name not in ("tensor", "vectors")]
    settings = {name: getattr(stored_map, name) for name in names}
    vectors = (
        None
        if stored_map.vectors is None
        else _load_vectors(path, stored_map.vectors, expected, tensors)
    )
    return AttentionMap(**settings, load=load, vectors=vectors)


def _load_vectors(
    path: Path,
    stored: _StoredVectors,
    size: tuple[int, int, int],
    tensors: Mapping[str, _StoredTensor],
) -> Callable[[], ReadVectors]:
    """Return a function that loads the vectors of a map of this size (heads, queries, keys).

    Raises: ValueError if a tensor is missing, or their shapes do not fit together.
    """
    missing = VECTORS.keys() - set(_OPTIONAL) - stored.tensors.keys()
    unknown = stored.tensors.keys() - VECTORS.keys()
    if missing or unknown:
        raise ValueError(
            f"vectors must be {', '.join(VECTORS)}, got {', '.join(stored.tensors) or 'none'}"
        )
    axes = dict(zip(("head", "query", "key"), size, strict=True))
    for part, name in stored.tensors.items():
        _check_axes(name, _tensor(name, tensors, tuple(_FLOATS)).shape, VECTORS[part].split(), axes)
    if size[0] % axes["key_head"]:
        raise ValueError(
            f"the heads of keys must divide the {size[0]} heads of queries, got {axes['key_head']}"
        )
    axes |= {"outputs": size[0] * axes["value"], "values": axes["key_head"] * axes["value"]}
    for part, name in stored.projections.items():
        projection, *bias = part.split()
        if projection not in _PROJECTIONS or bias not in ([], ["bias"]):
            raise ValueError(
                f"projections must be {', '.join(_PROJECTIONS)}, with or without bias, got {part!r}"
            )
        expected = _PROJECTIONS[projection].split()[: 1 if bias else 2]
        _check_axes(name, _tensor(name, tensors, tuple(_FLOATS)).shape, expected, axes)
    for stacked, heads in (
        ("queries", size[0]),
        ("keys", axes["key_head"]),
    ):  # a score may map them to other sizes
        if axes.get(stacked, 0) % heads:
            raise ValueError(
                f"projections of {stacked} must be those of {heads} heads, got {axes[stacked]} rows"
            )

    def load() -> ReadVectors:
        with safe_open(path, framework="pt") as file:
            parts = {part: file.get_tensor(name) for part, name in stored.tensors.items()}
            projections = {part: file.get_tensor(name) for part, name in stored.projections.items()}
        for part, numbers in (parts | projections).items():
            is_valid = (numbers < float("inf")) if part == "scores" else ~numbers.isinf()
            if not is_valid.all():
                raise UserError(
                    f"{path} is damaged: {part} of a read contains values that are not finite"
                )
        return ReadVectors(**parts, projections=projections, formula=stored.formula)

    return load


def _check_axes(
    name: str, shape: tuple[int, ...], axes: Sequence[str], sizes: dict[str, int]
) -> None:
    """Add the sizes of a tensor's axes to those known. Raises ValueError if they differ."""
    expected = [sizes.get(axis) for axis in axes]
    if len(shape) != len(axes) or any(
        size not in (None, actual) for size, actual in zip(expected, shape, strict=True)
    ):
        sides = ", ".join(
            axis if size is None else f"{axis} {size}"
            for axis, size in zip(axes, expected, strict=True)
        )
        raise ValueError(f"{name} must have the shape ({sides}), got {list(shape)}")
    sizes.update(zip(axes, shape, strict=True))


def _picture(path: Path, picture: _StoredPicture, tensors: Mapping[str, _StoredTensor]) -> Picture:
    if picture.kind == "plane":
        return Plane(unit=picture.unit, tracks=picture.tracks)
    if picture.kind not in ("image", "sound"):
        raise ValueError(
            f"the kind of a picture must be plane, image or sound, got {picture.kind!r}"
        )
    is_image = picture.kind == "image"
    shape = _tensor(picture.tensor, tensors, ("U8",) if is_image else ("F32",)).shape
    is_grid = len(shape) == 2 or (is_image and len(shape) == 3 and shape[2] == 3)
    if not is_grid or 0 in shape:
        raise ValueError(
            f"{picture.tensor} is not a valid {picture.kind}: its shape is {list(shape)}"
        )
    with safe_open(path, framework="numpy") as file:
        array = file.get_tensor(picture.tensor)
    if is_image:
        return Image(pixels=array, boxes=picture.boxes, labels=picture.labels)
    if picture.seconds <= 0 or not np.isfinite(array).all():
        raise ValueError(
            f"{picture.tensor} is not a valid sound: it has {picture.seconds} seconds, or values "
            f"that are not finite"
        )
    return Sound(
        bands=array,
        seconds=picture.seconds,
        begin=picture.begin,
        events=picture.events,
        labels=picture.labels,
        hertz=picture.hertz,
    )


def _tensor(
    name: str, tensors: Mapping[str, _StoredTensor], dtypes: Sequence[str]
) -> _StoredTensor:
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    if tensors[name].dtype not in dtypes:
        raise ValueError(f"{name} must have dtype {' or '.join(dtypes)}, got {tensors[name].dtype}")
    return tensors[name]
