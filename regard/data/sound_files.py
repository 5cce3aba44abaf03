"""Sound files: WAV, FLAC and Ogg, read by libsndfile; their channels mixed, at the rate that is asked for.

What a header says is checked before anything is read: rate, channels, and how much memory the samples take.
"""

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import resample_poly

from regard.errors import UserError
from regard.files import file_limit, read_bytes

__all__ = ["read_sound"]

_MAGICS = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS")
_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG")
_RATES = (1_000, 768_000)
_MOST_CHANNELS = 64
_NUMBER_BYTES = 8
_BLOCK = 1 << 18


def read_sound(path: Path, sample_rate: int, where: str = "") -> NDArray[np.int16]:
    """The samples of a sound file.

    where:  the place that names the file, for messages.
    Raises: UserError naming both if it is no sound file of these formats, is damaged or empty, holds numbers that are
            not finite, or what its header says is outside the bounds.
    """
    name = f"{where}: {path}" if where else str(path)
    try:
        content = read_bytes(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    if not content.startswith(_MAGICS):
        raise UserError(f"{name}: no wav file that can be read, nor FLAC or Ogg: it starts with {content[:4]!r}.")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check(file, sample_rate, name)
            sound = _mixed(file, name)
            rate = file.samplerate
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise UserError(f"{name}: no wav file that can be read ({error}).") from error
    if rate != sample_rate:
        step = Fraction(sample_rate, rate)
        sound = resample_poly(sound, step.numerator, step.denominator)
    return np.concatenate([_sixteen_bits(sound[i : i + _BLOCK]) for i in range(0, len(sound), _BLOCK)])


def _check(file: soundfile.SoundFile, sample_rate: int, name: str) -> None:
    if file.format not in _FORMATS:
        raise UserError(f"{name}: no wav file that can be read, nor FLAC or Ogg, but {file.format}.")
    least, most = _RATES
    if not least <= file.samplerate <= most:
        raise UserError(f"{name}: says {file.samplerate:,} samples a second; expected {least:,} to {most:,}.")
    if not 1 <= file.channels <= _MOST_CHANNELS:
        raise UserError(f"{name}: says {file.channels:,} channels; expected 1 to {_MOST_CHANNELS}.")
    if file.frames < 1:
        raise UserError(f"{name}: holds no samples.")
    needed = _NUMBER_BYTES * (file.frames + (0 if file.samplerate == sample_rate else _resampled(file, sample_rate)))
    if needed > file_limit():
        raise UserError(
            f"{name}: says {file.frames:,} samples at {file.samplerate:,} a second, which take {needed:,} bytes at "
            f"{sample_rate:,} a second; at most {file_limit():,} are used (REGARD_MAX_FILE_MIB raises this)."
        )


def _resampled(file: soundfile.SoundFile, sample_rate: int) -> int:
    return -(-file.frames * sample_rate // file.samplerate)


def _mixed(file: soundfile.SoundFile, name: str) -> NDArray[np.float64]:
    """The mean of the channels, within [-1, 1] for whole numbers."""
    parts, left = [], file.frames
    while left > 0:
        part = file.read(min(left, max(1, _BLOCK // file.channels)), dtype="float64")
        if not len(part):
            raise UserError(f"{name}: cut off: says {file.frames:,} samples, but holds {file.frames - left:,}.")
        if not np.isfinite(part).all():
            raise UserError(f"{name}: holds samples that are no numbers.")
        parts.append(part.mean(1) if part.ndim > 1 else part)
        left -= len(part)
    return np.concatenate(parts)


def _sixteen_bits(sound: NDArray[np.float64]) -> NDArray[np.int16]:
    return np.clip(np.round(sound * 32767), -32768, 32767).astype(np.int16)
