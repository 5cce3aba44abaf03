"""Captures on disk: one safetensors file, with an index of its tensors as JSON in the header.

    "maps/0"             values (head, query, key) of a map; several outputs may share it
    "vectors/0/queries"  vectors of a map, if they were recorded (regard.look.vectors)
    "projections/READ/query"  weights of its projections
    "pictures/0/image"   pixels, or the bands of a sound
    __metadata__         {"format": "regard capture", "version": "5", "index": JSON of samples,
                         axes, maps, steps}

The file contains labels and numbers, no code.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.errors import UserError
from regard.look.arrays import numbers_of
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import Image, Sample
from regard.look.vectors import ReadFormula, ReadVectors
from regard.system.files import check_file
from regard.system.writing import write_atomically

_FORMAT, _VERSION = "regard capture", "5"


class _Index(msgspec.Struct):
    """Index of a file; samples: fields of `Sample`, and "maps"."""

    title: str
    model: str
    samples: list[dict[str, Any]]


def save_capture(
    path: Path, title: str, model: str, samples: Sequence[SampleMaps], *, dtype: torch.dtype | None
) -> None:
    """Write samples with their maps; dtype: as of `Capture.save`."""
    if dtype is None:
        has_vectors = any(own.vectors for sample_maps in samples for own in sample_maps.maps)
        dtype = torch.float32 if has_vectors else torch.float16
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tensors: dict[str, Tensor] = {}
    stored: dict[str, dict[str, Any]] = {}
    index = _Index(title=title, model=model, samples=[])
    for number, sample_maps in enumerate(samples):
        sample, pictures, maps = sample_maps.sample, {}, []
        for name, one in sample.pictures.items():
            picture = msgspec.structs.replace(one, original=None) if isinstance(one, Image) else one

            def keep(array: np.ndarray, tensor: str = f"pictures/{number}/{name}") -> str:
                tensors[tensor] = torch.from_numpy(np.ascontiguousarray(array))
                return tensor

            pictures[name] = msgspec.to_builtins(picture, enc_hook=keep)
        for own in sample_maps.maps:
            if own.key not in stored:
                name = f"maps/{len(stored)}"
                tensors[name] = _to_tensor(own.weights, dtype)
                vectors = _vectors_to_json(own, f"vectors/{len(stored)}", tensors, wide)
                stored[own.key] = {"tensor": name, "vectors": vectors}
            maps.append(own.metadata() | stored[own.key])
        index.samples.append(sample.metadata() | {"pictures": pictures, "maps": maps})
    content = msgspec.json.encode(index).decode()
    metadata = {"format": _FORMAT, "version": _VERSION, "index": content}
    write_atomically(path, save(tensors, metadata))


def open_capture(path: Path) -> tuple[str, str, list[SampleMaps]]:
    """Return the title, model and samples of a file; maps are loaded on access."""
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a capture: {error}") from error
    if (metadata.get("format"), metadata.get("version")) != (_FORMAT, _VERSION):
        raise UserError(
            f"{path} is not a capture of version {_VERSION}: its format is "
            f"{metadata.get('format')!r}, version {metadata.get('version')}; record it again"
        )
    try:
        index = msgspec.json.decode(metadata["index"], type=_Index)
        samples = [_sample_maps(path, entry) for entry in index.samples]
    except (KeyError, ValueError, SafetensorError) as error:  # msgspec's errors are ValueErrors
        raise UserError(f"{path} is damaged: {error}") from error
    return index.title, index.model, samples


def _vectors_to_json(
    own: AttentionMap, folder: str, tensors: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Any] | None:
    """Return the folder and the formula of the vectors of a map, and add them to the tensors."""
    if own.vectors is None:
        return None
    vectors = own.vectors()
    for part, tensor in vectors.tensors().items():
        tensors[f"{folder}/{part}"] = _to_tensor(tensor, dtype)
    for part, projection in vectors.projections.items():
        tensors[f"projections/{own.name}/{part}"] = _to_tensor(projection, dtype)
    return {"folder": folder, "formula": asdict(vectors.formula)}


def _to_tensor(values: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(numbers_of(values, dtype).copy())


def _sample_maps(path: Path, entry: dict[str, Any]) -> SampleMaps:
    def load_array(_: Any, name: Any) -> np.ndarray:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    def load_head(tensor: str, head: int) -> Tensor:
        with safe_open(path, framework="pt") as file:
            return file.get_slice(tensor)[head]

    sample = msgspec.convert(entry, Sample, dec_hook=load_array)
    maps = []
    for fields in entry["maps"]:
        vectors = fields["vectors"]
        numbers: dict[str, Any] = {"head": partial(load_head, fields["tensor"]), "vectors": None}
        if vectors is not None:
            formula = msgspec.convert(vectors["formula"], ReadFormula)
            folder, read = vectors["folder"], fields["name"]
            numbers["vectors"] = partial(_load_vectors, path, folder, read, formula)
        maps.append(msgspec.convert(fields | numbers, AttentionMap))
    return SampleMaps(sample=sample, maps=tuple(maps))


def _load_vectors(path: Path, folder: str, read: str, formula: ReadFormula) -> ReadVectors:
    parts, projections = {}, {}
    prefix = f"projections/{read}/"
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # no mapping
            if name.startswith(f"{folder}/"):
                parts[name.removeprefix(f"{folder}/")] = file.get_tensor(name)
            elif name.startswith(prefix):
                projections[name.removeprefix(prefix)] = file.get_tensor(name)
    return ReadVectors(**parts, projections=projections, formula=formula)
