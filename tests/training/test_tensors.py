"""Tensor files: those of the library, equal for equal tensors."""

import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import UserError
from regard.training.tensors import read_tensors, write_tensors

TENSORS = {
    "b": torch.arange(15, dtype=torch.float32).reshape(3, 5).T,
    "a": torch.tensor([1, -2], dtype=torch.int64),
    "half": torch.tensor([0.5, 3.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 4),
    "one": torch.tensor(2.5, dtype=torch.float64),
}


def test_file_is_read_by_the_library_and_by_read_tensors(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, TENSORS)
    for loaded in (load_file(path), read_tensors(path)):
        assert loaded.keys() == TENSORS.keys()
        for name, value in TENSORS.items():
            assert loaded[name].dtype == value.dtype
            assert torch.equal(loaded[name], value)


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "1", TENSORS, ties={"c": "b"})
    write_tensors(tmp_path / "2", dict(reversed(TENSORS.items())), ties={"c": "b"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 1 << 40) + b"{}"])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"t\.safetensors: damaged"):
        read_tensors(path)
