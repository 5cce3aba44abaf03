"""Sound files: samples at the requested rate, and messages about invalid files."""

import io
import warnings

import numpy as np
import pytest
import soundfile
import soxr
from scipy.io import wavfile

from regard.data.sound import files as sound_files
from regard.data.sound.files import decode_sound
from regard.errors import UserError

TONE = np.sin(np.arange(3000) / 7) * 0.9


def read_samples(path, sample_rate):
    return np.concatenate([*decode_sound(path, sample_rate, str(path))])


def read_with_scipy(path):
    """Read a WAV file with scipy, as a reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # about chunks without samples
        _, samples = wavfile.read(path)
    scale = {"uint8": 128, "int16": 1 << 15, "int32": 1 << 31}.get(samples.dtype.name, 1)
    sound = (samples.astype(np.float64) - (128 if samples.dtype == np.uint8 else 0)) / scale
    sound = sound.mean(1) if sound.ndim > 1 else sound
    return np.clip(np.round(sound * 32768), -32768, 32767).astype(np.int16)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_wav_equals_scipy(tmp_path, subtype, channels):
    samples = np.stack([TONE * (1 + i) / channels for i in range(channels)], -1)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype=subtype)
    expected = read_with_scipy(tmp_path / "a.wav")
    np.testing.assert_array_equal(read_samples(tmp_path / "a.wav", 8000), expected)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
def test_16_bit_samples_are_read_as_they_are(tmp_path, form):
    samples = np.arange(-32768, 32768).astype(np.int16)
    soundfile.write(tmp_path / "a", samples, 8000, format=form, subtype="PCM_16")
    np.testing.assert_array_equal(read_samples(tmp_path / "a", 8000), samples)


@pytest.mark.parametrize("rate", [44_100, 11_025, 4_000])
def test_another_rate_is_resampled_by_soxr(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", TONE, rate, subtype="DOUBLE")
    expected = np.round(soxr.resample(TONE, rate, 8000) * 32768)
    samples = read_samples(tmp_path / "a.wav", 8000)
    assert len(samples) == round(3000 * 8000 / rate)
    np.testing.assert_allclose(samples, expected, atol=1)


@pytest.mark.parametrize(
    ("form", "subtype", "bound"),
    [
        ("FLAC", None, 0),
        ("OGG", "VORBIS", 3000),
        ("OGG", "OPUS", 9000),
        ("MP3", None, 3000),
        ("CAF", "ALAC_16", 0),
        ("AIFF", None, 0),
        ("W64", None, 0),
    ],
)
def test_other_formats_are_recognized_by_content(tmp_path, form, subtype, bound):
    sound = (TONE * 32767).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", sound, 8000)
    out = io.BytesIO()
    soundfile.write(out, sound, 8000, format=form, subtype=subtype)
    out.seek(0)
    packed = np.concatenate([*decode_sound(out, 8000, "input 1")]).astype(int)
    wav = read_samples(tmp_path / "a.wav", 8000).astype(int)
    assert len(packed) == len(wav)
    assert np.abs(packed - wav).max() <= bound


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("rate", [8000, 11_025])
def test_samples_do_not_depend_on_the_size_of_blocks(tmp_path, monkeypatch, form, rate):
    sound = np.random.default_rng(5).uniform(-0.9, 0.9, (30_000, 2))
    soundfile.write(tmp_path / "a", sound, 11_025, format=form)
    expected = read_samples(tmp_path / "a", rate)
    for size in (100, 4_999):
        monkeypatch.setattr(sound_files, "_BLOCK", size)
        np.testing.assert_array_equal(read_samples(tmp_path / "a", rate), expected)


def test_floating_samples_above_one_are_clipped(tmp_path):
    sound = np.array([0.5, -1.0, 1.0, 1.5, -3.0, 1.7e308])
    soundfile.write(tmp_path / "a.wav", sound, 8000, subtype="DOUBLE")
    samples = read_samples(tmp_path / "a.wav", 8000)
    assert samples.tolist() == [16384, -32768, 32767, 32767, -32768, 32767]


def _flac(samples):
    out = io.BytesIO()
    soundfile.write(out, samples, 8000, format="FLAC")
    return out.getvalue()


def _wav(samples):
    out = io.BytesIO()
    wavfile.write(out, 8000, np.array(samples, np.float32))
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.wav", None, "no such file"),
        ("text.wav", b"0.5\t1.5\tbark\n", "not a readable sound file .Format not recognised"),
        ("short.wav", _wav([0, 1])[:30], "is cut: it has 30 of"),
        ("cut.wav", _wav(np.zeros(99))[:-8], "is cut: it has"),
        ("cut.flac", _flac(np.random.default_rng(5).normal(0, 0.2, 300_000))[:-3000], "not a read"),
        ("samples.raw", bytes(1000), "not a readable sound file"),
        ("empty.wav", _wav([]), "contains no samples"),
        ("nan.wav", _wav([0, np.nan, 1]), "contains samples that are not finite"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: {message}"):
        read_samples(tmp_path / name, 8000)


def test_wav_whose_writer_did_not_know_its_size_is_read(tmp_path):
    content = _wav(np.full(9, 0.5))
    (tmp_path / "a.wav").write_bytes(content[:4] + b"\xff\xff\xff\xff" + content[8:])
    assert read_samples(tmp_path / "a.wav", 8000).tolist() == [16384] * 9
