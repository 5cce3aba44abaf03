"""Image files: only supported formats, 16 bits scaled, unreadable files reported."""

import io
import os
import stat
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from regard.data.images.files import FORMATS, decode_image, open_images, prepare_image, read_image
from regard.errors import UserError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def save(path: Path, pixels: np.ndarray, **options) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.eps", "a.png"])
def test_postscript_starts_no_ghostscript(tmp_path, monkeypatch, name):
    gs = tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    gs.chmod(gs.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # reset, as another test may have set it
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / name).write_bytes(EPS)
    with pytest.raises(UserError, match=rf"{name}: not an image of PNG, JPEG"):
        read_image(tmp_path / name)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / name, arcname=name)
    for source in (tmp_path, tmp_path / "a.tar"):
        with pytest.raises(UserError, match="not an image of"):
            open_images(source)(name)
    assert not (tmp_path / "started").exists()
    # Pillow itself starts it.
    with Image.open(tmp_path / name) as image, pytest.raises(subprocess.CalledProcessError):
        image.load()
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_supported_formats_are_recognized_by_content(tmp_path, form):
    save(tmp_path / "a.bin", np.full((3, 5), 77, np.uint8), format=form)
    image = read_image(tmp_path / "a.bin")
    assert image.size == (5, 3)
    assert np.abs(np.asarray(image.convert("L")).astype(int) - 77).max() <= 2


@pytest.mark.parametrize(("name", "dtype"), [("a.png", "<u2"), ("a.tif", "<u2"), ("a.tif", ">u2")])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, name, dtype):
    values = np.array([[0, 128, 129, 256, 257, 32768, 65535]], dtype)
    image = read_image(save(tmp_path / name, values))
    assert np.asarray(image.convert("L")).tolist() == [[0, 0, 1, 1, 1, 128, 255]]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_scale_are_refused(tmp_path, dtype):
    with pytest.raises(UserError, match=r"a.tif: 32-bit pixels have no defined white"):
        read_image(save(tmp_path / "a.tif", np.ones((3, 3), dtype)))


def test_animated_image_is_its_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(read_image(tmp_path / "a.gif").convert("L")).max() == 10


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone.png", "no such file"),
        ("text.png", "not an image of PNG"),
        ("cut.png", "not a readable image .*truncated"),
        ("huge.png", "not a readable image .*decompression bomb"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, monkeypatch, name, problem):
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    whole = save(tmp_path / "huge.png", pixels).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[:-30])
    (tmp_path / "text.png").write_text("text")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 127 if name == "huge.png" else 256)
    with pytest.raises(UserError, match=rf"{name}: {problem}"):
        read_image(tmp_path / name)


def test_images_of_a_tar_have_their_names(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, name in enumerate(("./x/1.png", "y/1.png")):
            path = save(tmp_path / "one.png", np.full((2, 2), number, np.uint8))
            archive.add(path, arcname=name)
    read = open_images(tmp_path / "a.tar")
    assert [np.asarray(read(f"{name}/1.png")).max() for name in "xy"] == [0, 1]
    with pytest.raises(UserError, match=r"a.tar has no file '1.png'"):
        read("1.png")
    with pytest.raises(UserError, match=r"one.png: expected a folder or an uncompressed tar"):
        open_images(tmp_path / "one.png")


@pytest.mark.parametrize("ending", ["png", "tif", "webp", "jpg", "avif"])
def test_images_are_read_upright(tmp_path, ending):
    corners = np.kron(np.array([[0, 80, 160], [40, 120, 240]]), np.ones((16, 16))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / f"a.{ending}", corners, exif=exif, quality=95, lossless=ending == "webp")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(path, arcname=path.name)
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        images = [read_image(path), prepare_image(image, "a")]
    images.append(open_images(tmp_path / "a.tar")(path.name))
    for prepared in images:
        pixels = np.asarray(prepared.convert("L")).astype(int)
        assert pixels.shape == (48, 32)
        assert np.abs(pixels - corners[::-1].T).max() < 12


@pytest.mark.parametrize(
    ("mode", "pixels", "wanted"),
    [
        ("RGBA", [(200, 0, 0, 255), (200, 0, 0, 0)], [(200, 0, 0), (255,) * 3]),
        ("LA", [(10, 255), (10, 0), (55, 102)], [10, 255, 175]),
        ("La", [(10, 255), (0, 0), (22, 102)], [10, 255, 175]),
    ],
)
def test_transparent_pixels_are_white(mode, pixels, wanted):
    image = Image.new(mode, (len(pixels), 1))
    image.putdata(pixels)
    assert list(prepare_image(image, "a").get_flattened_data()) == wanted


@pytest.mark.parametrize(
    ("depth", "pixels", "transparent", "wanted"),
    [
        (1, b"\x40", (0,), [255, 255]),
        (8, b"\xc9\x0c", (0xC9,), [255, 12]),
        (16, b"\xc9\x00\x0c\x00", (0xC900,), [255, 12]),
        (8, b"\xc9\x01\x02\x0c\x03\x04", (0xC9, 1, 2), [255, 255, 255, 12, 3, 4]),
    ],
)
def test_transparent_values_of_png_are_white(depth, pixels, transparent, wanted):
    """A row of two pixels, gray or RGB."""
    header = struct.pack(">2I5B", 2, 1, depth, 2 * (len(transparent) == 3), 0, 0, 0)
    value = struct.pack(f">{len(transparent)}H", *transparent)
    content = b"\x89PNG\r\n\x1a\n"
    data = zlib.compress(b"\0" + pixels)
    for named in (b"IHDR" + header, b"tRNS" + value, b"IDAT" + data, b"IEND"):
        content += struct.pack(">I", len(named) - 4) + named + struct.pack(">I", zlib.crc32(named))
    assert np.asarray(decode_image(content, "a")).ravel().tolist() == wanted


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_transparent_entry_of_a_palette_is_white(tmp_path, name):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 100, 0])
    image.putdata([0, 1])
    image.save(tmp_path / name, transparency=1)
    pixels = list(read_image(tmp_path / name).get_flattened_data())
    assert pixels == [(200, 0, 0), (255, 255, 255)]
