"""Image files: only named formats are opened; 16 bits are scaled; what cannot be read is named."""

import io
import os
import stat
import subprocess
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from regard.data.config import ImagesConfig
from regard.data.image_files import ImageFiles, read_image
from regard.data.images import read_images
from regard.errors import UserError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def saved(path: Path, pixels: np.ndarray, **options) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.eps", "a.png"])
def test_postscript_starts_no_ghostscript(tmp_path, monkeypatch, name):
    gs = tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    gs.chmod(gs.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what another test may have looked for
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / name).write_bytes(EPS)
    with pytest.raises(UserError, match=rf"{name}: no image that can be read .*none of PNG, JPEG"):
        read_image(tmp_path / name)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / name, arcname=name)
    for source in (tmp_path, tmp_path / "a.tar"):
        with pytest.raises(UserError, match="no image that can be read"):
            ImageFiles.of(source).open(name, "here")
    assert not (tmp_path / "started").exists()
    with Image.open(tmp_path / name) as image, pytest.raises(subprocess.CalledProcessError):  # the trap works
        image.load()
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_formats_that_are_named_are_read_whatever_the_file_is_called(tmp_path, form):
    saved(tmp_path / "a.bin", np.full((3, 5), 77, np.uint8), format=form)
    image = read_image(tmp_path / "a.bin")
    assert image.size == (5, 3)
    assert np.abs(np.asarray(image.convert("L")).astype(int) - 77).max() <= 2


@pytest.mark.parametrize(("name", "dtype"), [("a.png", "<u2"), ("a.tif", "<u2"), ("a.tif", ">u2"), ("a.pgm", "<u2")])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, name, dtype):
    values = np.array([[0, 128, 129, 256, 257, 32768, 65535]], dtype)
    image = read_image(saved(tmp_path / name, values))
    assert np.asarray(image.convert("L")).tolist() == [[0, 0, 1, 1, 1, 128, 255]]


def test_sixteen_bits_give_one_channel(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        saved(tmp_path / str(number) / "a.png", np.full((4, 4), 30000, np.uint16))
    images = read_images(tmp_path, ImagesConfig())
    assert images.pixels.shape == (2, 1, 4, 4)
    assert images.pixels.min() == images.pixels.max() == round(30000 / 257)


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "floating"), (np.int32, "32-bit whole")])
def test_numbers_without_a_scale_are_refused(tmp_path, dtype, kind):
    with pytest.raises(UserError, match=rf"a.tif: holds {kind} numbers"):
        read_image(saved(tmp_path / "a.tif", np.ones((3, 3), dtype)))


def test_animated_image_is_its_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(read_image(tmp_path / "a.gif").convert("L")).max() == 10


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 1), (9000, 9000)])
def test_sizes_are_checked_before_pixels_are_made(tmp_path, size):
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "PNG")
    head = out.getvalue()[12:16] + size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big") + out.getvalue()[24:29]
    content = out.getvalue()[:12] + head + zlib.crc32(head).to_bytes(4, "big") + out.getvalue()[33:]
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=r"a.png: .*pixels"):
        read_image(tmp_path / "a.png")


def test_place_that_names_a_bad_image_is_told(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    cut = saved(tmp_path / "whole.png", np.arange(256, dtype=np.uint8).reshape(16, 16)).read_bytes()[:-30]
    (tmp_path / "cut.png").write_bytes(cut)
    (tmp_path / "text.png").write_text("text")
    for name, problem in (("pipe", "named pipe"), ("cut", "no image that can be read"), ("text", "none of PNG")):
        with pytest.raises(UserError, match=rf"list.csv, line 3: .*{name}.png: .*{problem}"):
            read_image(tmp_path / f"{name}.png", "list.csv, line 3")


def test_last_part_of_a_name_finds_a_member_if_it_is_the_only_one(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, name in enumerate(("x/1.png", "y/1.png", "y/2.png")):
            path = saved(tmp_path / "one.png", np.full((2, 2), number, np.uint8))
            archive.add(path, arcname=name)
    files = ImageFiles.of(tmp_path / "a.tar")
    assert np.asarray(files.open("2.png", "here")).max() == 2
    assert np.asarray(files.open("y/1.png", "here")).max() == 1
    with pytest.raises(UserError, match=r"here: there is no image 1.png in"):
        files.open("1.png", "here")
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:600])
    with pytest.raises(UserError, match=r"a.tar: "):
        ImageFiles.of(tmp_path / "a.tar").open("y/1.png", "here")
