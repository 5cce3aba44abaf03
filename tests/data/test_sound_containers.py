"""Sound files that are cut off, in every container; those of streaming writers, which state no length."""

import io
import struct
import tempfile

import numpy as np
import pytest
import soundfile

from regard.data.sound_containers import missing

TONE = np.sin(np.arange(30_000) / 7) * 0.9
FORMS = [("WAV", "little"), ("WAV", "big"), ("WAVEX", None), ("RF64", None), ("W64", None), ("AIFF", None)]
FORMS += [("AU", "big"), ("AU", "little"), ("CAF", None), ("OGG", None)]


def written(form, endian=None):
    out = io.BytesIO()
    soundfile.write(out, TONE, 8000, format=form, endian=endian)
    return out.getvalue()


def missing_of(content):
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return missing(file)


def sized(size, content=None):
    """A wav file whose header states this many bytes of samples."""
    content = content or written("WAV")
    return content[:40] + struct.pack("<I", size) + content[44:]


@pytest.mark.parametrize(("form", "endian"), FORMS)
def test_what_is_cut_off_is_missing(form, endian):
    content = written(form, endian)
    assert missing_of(content) == ""
    for length in (len(content) - 2, len(content) - 3001, len(content) // 2):
        assert missing_of(content[:length]) != ""


def test_bytes_that_are_missing_are_counted():
    found = missing_of(written("WAV")[:-3000])
    assert found == "its header states 60,000 bytes of samples, the file holds 57,000"


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF, 0xFFFF_FFFF - 36, 0x7FFF_FFFF, 0x7FFF_F000, 0x7F00_0000])
def test_streaming_writers_state_no_length(size):
    assert missing_of(sized(size)) == ""


@pytest.mark.parametrize("size", [60_001, 1 << 31, (1 << 32) - 70_000])
def test_absurd_lengths_are_no_streams(size):
    assert f"states {size:,} bytes" in missing_of(sized(size))


@pytest.mark.parametrize("behind", [b"\0", b"junk" * 5, b"LIST\x64\0\0\0INFO", b"x" * 300_000])
@pytest.mark.parametrize("form", ["WAV", "AIFF", "W64", "OGG"])
def test_what_stands_behind_the_samples_does_not_matter(form, behind):
    assert missing_of(written(form) + behind) == ""


def test_chunks_before_the_samples_are_passed_over():
    content = written("WAV")
    odd = b"bext" + struct.pack("<I", 5) + b"12345\0"
    content = content[:36] + odd + content[36:]
    assert missing_of(content) == ""
    assert missing_of(content[:-10]) != ""


@pytest.mark.parametrize("form", ["WAV", "RF64", "W64", "AIFF", "AU", "CAF", "OGG"])
def test_headers_cut_anywhere_are_read_without_an_error(form):
    content = written(form)
    for length in range(140):
        missing_of(content[:length])
