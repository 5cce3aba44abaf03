"""Image files: only supported formats are opened, 16 bits are scaled, and unreadable files are
reported."""

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
from PIL.PngImagePlugin import PngInfo

from regard.data.config import ImagesConfig
from regard.data.images.dataset import read_images
from regard.data.images.files import (
    FORMATS,
    ImageFiles,
    decode_image,
    pixel_limit,
    prepare_image,
    read_image,
)
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
    with pytest.raises(UserError, match=rf"{name}: not a readable image .*not one of PNG, JPEG"):
        read_image(tmp_path / name)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / name, arcname=name)
    for source in (tmp_path, tmp_path / "a.tar"):
        with pytest.raises(UserError, match="not a readable image"):
            ImageFiles.from_path(source).open(name, "here")
    assert not (tmp_path / "started").exists()
    with (
        Image.open(tmp_path / name) as image,
        pytest.raises(subprocess.CalledProcessError),
    ):  # the trap works
        image.load()
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_supported_formats_are_recognized_by_content(tmp_path, form):
    save(tmp_path / "a.bin", np.full((3, 5), 77, np.uint8), format=form)
    image = read_image(tmp_path / "a.bin").image
    assert image.size == (5, 3)
    assert np.abs(np.asarray(image.convert("L")).astype(int) - 77).max() <= 2


@pytest.mark.parametrize(
    ("name", "dtype"), [("a.png", "<u2"), ("a.tif", "<u2"), ("a.tif", ">u2"), ("a.pgm", "<u2")]
)
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, name, dtype):
    values = np.array([[0, 128, 129, 256, 257, 32768, 65535]], dtype)
    image = read_image(save(tmp_path / name, values)).image
    assert np.asarray(image.convert("L")).tolist() == [[0, 0, 1, 1, 1, 128, 255]]


def test_sixteen_bits_give_one_channel(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        save(tmp_path / str(number) / "a.png", np.full((4, 4), 30000, np.uint16))
    images = read_images(tmp_path, ImagesConfig())
    assert images.pixels.shape == (2, 1, 4, 4)
    assert images.pixels.min() == images.pixels.max() == round(30000 / 257)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(np.float32, "floating-point"), (np.int32, "32-bit integer")]
)
def test_pixels_without_a_scale_are_refused(tmp_path, dtype, kind):
    with pytest.raises(UserError, match=rf"a.tif: {kind} pixels"):
        read_image(save(tmp_path / "a.tif", np.ones((3, 3), dtype)))


def test_animated_image_is_its_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(read_image(tmp_path / "a.gif").image.convert("L")).max() == 10


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 1), (13_378, 13_378)])
def test_sizes_are_checked_before_pixels_are_decoded(tmp_path, size):
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "PNG")
    head = (
        out.getvalue()[12:16]
        + size[0].to_bytes(4, "big")
        + size[1].to_bytes(4, "big")
        + out.getvalue()[24:29]
    )
    content = out.getvalue()[:12] + head + zlib.crc32(head).to_bytes(4, "big") + out.getvalue()[33:]
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(
        UserError,
        match=r"a.png: .*pixels exceed the limit of 178,956,970 .*REGARD_MAX_IMAGE_MEGAPIXELS "
        r"raises it",
    ):
        read_image(tmp_path / "a.png")


