"""Folders of Transformers: config.json, and tensors in one safetensors file or several shards.

Nothing that a file names is imported, and pickles are not opened.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError
from regard.system.files import read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ORIGINALS = "originals.safetensors"
"""Artifact of an imported run: tensors of which `Family.fold` made others."""
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "tf_model.h5", "flax_model.msgpack")
_FLOATS = ("F32", "F16", "BF16")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Raises: UserError if there is none that can be used."""
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder}: holds an adapter (adapter_config.json), expected a whole model: merge it "
            f"first (peft: model.merge_and_unload())"
        )
    path = folder / CONFIG
    if not path.exists():
        raise UserError(f"{folder}: has no {CONFIG}, so it is not a folder of Transformers")
    config = read_json(path, dict[str, Any])
    if "architecture" in config:
        config.setdefault("model_type", "timm")
    if config.get("quantization_config"):
        given = config["quantization_config"]
        method = given.get("quant_method", given) if isinstance(given, dict) else given
        raise UserError(
            f"{path}: quantization_config is that of quantized weights ({method}), which cannot "
            f"be read; import the model that they were made of"
        )
    if (folder / "preprocessor_config.json").exists():
        config["preprocessor"] = read_json(folder / "preprocessor_config.json", dict[str, Any])
    return config


class TensorFiles(Mapping[str, Tensor]):
    """Tensors of a folder by name, as float32, each read when it is used."""

    def __init__(self, folder: Path, architecture: str | None) -> None:
        self.paths, files = _find_files(folder, architecture), dict[str, Any]()
        for path in self.paths:
            try:
                files[path.name] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path}: damaged or missing: {error}") from error
        self._files = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118
        parts = {name: file.get_slice(name) for name, file in self._files.items()}
        self.shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
        self.kinds = {name: part.get_dtype() for name, part in parts.items()}

    def __getitem__(self, name: str) -> Tensor:
        kind = self.kinds[name]
        if kind not in _FLOATS:
            raise UserError(f"{name} is {kind}, expected F32, F16 or BF16")
        return self._files[name].get_tensor(name).to(torch.float32)

    def __iter__(self) -> Any:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file with indentation."""
    path.write_bytes(to_bytes(content))


def to_bytes(content: Any) -> bytes:
    """Return JSON with indentation."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _find_files(folder: Path, architecture: str | None) -> list[Path]:
    """Return the files of the tensors of a folder. Raises: UserError if one is missing.

    architecture: class of Transformers that reads pickles; None: they hold tensors by name.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX, dict[str, Any]).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise UserError(f"{folder / INDEX}: weight_map must hold the file of each tensor")
        names = sorted({str(name) for name in index.values()})
        for name in names:
            if Path(name).name != name:
                raise UserError(f"{folder / INDEX}: names a file outside the folder: {name!r}")
            if not (folder / name).is_file():
                raise UserError(f"{folder / name}: no such file, which {INDEX} names")
        return [folder / name for name in names]
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        raise UserError(f"{folder}: has no {WEIGHTS}")
    command = (
        f"from transformers import {architecture} as M; "
        f"M.from_pretrained('{folder}').save_pretrained('{folder}')"
    )
    if architecture is None:
        command = (
            "import torch; from safetensors.torch import save_file; "
            f"save_file(torch.load('{folder / pickles[0]}'), '{folder / WEIGHTS}')"
        )
    raise UserError(
        f"{folder}: has no {WEIGHTS}, only {pickles[0]}, which may run code and is not read; "
        f'convert it: python -c "{command}"'
    )
