"""Sound files, read by libsndfile block by block: channels mixed, at the requested rate, in 16 bits.

The header is checked before anything is read: rate, channels, and how many samples it states. Memory is bounded by the
block, whatever the length; samples come in order, without seeking, because MP3 and Opus do not seek exactly.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from regard.data.resample import resample
from regard.data.sample_store import SampleStore
from regard.data.sound_containers import missing
from regard.digests import note_file
from regard.errors import UserError
from regard.files import check_content, check_readable, file_limit, is_limit_set, read_bytes
from regard.pipes import is_pipe

FORMATS = "WAV, W64, RF64, AIFF, AU, CAF, FLAC, Ogg and MP3"
_MAGICS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"caff", b"fLaC", b"OggS")
_FORMATS = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3")
_RATES = (1_000, 768_000)
_MOST_CHANNELS = 64
_NUMBER_BYTES = 2
_MOST_RATIO = 100
_ENDLESS = 1 << 62
_LONGEST_RATIO = 64
"""Above the ratio of the largest and the smallest bit rate of an MP3."""
_ID3_HEADER, _MOST_TAGS, _FIRST_FRAME = 10, 100, 4096
_BLOCK = 1 << 18
_START_BYTES = 64


@dataclass(frozen=True)
class SoundNotes:
    """Sentences about a sound that was read; each is empty if there is nothing to say."""

    cut_off: str = ""
    """The file is cut off or damaged; its samples were read up to there."""
    clipped: str = ""
    """Floating samples lie outside [-1, 1] and were clipped."""


class _Stream(soundfile.SoundFile):
    """A sound file that is read from beginning to end. soundfile would otherwise seek after each block."""

    def seekable(self) -> bool:
        return False


def read_sound(path: Path, sample_rate: int, where: str = "") -> tuple[NDArray[np.int16], SoundNotes]:
    """Return the samples of a sound file, and what is to be said about them. Raises as `append_sound`."""
    store = SampleStore()
    notes = append_sound(store, path, sample_rate, where)
    return store.array(), notes


def append_sound(store: SampleStore, path: Path, sample_rate: int, where: str = "") -> SoundNotes:
    """Append the samples of a sound file at this rate.

    where:  the place that names the file, for messages.
    Raises: UserError naming both if it is not a sound file of these formats, is empty, holds numbers that are not
            finite, or what its header states is outside the bounds: at most 1 GiB of samples, or 100 times the size of
            the file if that is more; or what REGARD_MAX_FILE_MIB states.
    """
    name = f"{where}: {path}" if where else str(path)
    try:
        found = check_readable(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    try:
        with _spooled(path) if is_pipe(found) else path.open("rb") as file:
            start = file.read(_START_BYTES)
            check_content(name, start)
            note_file(path, file)
            missing_end = missing(file)
            with _opened(file, start[:8], name) as (sound, stated):
                reading = _Reading(sound, name, most=_most_samples(file), stated=stated)
                reading.check(sample_rate)
                for block in resample(reading.blocks(), sound.samplerate, sample_rate, size=_BLOCK):
                    store.append(np.clip(np.round(block * 32767), -32768, 32767).astype(np.int16))
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error}.") from error
    return reading.notes(missing_end)


def _spooled(path: Path) -> BinaryIO:
    """What comes through a pipe, in a temporary file."""
    file = tempfile.TemporaryFile(prefix="regard-sound-")  # noqa: SIM115  # the caller closes it
    file.write(read_bytes(path))
    file.seek(0)
    return file


def _most_samples(file: BinaryIO) -> int:
    """A limit against files of few bytes that state, or unpack to, absurdly many samples."""
    size = os.fstat(file.fileno()).st_size
    return (file_limit() if is_limit_set() else max(file_limit(), _MOST_RATIO * size)) // _NUMBER_BYTES


class _Reading:
    """A sound file while it is read: its samples, mixed; how many they are, and how many of them are clipped."""

    def __init__(self, sound: soundfile.SoundFile, name: str, *, most: int, stated: int | None):
        self._sound, self._name, self._most, self._stated = sound, name, most, stated
        self._count, self._num_clipped, self._peak, self._damage = 0, 0, 1.0, ""
        self._is_floating = sound.subtype in ("FLOAT", "DOUBLE")

    def check(self, sample_rate: int) -> None:
        """Check what the header states."""
        sound, name = self._sound, self._name
        if sound.format not in _FORMATS:
            raise UserError(f"{name}: not a sound file that is read: {sound.format}, not one of {FORMATS}.")
        least, most = _RATES
        if not least <= sound.samplerate <= most:
            raise UserError(f"{name}: says {sound.samplerate:,} samples a second; expected {least:,} to {most:,}.")
        if not 1 <= sound.channels <= _MOST_CHANNELS:
            raise UserError(f"{name}: says {sound.channels:,} channels; expected 1 to {_MOST_CHANNELS}.")
        if sound.frames < 1:
            raise UserError(f"{name}: holds no samples.")
        self._most = min(self._most, self._most * sound.samplerate // sample_rate)
        if self._stated is not None and self._stated > self._most:
            raise UserError(self._too_long(f"states {self._stated:,} samples, more than"))

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the mean of the channels, each within [-1, 1]."""
        block = np.empty((max(1, _BLOCK // self._sound.channels), self._sound.channels))
        while len(part := self._next(block)):
            self._count += len(part)
            if self._count > self._most:
                raise UserError(self._too_long("holds more than"))
            if not np.isfinite(part).all():
                raise UserError(f"{self._name}: holds samples that are no numbers.")
            if self._is_floating:
                self._num_clipped += int((np.abs(part) > 1).sum())
                self._peak = max(self._peak, float(np.abs(part).max()))
            yield part.clip(-1, 1).mean(1)
        if not self._count:
            raise UserError(f"{self._name}: holds no samples{f', is {self._damage}' if self._damage else ''}.")

    def _next(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        """Read a block; what was decoded before an error counts."""
        if self._damage:
            return block[:0]
        block.fill(np.nan)
        try:
            return block[: len(self._sound.read(out=block))]
        except soundfile.SoundFileError as error:
            decoded = block[: int((~np.isnan(block[:, -1])).sum())]
            self._damage = f"damaged or cut off after {self._count + len(decoded):,} samples ({_problem(error)})"
            return decoded

    def notes(self, missing_end: str) -> SoundNotes:
        """Return what is to be said when all samples are read; missing_end: what the container says is missing."""
        if not missing_end and self._stated is not None and self._count < self._stated:
            missing_end = f"its header states {self._stated:,} samples, the file holds {self._count:,}"
        cut_off = self._damage or (missing_end and f"cut off: {missing_end}")
        clipped = f"{self._num_clipped:,} of its samples lie outside [-1, 1], up to {self._peak:,.4g}, and are clipped"
        return SoundNotes(
            f"{self._name}: {cut_off}." if cut_off else "",
            f"{self._name}: {clipped}." if self._num_clipped else "",
        )

    def _too_long(self, problem: str) -> str:
        return (
            f"{self._name}: {problem} the {self._most:,} that are read of a file of this size at this rate "
            "(REGARD_MAX_FILE_MIB raises this)."
        )


@contextmanager
def _opened(file: BinaryIO, start: bytes, name: str) -> Iterator[tuple[soundfile.SoundFile, int | None]]:
    """Open a sound whose first bytes are those of a known format; also the number of samples that it states, if any."""
    is_mpeg = start.startswith(b"ID3") or (len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0)
    if not start.startswith(_MAGICS) and not is_mpeg:
        raise UserError(f"{name}: not a sound file that is read: it starts with {start[:4]!r}; read are {FORMATS}.")
    is_measured = not is_mpeg or _is_measured(file)
    is_unfinished = start[:4] == b"RIFF" and start[4:] in (b"\0\0\0\0", b"\xff\xff\xff\xff")
    kind = _Unfinished if is_unfinished else _Source if is_measured else _Endless
    with ExitStack() as stack:
        # By number, because a name that ends in .raw would mean samples without a header.
        handle = stack.enter_context(kind(file.fileno(), closefd=False))
        handle.seek(0)
        try:
            sound = stack.enter_context(_Stream(handle))
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
            problem = _problem(error)
            if is_mpeg and "MP3" not in soundfile.available_formats():
                version = soundfile.__libsndfile_version__
                problem = f"libsndfile {version} does not read MP3, 1.1 does: pip install --upgrade soundfile"
            raise UserError(f"{name}: not a sound file that can be read ({problem}).") from error
        yield sound, sound.frames if is_measured and sound.frames < _ENDLESS else None
        if handle.error is not None:
            raise handle.error


class _Source(io.FileIO):
    """A file whose errors do not leave the functions that libsndfile calls, where they would be printed."""

    error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with suppress(OSError, OverflowError):  # damaged headers name places before the beginning
            super().seek(offset, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as error:
            self.error = error
            return 0


class _Endless(_Source):
    """A file that states a length that it does not have, and is silent there.

    Of an MP3 that does not state its length, libsndfile estimates it by that of the first frame, and reads no further.
    """

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(offset + _LONGEST_RATIO * self._size())
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        if self.tell() > self._size():  # tags at the end are looked for
            buffer[:] = bytes(len(buffer))
            return len(buffer)
        return super().readinto(buffer)

    def _size(self) -> int:
        return os.fstat(self.fileno()).st_size


class _Unfinished(_Source):
    """A WAV file that was never finished, or is a stream: its header holds no lengths.

    Where that of the samples is 0, libsndfile reads them if that of the file is 8.
    """

    def readinto(self, buffer: Any) -> int:
        place = self.tell()
        count = super().readinto(buffer)
        for i in range(max(4, place), min(8, place + count)):
            buffer[i - place : i - place + 1] = b"\x08\0\0\0"[i - 4 : i - 3]
        return count


def _is_measured(file: BinaryIO) -> bool:
    """Return True if the first frame of an MP3, behind ID3 tags, holds its length."""
    place = 0
    for _ in range(_MOST_TAGS):
        file.seek(place)
        head = file.read(_ID3_HEADER)
        if not head.startswith(b"ID3") or len(head) < _ID3_HEADER:
            break
        place += _ID3_HEADER + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(place)
    frame = file.read(_FIRST_FRAME)
    return b"Xing" in frame or b"Info" in frame


def _problem(error: Exception) -> str:
    text = getattr(error, "error_string", "") or ("" if isinstance(error, soundfile.SoundFileError) else str(error))
    return text.strip() or f"error {getattr(error, 'code', 'without a number')} of libsndfile"