def test_message_has_the_location_of_the_reference(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    cut = save(tmp_path / "whole.png", np.arange(256, dtype=np.uint8).reshape(16, 16)).read_bytes()[
        :-30
    ]
    (tmp_path / "cut.png").write_bytes(cut)
    (tmp_path / "text.png").write_text("text")
    (tmp_path / "empty.png").write_bytes(b"")
    for name, problem in (
        ("empty", "the file is empty"),
        ("pipe", "named pipe"),
        ("cut", "not a readable image"),
        ("text", "not one of PNG"),
    ):
        with pytest.raises(UserError, match=rf"list.csv, line 3: .*{name}.png: .*{problem}"):
            read_image(tmp_path / f"{name}.png", "list.csv, line 3")


def test_unique_base_name_identifies_a_member(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, name in enumerate(("x/1.png", "y/1.png", "y/2.png")):
            path = save(tmp_path / "one.png", np.full((2, 2), number, np.uint8))
            archive.add(path, arcname=name)
    files = ImageFiles.from_path(tmp_path / "a.tar")
    assert np.asarray(files.open("2.png", "here").image).max() == 2
    assert np.asarray(files.open("y/1.png", "here").image).max() == 1
    with pytest.raises(UserError, match=r"here: there is no image 1.png in"):
        files.open("1.png", "here")
    archive = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(archive[:600])
    with pytest.raises(UserError, match=r"a.tar: "):
        ImageFiles.from_path(tmp_path / "a.tar").open("y/1.png", "here")


def test_pixel_limit_is_a_variable(tmp_path, monkeypatch):
    save(tmp_path / "a.png", np.zeros((1000, 2001), np.uint8))
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS
    )  # the variable raises Pillow's bound as well
    for value, is_read in (("3", True), ("2", False), ("200", True)):
        monkeypatch.setenv("REGARD_MAX_IMAGE_MEGAPIXELS", value)
        if is_read:
            assert read_image(tmp_path / "a.png").image.size == (2001, 1000)
        else:
            with pytest.raises(UserError, match="2001 x 1000 pixels exceed the limit of 2,000,000"):
                read_image(tmp_path / "a.png")
    assert Image.MAX_IMAGE_PIXELS == 100_000_000
    monkeypatch.setenv("REGARD_MAX_IMAGE_MEGAPIXELS", "many")
    with pytest.raises(
        UserError,
        match="REGARD_MAX_IMAGE_MEGAPIXELS must be a whole number of million pixels above 0",
    ):
        read_image(tmp_path / "a.png")


def save_oriented(path: Path, orientation: int, pixels: np.ndarray, **options) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save(path, pixels, exif=exif, **options)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "ending", ["png", "tif", "webp", "jpg", *(["avif"] if "AVIF" in FORMATS else [])]
)
def test_images_are_read_upright(tmp_path, orientation, ending):
    corners = np.kron(np.array([[0, 80, 160], [40, 120, 240]]), np.ones((16, 16))).astype(np.uint8)
    upright = {
        1: corners,
        2: corners[:, ::-1],
        3: corners[::-1, ::-1],
        4: corners[::-1],
        5: corners.T,
        6: corners[::-1].T,
        7: corners[::-1, ::-1].T,
        8: corners[:, ::-1].T,
    }[orientation]
    options = (
        {"lossless": True}
        if ending == "webp"
        else {"quality": 95}
        if ending in ("jpg", "avif")
        else {}
    )
    path = save_oriented(tmp_path / f"a.{ending}", orientation, corners, **options)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(path, arcname=path.name)
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        images = [read_image(path), prepare_image(image, "a")]
    images += [
        ImageFiles.from_path(source).open(path.name, "here")
        for source in (tmp_path, tmp_path / "a.tar")
    ]
    for prepared in images:
        assert (prepared.orientation, prepared.stored_size) == (orientation, (48, 32))
        pixels = np.asarray(prepared.image.convert("L")).astype(int)
        assert pixels.shape == upright.shape
        assert np.abs(pixels - upright).max() < 12


@pytest.mark.parametrize("orientation", [0, 9, "6", 2.5])
def test_invalid_orientations_are_ignored(tmp_path, orientation):
    image = Image.new("L", (3, 2))
    image.getexif()[0x0112] = orientation
    assert prepare_image(image, "a").image.size == (3, 2)


