"""Sound files: samples at the requested rate, notes on them, and messages about invalid files."""

import io
import os
import warnings
from contextlib import suppress
from threading import Thread

import numpy as np
import pytest
import soundfile
from scipy.io import wavfile
from scipy.signal import resample_poly

from regard.data.sound import files as sound_files
from regard.data.sound.files import SoundNotes, read_sound
from regard.errors import UserError
from regard.system import files

TONE = np.sin(np.arange(3000) / 7) * 0.9


def read_samples(path, sample_rate):
    """Read the samples of a file, which must have no notes."""
    samples, notes = read_sound(path, sample_rate)
    assert notes == SoundNotes()
    return samples


def read_with_scipy(path, sample_rate):
    """Read a WAV file with scipy, as a reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # about chunks without samples
        rate, samples = wavfile.read(path)
    scale = {"uint8": 128, "int16": 1 << 15, "int32": 1 << 31}.get(samples.dtype.name, 1)
    sound = (samples.astype(np.float64) - (128 if samples.dtype == np.uint8 else 0)) / scale
    sound = sound.mean(1) if sound.ndim > 1 else sound
    if rate != sample_rate:
        step = np.gcd(rate, sample_rate)
        sound = resample_poly(sound, sample_rate // step, rate // step)
    return np.clip(np.round(sound * 32767), -32768, 32767).astype(np.int16)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (11025, 3)])
def test_wav_equals_scipy(tmp_path, subtype, rate, channels):
    samples = np.stack([TONE * (1 + i) / channels for i in range(channels)], -1)
    soundfile.write(tmp_path / "a.wav", samples, rate, subtype=subtype)
    np.testing.assert_array_equal(
        read_samples(tmp_path / "a.wav", 8000), read_with_scipy(tmp_path / "a.wav", 8000)
    )


PACKED = [
    ("FLAC", None, 0),
    ("OGG", "VORBIS", 3000),
    ("OGG", "OPUS", 9000),
    ("MP3", None, 3000),
    ("CAF", "ALAC_16", 0),
]
PLAIN = [(form, None, 0) for form in ("WAVEX", "RF64", "W64", "AIFF", "AU", "CAF")]


@pytest.mark.parametrize(("form", "subtype", "bound"), PACKED + PLAIN)
def test_other_formats_are_recognized_by_content(tmp_path, form, subtype, bound):
    for name in ("WAV", form):
        kind = subtype if name == form else None
        soundfile.write(
            tmp_path / "a", (TONE * 32767).astype(np.int16), 8000, format=name, subtype=kind
        )
        (tmp_path / "a").rename(tmp_path / f"{name}.raw")
    packed, wav = (
        read_samples(tmp_path / f"{name}.raw", 8000).astype(int) for name in (form, "WAV")
    )
    assert len(packed) == len(wav)
    assert np.abs(packed - wav).max() <= bound


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("rate", [8000, 11_025])
def test_samples_do_not_depend_on_the_size_of_blocks(tmp_path, monkeypatch, form, rate):
    sound = (
        np.random.default_rng(5).uniform(-0.9, 0.9, (30_000, 2))
        * np.linspace(0, 1, 30_000)[:, None]
    )
    soundfile.write(tmp_path / "a", sound, 44_100, format=form)
    expected = read_samples(tmp_path / "a", rate)
    for size in (100, 4_999):
        monkeypatch.setattr(sound_files, "_BLOCK", size)
        np.testing.assert_array_equal(read_samples(tmp_path / "a", rate), expected)


def test_mp3_without_a_stated_length_is_read_completely(tmp_path):
    """The first frames are short, from which libsndfile underestimates the length."""
    sound = np.random.default_rng(5).normal(0, 0.2, 400_000) * np.repeat([0.001, 1], 200_000)
    out = io.BytesIO()
    soundfile.write(out, sound, 44_100, format="MP3", bitrate_mode="VARIABLE")
    content = out.getvalue()
    assert b"Xing" in content[:417]
    (tmp_path / "a.mp3").write_bytes(content[417:])
    samples = read_samples(tmp_path / "a.mp3", 44_100)
    assert abs(len(samples) - 400_000) < 5_000
    assert np.abs(samples[350_000:]).mean() > 1_000


def wav_with(offset, value, size):
    out = io.BytesIO()
    soundfile.write(out, TONE, 8000, format="WAV")
    content = out.getvalue()
    return content[:offset] + value.to_bytes(size, "little") + content[offset + size :]


@pytest.mark.parametrize("rate", [0, 1, 999, 768_001, 2**31 - 1, 2**32 - 1])
def test_absurd_rate_is_refused_before_anything_is_resampled(tmp_path, rate):
    (tmp_path / "a.wav").write_bytes(wav_with(24, rate, 4))
    with pytest.raises(UserError, match=r"a.wav: "):
        read_sound(tmp_path / "a.wav", 8000)


@pytest.mark.parametrize(("offset", "value"), [(22, 0), (22, 65), (22, 65535), (34, 0), (20, 0)])
def test_absurd_channels_bits_and_encodings_are_refused(tmp_path, offset, value):
    (tmp_path / "a.wav").write_bytes(wav_with(offset, value, 2))
    with pytest.raises(UserError, match=r"events.csv, line 2: .*a.wav: "):
        read_sound(tmp_path / "a.wav", 8000, "events.csv, line 2")


@pytest.mark.parametrize("length", range(46))
def test_truncated_header_is_refused(tmp_path, length):
    (tmp_path / "a.wav").write_bytes(wav_with(22, 1, 2)[:length])
    with pytest.raises(UserError, match=r"a.wav: "):
        read_sound(tmp_path / "a.wav", 8000)


@pytest.mark.parametrize("form", ["VOC", "NIST", "MAT5", "SVX"])
def test_unsupported_formats_are_refused(tmp_path, form):
    soundfile.write(tmp_path / "a.wav", TONE, 8000, format=form)
    with pytest.raises(
        UserError,
        match=r"a.wav: not a supported sound file .WAV, W64, RF64, .* FLAC, Ogg and MP3",
    ):
        read_sound(tmp_path / "a.wav", 8000)


def test_damaged_headers_are_refused_without_a_traceback_of_libsndfile(tmp_path, capfd):
    soundfile.write(tmp_path / "a", TONE, 8000, format="AIFF")
    content = (tmp_path / "a").read_bytes()
    for offset in range(12, 60):
        (tmp_path / "a").write_bytes(content[:offset] + content[offset + 1 :])
        with suppress(UserError):
            read_sound(tmp_path / "a", 8000)
    assert capfd.readouterr().err == ""


def test_pointer_of_git_lfs_is_refused(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    with pytest.raises(
        UserError, match=r"list.csv, line 2: .*a.wav: is a pointer of git-lfs .* `git lfs pull`"
    ):
        read_sound(path, 8000, "list.csv, line 2")


def test_older_libsndfile_without_mp3_is_reported(tmp_path, monkeypatch):
    (tmp_path / "a.mp3").write_bytes(b"\xff\xfb\x90\xc4" + bytes(500))
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "WAV"})
    with pytest.raises(
        UserError,
        match=r"a.mp3: .* does not support MP3, 1.1 does: pip install --upgrade soundfile",
    ):
        read_sound(tmp_path / "a.mp3", 8000)


@pytest.mark.parametrize("form", ["WAV", "AIFF", "W64", "OGG", "MP3", "FLAC"])
def test_truncated_file_is_read_up_to_there_with_a_note(tmp_path, form):
    out = io.BytesIO()
    soundfile.write(out, np.random.default_rng(5).normal(0, 0.2, 300_000), 8000, format=form)
    (tmp_path / "a").write_bytes(out.getvalue()[:-3000])
    samples, notes = read_sound(tmp_path / "a", 8000)
    assert 100_000 < len(samples) < 300_000
    assert "truncated" in notes.cut_off
    (tmp_path / "a").write_bytes(out.getvalue())
    assert len(read_samples(tmp_path / "a", 8000)) == 300_000


def test_samples_before_an_error_do_not_depend_on_the_size_of_blocks(tmp_path, monkeypatch):
    soundfile.write(
        tmp_path / "a", np.random.default_rng(5).normal(0, 0.2, 300_000), 8000, format="FLAC"
    )
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-3000])
    expected, notes = read_sound(tmp_path / "a", 8000)
    assert f"a: damaged or truncated after {len(expected):,} samples (" in notes.cut_off
    monkeypatch.setattr(sound_files, "_BLOCK", 5000)
    np.testing.assert_array_equal(read_sound(tmp_path / "a", 8000)[0], expected)


@pytest.mark.parametrize(
    "sizes", [(0, 0), (0xFFFF_FFFF, 0), (0xFFFF_FFFF, 0xFFFF_FFFF), (0, 0xFFFF_FFFF), (8, 0)]
)
def test_unfinished_wav_is_read_completely(tmp_path, sizes):
    soundfile.write(tmp_path / "a.wav", TONE, 8000)
    content = (tmp_path / "a.wav").read_bytes()
    size, stated = (number.to_bytes(4, "little") for number in sizes)
    expected = read_samples(tmp_path / "a.wav", 8000)
    (tmp_path / "a.wav").write_bytes(content[:4] + size + content[8:40] + stated + content[44:])
    np.testing.assert_array_equal(read_samples(tmp_path / "a.wav", 8000), expected)
    (tmp_path / "a.wav").write_bytes(content[:4] + size + content[8:40] + bytes(4))
    with pytest.raises(UserError, match=r"a.wav: contains no samples"):
        read_sound(tmp_path / "a.wav", 8000)


def with_stated_length(content, frames):
    """Return a FLAC file whose header states this many samples, 0 for unknown."""
    number = int.from_bytes(content[18:26], "big") >> 36 << 36 | frames
    return content[:18] + number.to_bytes(8, "big") + content[26:]


def test_flac_of_a_streaming_writer_is_read_completely(tmp_path):
    soundfile.write(tmp_path / "a.flac", TONE, 8000)
    content = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(with_stated_length(content, 0))
    assert len(read_samples(tmp_path / "a.flac", 8000)) == 3000
    (tmp_path / "a.flac").write_bytes(with_stated_length(content, 1 << 31))
    with pytest.raises(
        UserError, match=r"a.flac: states 2,147,483,648 samples, more than the limit of 536,870,912"
    ):
        read_sound(tmp_path / "a.flac", 8000)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floating_samples_above_one_are_clipped_with_a_note(tmp_path, subtype):
    sound = np.array([0.5, -1.0, 1.0, 1.5, -3.0, 0.0])
    soundfile.write(tmp_path / "a.wav", sound, 8000, subtype=subtype)
    samples, notes = read_sound(tmp_path / "a.wav", 8000)
    assert samples.tolist() == [16384, -32767, 32767, 32767, -32767, 0]
    assert notes.clipped.endswith("a.wav: 2 samples are outside [-1, 1], up to 3, and are clipped.")
    assert not notes.cut_off


def test_numbers_near_the_largest_are_clipped_without_an_overflow(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full((5000, 2), 1.7e308), 16_000, subtype="DOUBLE")
    samples, _ = read_sound(tmp_path / "a.wav", 8000)
    assert samples[1000:1100].tolist() == [32767] * 100


def test_samples_that_are_not_finite_are_refused(tmp_path):
    wavfile.write(tmp_path / "a.wav", 8000, np.array([0, np.nan, 1], np.float32))
    with pytest.raises(UserError, match=r"a.wav: contains samples that are not finite"):
        read_sound(tmp_path / "a.wav", 8000)


def test_samples_of_small_files_are_limited(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    soundfile.write(tmp_path / "a.flac", np.zeros(500_000), 8000)
    assert len(read_samples(tmp_path / "a.flac", 8000)) == 500_000
    with pytest.raises(
        UserError,
        match=r"a.flac: states 500,000 samples, more than the limit of 349,525 "
        r".*REGARD_MAX_FILE_MIB",
    ):
        read_sound(tmp_path / "a.flac", 12_000)
    content = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(with_stated_length(content, 0))
    with pytest.raises(UserError, match=r"a.flac: has more samples than the limit of 349,525"):
        read_sound(tmp_path / "a.flac", 12_000)


def test_limit_depends_on_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_DEFAULT_MIB", 1)
    soundfile.write(tmp_path / "a.wav", np.zeros(700_000), 8000)
    assert len(read_samples(tmp_path / "a.wav", 48_000)) == 4_200_000
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    with pytest.raises(
        UserError,
        match=r"a.wav: states 700,000 samples, more than the limit of 87,381 .*REGARD_MAX_FILE_MIB",
    ):
        read_sound(tmp_path / "a.wav", 48_000)


@pytest.mark.parametrize("form", ["WAV", "MP3"])
def test_sound_through_a_pipe_is_that_of_the_file(tmp_path, form):
    soundfile.write(tmp_path / "a", TONE, 8000, format=form)
    os.mkfifo(tmp_path / "pipe")
    thread = Thread(target=lambda: (tmp_path / "pipe").write_bytes((tmp_path / "a").read_bytes()))
    thread.start()
    np.testing.assert_array_equal(
        read_samples(tmp_path / "pipe", 8000), read_samples(tmp_path / "a", 8000)
    )
    thread.join()
