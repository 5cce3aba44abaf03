"""Sound files as blocks of 16-bit samples: mixed to mono, resampled to one rate.

libsndfile reads WAV, AIFF, AU, CAF, W64, RF64, FLAC, Ogg and MP3. Only a block is in memory.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from regard.errors import UserError
from regard.system.files import check_file

ENDINGS = (
    *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff"),
    *(".au", ".caf", ".w64", ".rf64"),
)
"""File extensions of sounds in a folder."""
_BLOCK = 1 << 18


class _SequentialFile(soundfile.SoundFile):
    """Sound file without the seek after each block, which is not exact in MP3."""

    def seekable(self) -> bool:
        return False


def read_sample_rate(file: Path) -> int:
    """Return the sample rate of a file. Raises: UserError as `decode_sound`."""
    check_file(file)
    with _readable(str(file)), soundfile.SoundFile(file) as sound:
        return sound.samplerate


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: samples without a header
        problem = getattr(error, "error_string", error)
        raise UserError(f"{name}: not a readable sound file ({problem}).") from error


def decode_sound(
    file: Path | io.BytesIO, sample_rate: int, name: str
) -> Iterator[NDArray[np.int16]]:
    """Yield the samples of a file or its content block by block.

    name:   of the file, for messages.
    Raises: UserError if the file is missing, damaged, empty or not a sound.
    """
    if isinstance(file, Path):
        check_file(file)
    _check_wav(file, name)
    with _readable(name), _SequentialFile(file) as sound:
        resampler = None
        if sound.samplerate != sample_rate:
            resampler = soxr.ResampleStream(sound.samplerate, sample_rate, 1, dtype="float64")
        count = 0
        while True:
            block = sound.read(_BLOCK, always_2d=True)
            if not np.isfinite(block).all():
                raise UserError(f"{name}: contains samples that are not finite.")
            count += len(block)
            samples = block.clip(-1, 1).mean(1)
            if resampler is not None:
                samples = resampler.resample_chunk(samples, last=not len(block))
            yield np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)
            if not len(block):
                break
    if not count:
        raise UserError(f"{name}: contains no samples.")


def _check_wav(file: Path | io.BytesIO, name: str) -> None:
    """Raise UserError if a WAV file is shorter than its header says, which libsndfile accepts."""
    if isinstance(file, io.BytesIO):
        header, count = file.getvalue()[:8], file.getbuffer().nbytes
    else:
        with file.open("rb") as opened:
            header, count = opened.read(8), file.stat().st_size
    size = 8 + int.from_bytes(header[4:], "little")
    # Programs that write to a pipe do not know the size, and state about 2 or 4 GiB.
    if header[:4] == b"RIFF" and count < size < 0x7FFF0000:
        raise UserError(f"{name}: is cut: it has {count:,} of {size:,} bytes.")