def test_damaged_exif_is_ignored(tmp_path):
    save(
        tmp_path / "a.jpg",
        np.zeros((2, 3), np.uint8),
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0",
    )
    text = PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n 2\nzz")
    save(tmp_path / "a.png", np.zeros((2, 3), np.uint8), pnginfo=text)
    for name in ("a.jpg", "a.png"):
        upright = read_image(tmp_path / name)
        assert (upright.image.size, upright.orientation) == ((3, 2), 1)


@pytest.mark.parametrize(
    ("mode", "pixels", "wanted"),
    [
        (
            "RGBA",
            [(200, 0, 0, 255), (200, 0, 0, 0), (55, 55, 55, 102)],
            [(200, 0, 0), (255,) * 3, (175,) * 3],
        ),
        ("LA", [(10, 255), (10, 0), (55, 102)], [10, 255, 175]),
        ("La", [(10, 255), (0, 0), (22, 102)], [10, 255, 175]),
    ],
)
def test_transparent_pixels_are_white(mode, pixels, wanted):
    image = Image.new(mode, (3, 1))
    image.putdata(pixels)
    assert list(prepare_image(image, "a").image.get_flattened_data()) == wanted


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_transparent_entry_of_a_palette_is_white(tmp_path, name):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 100, 0])
    image.putdata([0, 1])
    image.save(tmp_path / name, transparency=1)
    assert list(read_image(tmp_path / name).image.get_flattened_data()) == [
        (200, 0, 0),
        (255, 255, 255),
    ]


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_heic_is_refused_with_a_hint(tmp_path, brand):
    (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(100))
    with pytest.raises(
        UserError, match=r"a.jpg: not a readable image .HEIC is not supported: .*convert it to JPEG"
    ):
        read_image(tmp_path / "a.jpg")


def test_backslashes_separate_folders_unless_a_file_has_that_name(tmp_path):
    (tmp_path / "x").mkdir()
    for number, name in enumerate(["x/1.png", "x\\1.png", "x/2.png"]):
        save(tmp_path / name, np.full((2, 2), number, np.uint8))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("x/1.png", "x\\1.png", "x/2.png"):
            archive.add(tmp_path / name, arcname=name)
    for source in (tmp_path, tmp_path / "a.tar"):
        files = ImageFiles.from_path(source)
        values = [
            np.asarray(files.open(name, "here").image).max() for name in ("x\\1.png", "x\\2.png")
        ]
        assert values == [1, 2]
    files = ImageFiles.from_path(tmp_path)
    assert files.resolve("x\\1.png", "here") == tmp_path / "x\\1.png"
    assert files.resolve("x\\2.png", "here") == tmp_path / "x" / "2.png"
    with pytest.raises(UserError, match=r"here: .*no such file"):
        files.resolve("x\\3.png", "here")


@pytest.mark.parametrize("name", ["../outside.png", "..\\outside.png"])
def test_names_stay_inside_their_folder(tmp_path, name):
    (tmp_path / "x").mkdir()
    save(tmp_path / "outside.png", np.zeros((2, 2), np.uint8))
    files = ImageFiles.from_path(tmp_path / "x")
    assert not files.has(name)
    with pytest.raises(UserError, match=r"here: (there is no image|the image .* must be inside)"):
        files.open(name, "here")


def test_large_photograph_is_read_if_memory_allows(monkeypatch):
    monkeypatch.setattr("regard.data.images.files.available_memory", lambda: 8 << 30)
    assert pixel_limit(1000) == 178_956_970  # a few bytes that claim many pixels
    assert pixel_limit(3_000_000) == 300_000_000
    assert pixel_limit(50_000_000) == (8 << 30) // 16
    monkeypatch.setattr("regard.data.images.files.available_memory", lambda: 1 << 30)
    assert pixel_limit(50_000_000) == 178_956_970
    monkeypatch.setattr("regard.data.images.files._MOST_PIXELS", 1000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 50), np.uint8)).save(out, "PNG")
    assert decode_image(out.getvalue(), "a.png").image.size == (50, 60)
