"""Tensor files: readable by the library, equal for equal tensors, refused if any byte is
damaged."""

import os
import random
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import UserError
from regard.system.fingerprints import file_fingerprint
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
    assert write_tensors(path, TENSORS) == file_fingerprint(path)
    for loaded in (load_file(path), read_tensors(path)):
        assert loaded.keys() == TENSORS.keys()
        for name, value in TENSORS.items():
            assert loaded[name].dtype == value.dtype
            assert torch.equal(loaded[name], value)


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "1", TENSORS, ties={"c": "b"})
    write_tensors(tmp_path / "2", dict(reversed(TENSORS.items())), ties={"c": "b"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_file_of_the_library_is_read_without_a_checksum(tmp_path: Path) -> None:
    save_file({"b": TENSORS["b"].contiguous()}, tmp_path / "t.safetensors")
    assert torch.equal(read_tensors(tmp_path / "t.safetensors")["b"], TENSORS["b"])


def test_any_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, TENSORS)
    original, generator = path.read_bytes(), random.Random(1)
    messages = []
    for at in range(len(original)):
        content = bytearray(original)
        content[at] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        try:
            loaded = read_tensors(path)
        except UserError as error:
            messages.append(str(error))
        else:
            assert all(torch.equal(loaded[name], value) for name, value in TENSORS.items())
    assert len(messages) > 0.9 * len(original)
    assert all(str(path) in message for message in messages)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        struct.pack("<Q", 20) + b'{"__metadata__": [1]}',
        struct.pack("<Q", 70)
        + b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0]}',
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"t\.safetensors is damaged or not a safetensors file"):
        read_tensors(path)


def test_pipe_and_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, match in (("pipe", "named pipe"), ("device", "device or socket")):
        with pytest.raises(UserError, match=match):
            read_tensors(tmp_path / name)
