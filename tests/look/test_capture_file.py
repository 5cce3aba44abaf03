"""Captures on disk: saved captures are restored, and damage is named."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.sample import Axis
from tests.look.maps import capture_of, map_of, picture_of_each_kind, sample_maps_of
from tests.look.toys import SOURCES, capture_sources, small


@pytest.fixture(scope="module")
def capture() -> Capture:
    return capture_sources(small(), SOURCES, beam=3, n_best=2)


@pytest.fixture
def saved(capture: Capture, tmp_path: Path) -> Path:
    return capture.save(tmp_path / "a.safetensors")


def changed(path: Path, change) -> None:
    """Change the header of a file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    index = json.loads(header["__metadata__"].get("index", "{}"))
    change(header, index)
    if "index" in header["__metadata__"]:
        header["__metadata__"]["index"] = json.dumps(index)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def first_map(index: dict) -> dict:
    return index["samples"][0]["maps"][0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_saved_capture_is_restored(capture, tmp_path, dtype):
    opened = Capture.open(capture.save(tmp_path / "a.safetensors", dtype=dtype))
    assert (opened.title, opened.model) == (capture.title, capture.model)
    for before, after in zip(capture, opened, strict=True):
        assert after.sample.axes == before.sample.axes
        assert after.sample.title == before.sample.title
        assert after.sample.steps == before.sample.steps
        for old_map, new_map in zip(before.maps, after.maps, strict=True):
            assert torch.equal(new_map.weights, old_map.weights.to(dtype))
            assert new_map.metadata() == old_map.metadata()


def test_pictures_are_restored(tmp_path):
    pictures = picture_of_each_kind()
    track = Axis(labels=("x",), kind="track", picture="plane", places=((0.0,),))
    axes = {"output": Axis.grid(1, 2, picture="image"), "source": track}
    capture = capture_of(sample_maps_of("t", axes, map_of(torch.ones(1, 2, 1)), **pictures))
    sample = Capture.open(capture.save(tmp_path / "a.safetensors"))[0].sample
    assert sample.axes == axes
    assert np.array_equal(sample.pictures["image"].pixels, pictures["image"].pixels)
    assert sample.pictures["image"].boxes == pictures["image"].boxes
    assert np.array_equal(sample.pictures["sound"].bands, pictures["sound"].bands)
    assert sample.pictures["sound"].events == pictures["sound"].events
    assert [sample.pictures[name].labels for name in ("image", "sound")] == [("a", "c"), ("b", "d")]
    assert sample.pictures["plane"] == pictures["plane"]


def test_a_failure_leaves_nothing(capture, tmp_path):
    with pytest.raises(UserError, match=r"must end in one of .html, .safetensors, .png"):
        capture.save(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"the folder .* does not exist"):
        capture.save(tmp_path / "b" / "a.html")
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "is not a capture of version 5: .* version 1; record it again": (
        lambda header, _: header["__metadata__"].update(version="1")
    ),
    r"damaged: Expected `str`, got `null` - at `\$.title`": (
        lambda _, index: index.update(title=None)
    ),
    "damaged: Invalid enum value 'os.system'": (
        lambda _, index: first_map(index).update(kind="os.system")
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damage_of_a_capture_is_named(saved, message):
    changed(saved, DAMAGES[message])
    with pytest.raises(UserError, match=message) as error:
        Capture.open(saved)
    assert str(saved) in str(error.value)


def test_a_truncated_file_and_no_file_are_named(saved, tmp_path):
    saved.write_bytes(saved.read_bytes()[:-10])
    with pytest.raises(UserError, match="is damaged or not a capture"):
        Capture.open(saved)
    with pytest.raises(UserError, match="no such file"):
        Capture.open(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(UserError, match="is damaged or not a capture"):
        Capture.open(tmp_path / "text.safetensors")


def test_an_opened_capture_has_no_calls(saved):
    with pytest.raises(ValueError, match="has maps, but no recording"):
        _ = Capture.open(saved).recording
