"""Truncated sound files in every container, and files of streaming writers, which state no
length."""

import io
import struct
import tempfile

import numpy as np
import pytest
import soundfile

from regard.data.sound.containers import describe_truncation

TONE = np.sin(np.arange(30_000) / 7) * 0.9
FORMS = [
    ("WAV", "little"),
    ("WAV", "big"),
    ("WAVEX", None),
    ("RF64", None),
    ("W64", None),
    ("AIFF", None),
]
FORMS += [("AU", "big"), ("AU", "little"), ("CAF", None), ("OGG", None)]


def encode(form, endian=None):
    out = io.BytesIO()
    soundfile.write(out, TONE, 8000, format=form, endian=endian)
    return out.getvalue()


def truncation_of(content):
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return describe_truncation(file)


def with_stated_size(size, content=None):
    """Return a WAV file whose header states this many bytes of samples."""
    content = content or encode("WAV")
    return content[:40] + struct.pack("<I", size) + content[44:]


@pytest.mark.parametrize(("form", "endian"), FORMS)
def test_truncation_is_detected(form, endian):
    content = encode(form, endian)
    assert truncation_of(content) == ""
    for length in (len(content) - 2, len(content) - 3001, len(content) // 2):
        assert truncation_of(content[:length]) != ""


def test_missing_bytes_are_counted():
    truncation = truncation_of(encode("WAV")[:-3000])
    assert truncation == "its header states 60,000 bytes of samples, but the file has 57,000"


@pytest.mark.parametrize(
    "size", [0, 0xFFFF_FFFF, 0xFFFF_FFFF - 36, 0x7FFF_FFFF, 0x7FFF_F000, 0x7F00_0000]
)
def test_files_of_streaming_writers_are_not_truncated(size):
    assert truncation_of(with_stated_size(size)) == ""


@pytest.mark.parametrize("size", [60_001, 1 << 31, (1 << 32) - 70_000])
def test_absurd_lengths_are_truncations(size):
    assert f"states {size:,} bytes" in truncation_of(with_stated_size(size))


@pytest.mark.parametrize("behind", [b"\0", b"junk" * 5, b"LIST\x64\0\0\0INFO", b"x" * 300_000])
@pytest.mark.parametrize("form", ["WAV", "AIFF", "W64", "OGG"])
def test_data_after_the_samples_is_ignored(form, behind):
    assert truncation_of(encode(form) + behind) == ""


def test_chunks_before_the_samples_are_skipped():
    content = encode("WAV")
    odd = b"bext" + struct.pack("<I", 5) + b"12345\0"
    content = content[:36] + odd + content[36:]
    assert truncation_of(content) == ""
    assert truncation_of(content[:-10]) != ""


@pytest.mark.parametrize("form", ["WAV", "RF64", "W64", "AIFF", "AU", "CAF", "OGG"])
def test_truncated_headers_raise_no_error(form):
    content = encode(form)
    for length in range(140):
        truncation_of(content[:length])
