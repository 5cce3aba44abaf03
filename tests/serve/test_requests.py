"""Limits of inputs, before they are decoded."""

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.errors import UserError
from regard.serve.config import LimitsConfig
from regard.serve.replies import RequestError
from regard.serve.requests import decode_object, read_inputs

LIMITS = LimitsConfig(body=5_000, inputs=2, characters=10, pixels=100, sound=0.5)


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def huge_png() -> bytes:
    """Return a PNG file whose header claims more pixels than memory could hold."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def wav(count: int, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(count, np.int16), rate, format="WAV")
    return file.getvalue()


def npz(count: int) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, points=np.zeros((count, 3)))
    return file.getvalue()


def read(value: Any, kind: str, **options: Any) -> Any:
    (found,) = read_inputs([value], kind, LIMITS, **options)
    return found


def test_inputs_are_those_of_predict() -> None:
    assert read("a text", "text") == "a text"
    assert read(b"a text", "text") == "a text"
    assert read(["a", "b"], "text", reads_tokens=True) == ["a", "b"]
    image = png(10, 10)
    assert read(image, "image") == image
    assert read(base64.b64encode(image).decode(), "image") == image
    assert read("data:image/png;base64," + base64.b64encode(image).decode(), "image") == image
    assert read([[1, 2, 3]], "points") == [[1, 2, 3]]
    assert read([1, 2], "vector") == [1, 2]


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("a" * 11, "text", "at most 10 characters"),
        (3, "text", "expected a text, got int"),
        (["a"], "text", "expected a text, got list"),
        (b"\xff", "text", "utf-8"),
        ("photos/1.png", "image", "base64"),
        ("/etc/passwd", "image", "base64"),
        (5, "image", "expected a file as base64, got int"),
        (png(11, 10), "image", "at most 100 pixels are read, got 11 x 10"),
        (huge_png(), "image", "pixels"),
        (npz(1_000), "points", "at most 5,000 bytes are unpacked, got 24,"),
        (wav(8_000, 8_000), "sound", r"at most 0.5 seconds are read, got 1.0"),
    ],
)
def test_input_that_is_not_read_has_an_error(value: Any, kind: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        raise read(value, kind)


def test_error_names_its_input() -> None:
    good, bad = read_inputs(["a", 3], "text", LIMITS)
    assert (good, str(bad)) == ("a", "input 2: expected a text, got int")


@pytest.mark.parametrize("values", [[], ["a", "b", "c"]])
def test_number_of_inputs(values: list[str]) -> None:
    with pytest.raises(RequestError, match="expected 1 to 2 inputs") as caught:
        read_inputs(values, "text", LIMITS)
    assert (caught.value.status, caught.value.at) == (422, "inputs")


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"\xff", 400), (b"[" * 10_000, 400), (b"[]", 422)]
)
def test_body_that_is_no_object(body: bytes, status: int) -> None:
    with pytest.raises(RequestError) as caught:
        decode_object(body)
    assert caught.value.status == status
