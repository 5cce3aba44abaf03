"""Sound files: the samples that they hold, at the rate that is asked for, or a sentence."""

import io
import warnings

import numpy as np
import pytest
import soundfile
from scipy.io import wavfile
from scipy.signal import resample_poly

from regard.data.sound_files import read_sound
from regard.errors import UserError

TONE = np.sin(np.arange(3000) / 7) * 0.9


def by_scipy(path, sample_rate):
    """As it was before libsndfile read these files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that hold no samples
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
def test_wav_is_what_it_was(tmp_path, subtype, rate, channels):
    samples = np.stack([TONE * (1 + i) / channels for i in range(channels)], -1)
    soundfile.write(tmp_path / "a.wav", samples, rate, subtype=subtype)
    np.testing.assert_array_equal(read_sound(tmp_path / "a.wav", 8000), by_scipy(tmp_path / "a.wav", 8000))


@pytest.mark.parametrize(("form", "bound"), [("FLAC", 0), ("OGG", 3000)])
def test_packed_forms_are_read(tmp_path, form, bound):
    for name in ("WAV", form):
        soundfile.write(tmp_path / f"a.{name}", (TONE * 32767).astype(np.int16), 8000, format=name)
    packed, wav = (read_sound(tmp_path / f"a.{name}", 8000).astype(int) for name in (form, "WAV"))
    assert np.abs(packed - wav).max() <= bound


def changed(place, value, size):
    out = io.BytesIO()
    soundfile.write(out, TONE, 8000, format="WAV")
    content = out.getvalue()
    return content[:place] + value.to_bytes(size, "little") + content[place + size :]


@pytest.mark.parametrize("rate", [0, 1, 999, 768_001, 2**31 - 1, 2**32 - 1])
def test_absurd_rate_is_refused_before_anything_is_resampled(tmp_path, rate):
    (tmp_path / "a.wav").write_bytes(changed(24, rate, 4))
    with pytest.raises(UserError, match=r"a.wav: "):
        read_sound(tmp_path / "a.wav", 8000)


@pytest.mark.parametrize(("place", "value"), [(22, 0), (22, 65), (22, 65535), (34, 0), (20, 0)])
def test_absurd_channels_bits_and_forms_are_refused(tmp_path, place, value):
    (tmp_path / "a.wav").write_bytes(changed(place, value, 2))
    with pytest.raises(UserError, match=r"events.csv, line 2: .*a.wav: "):
        read_sound(tmp_path / "a.wav", 8000, "events.csv, line 2")


@pytest.mark.parametrize("length", range(46))
def test_header_cut_anywhere_is_refused(tmp_path, length):
    (tmp_path / "a.wav").write_bytes(changed(22, 1, 2)[:length])
    with pytest.raises(UserError, match=r"a.wav: "):
        read_sound(tmp_path / "a.wav", 8000)


@pytest.mark.parametrize("form", ["AIFF", "AU", "CAF"])
def test_forms_that_are_not_named_are_refused(tmp_path, form):
    soundfile.write(tmp_path / "a.wav", TONE, 8000, format=form)
    with pytest.raises(UserError, match="no wav file that can be read, nor FLAC or Ogg"):
        read_sound(tmp_path / "a.wav", 8000)


def test_samples_that_are_no_numbers_are_refused(tmp_path):
    wavfile.write(tmp_path / "a.wav", 8000, np.array([0, np.nan, 1], np.float32))
    with pytest.raises(UserError, match=r"a.wav: holds samples that are no numbers"):
        read_sound(tmp_path / "a.wav", 8000)


def test_memory_that_samples_take_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    soundfile.write(tmp_path / "a.flac", np.zeros(100_000), 8000)
    assert len(read_sound(tmp_path / "a.flac", 8000)) == 100_000
    with pytest.raises(UserError, match=r"a.flac: says 100,000 samples at 8,000 a second, which take 2,000,000 bytes"):
        read_sound(tmp_path / "a.flac", 12_000)
