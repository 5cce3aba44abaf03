"""Sound files, read block by block with libsndfile: mixed to mono, resampled, in 16 bits.

The header is checked before samples are read: rate, channels and number of samples. Memory is
bounded by the size of a block, for every length. Samples are read in order without seeking, since
seeking is not exact in MP3 and Opus.
"""

import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from regard.data.number_store import NumberStore
from regard.data.sound.containers import describe_truncation
from regard.data.sound.resample import resample
from regard.errors import UserError
from regard.system.files import check_content, check_readable, file_limit, is_limit_set, read_bytes
from regard.system.fingerprints import add_file_digest

FORMATS = "WAV, W64, RF64, AIFF, AU, CAF, FLAC, Ogg and MP3"
_MAGICS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"caff", b"fLaC", b"OggS")
_FORMATS = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3")
_RATES = (1_000, 768_000)
_MOST_CHANNELS = 64
_NUMBER_BYTES = 2
_MOST_RATIO = 100
_ENDLESS = 1 << 62
_LONGEST_RATIO = 64
"""Upper bound of the ratio of the largest to the smallest bit rate of an MP3."""
_ID3_HEADER, _MOST_TAGS, _FIRST_FRAME = 10, 100, 4096
_BLOCK = 1 << 18
_START_BYTES = 64


@dataclass(frozen=True)
class SoundNotes:
    """Notes on a sound that was read, for messages; empty if there are none."""

    cut_off: str = ""
    """Note that the file is truncated or damaged, and was read up to there."""
    clipped: str = ""
    """Note that floating-point samples outside [-1, 1] were clipped."""


class _Stream(soundfile.SoundFile):
    """Sound file that is read sequentially. soundfile would otherwise seek after each block."""

    def seekable(self) -> bool:
        return False


def read_sound(
    path: Path, sample_rate: int, where: str = ""
) -> tuple[NDArray[np.int16], SoundNotes]:
    """Read the samples of a sound file, with notes on them. Raises as `append_sound`."""
    store = NumberStore(np.int16, "samples")
    notes = append_sound(store, path, sample_rate, where)
    return store.array(), notes


def append_sound(store: NumberStore, path: Path, sample_rate: int, where: str = "") -> SoundNotes:
    """Append the samples of a sound file, resampled to `sample_rate`.

    where:  location of the reference to the file, for messages.
    Raises: UserError naming both if it is not a sound file of these formats, is empty, has samples
            that are not finite, or states more samples than allowed: 1 GiB, or 100 times the size
            of the file if that is more; or REGARD_MAX_FILE_MIB.
    """
    name = f"{where}: {path}" if where else str(path)
    try:
        status = check_readable(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    try:
        with _spool(read_bytes(path)) if stat.S_ISFIFO(status.st_mode) else path.open("rb") as file:
            add_file_digest(path, file)
            file.seek(0)
            return _append(store, file, sample_rate, name)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error}.") from error


def decode_sound(
    content: bytes, sample_rate: int, name: str
) -> tuple[NDArray[np.int16], SoundNotes]:
    """Return the samples in the content of a sound file, with notes on them. Raises as
    `append_sound`."""
    store = NumberStore(np.int16, "samples")
    with _spool(content) as file:
        notes = _append(store, file, sample_rate, name)
    return store.array(), notes


def _append(store: NumberStore, file: BinaryIO, sample_rate: int, name: str) -> SoundNotes:
    start = file.read(_START_BYTES)
    check_content(name, start)
    truncation = describe_truncation(file)
    with _open(file, start[:8], name) as (sound, stated):
        reader = _SoundReader(sound, name, most=_most_samples(file), stated=stated)
        reader.check(sample_rate)
        for block in resample(reader.blocks(), sound.samplerate, sample_rate, size=_BLOCK):
            store.append(np.clip(np.round(block * 32767), -32768, 32767).astype(np.int16))
    return reader.notes(truncation)


def _spool(content: bytes) -> BinaryIO:
    """Copy content to a temporary file, since libsndfile opens sounds by file descriptor."""
    file = tempfile.TemporaryFile(prefix="regard-sound-")  # noqa: SIM115  # the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _most_samples(file: BinaryIO) -> int:
    """Return the maximum number of samples of a file, against small files that state or decompress
    to too many."""
    size = os.fstat(file.fileno()).st_size
    return (
        file_limit() if is_limit_set() else max(file_limit(), _MOST_RATIO * size)
    ) // _NUMBER_BYTES


class _SoundReader:
    """Reader of the samples of a sound file, mixed to mono; counts all samples and the clipped
    ones."""

    def __init__(self, sound: soundfile.SoundFile, name: str, *, most: int, stated: int | None):
        self._sound, self._name, self._most, self._stated = sound, name, most, stated
        self._count, self._num_clipped, self._peak, self._damage = 0, 0, 1.0, ""
        self._is_floating = sound.subtype in ("FLOAT", "DOUBLE")

    def check(self, sample_rate: int) -> None:
        """Check the values in the header."""
        sound, name = self._sound, self._name
        if sound.format not in _FORMATS:
            raise UserError(
                f"{name}: not a supported sound file ({FORMATS}): its format is {sound.format}."
            )
        least, most = _RATES
        if not least <= sound.samplerate <= most:
            raise UserError(
                f"{name}: sample rate must be from {least:,} to {most:,}, got {sound.samplerate:,}."
            )
        if not 1 <= sound.channels <= _MOST_CHANNELS:
            raise UserError(
                f"{name}: number of channels must be from 1 to {_MOST_CHANNELS}, got "
                f"{sound.channels:,}."
            )
        if sound.frames < 1:
            raise UserError(f"{name}: contains no samples.")
        self._most = min(self._most, self._most * sound.samplerate // sample_rate)
        if self._stated is not None and self._stated > self._most:
            raise UserError(self._too_long(f"states {self._stated:,} samples, more than"))

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the mean of the channels, each within [-1, 1]."""
        block = np.empty((max(1, _BLOCK // self._sound.channels), self._sound.channels))
        while len(part := self._next(block)):
            self._count += len(part)
            if self._count > self._most:
                raise UserError(self._too_long("has more samples than"))
            if not np.isfinite(part).all():
                raise UserError(f"{self._name}: contains samples that are not finite.")
            if self._is_floating:
                self._num_clipped += int((np.abs(part) > 1).sum())
                self._peak = max(self._peak, float(np.abs(part).max()))
            yield part.clip(-1, 1).mean(1)
        if not self._count:
            raise UserError(
                f"{self._name}: contains no "
                f"samples{f', is {self._damage}' if self._damage else ''}."
            )

    def notes(self, truncation: str) -> SoundNotes:
        """Return the notes when all samples have been read. `truncation` describes what the
        container lacks."""
        if not truncation and self._stated is not None and self._count < self._stated:
            truncation = (
                f"its header states {self._stated:,} samples, but the file has {self._count:,}"
            )
        cut_off = self._damage or (truncation and f"truncated: {truncation}")
        clipped = f"{self._num_clipped:,} samples are outside [-1, 1], up to {self._peak:,.4g}, and are clipped"
        return SoundNotes(
            f"{self._name}: {cut_off}." if cut_off else "",
            f"{self._name}: {clipped}." if self._num_clipped else "",
        )

    def _next(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        """Read a block, including the samples that were decoded before an error."""
        if self._damage:
            return block[:0]
        block.fill(np.nan)
        try:
            return block[: len(self._sound.read(out=block))]
        except soundfile.SoundFileError as error:
            decoded = block[: int((~np.isnan(block[:, -1])).sum())]
            self._damage = f"damaged or truncated after {self._count + len(decoded):,} samples ({_problem(error)})"
            return decoded

    def _too_long(self, problem: str) -> str:
        return (
            f"{self._name}: {problem} the limit of {self._most:,} for a file of this size at this "
            f"rate "
            "(REGARD_MAX_FILE_MIB raises it)."
        )


@contextmanager
def _open(
    file: BinaryIO, start: bytes, name: str
) -> Iterator[tuple[soundfile.SoundFile, int | None]]:
    """Open a sound of a known format. Yields it and the number of samples that it states, or
    None."""
    is_mpeg = start.startswith(b"ID3") or (
        len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0
    )
    if not start.startswith(_MAGICS) and not is_mpeg:
        raise UserError(
            f"{name}: not a supported sound file ({FORMATS}): it starts with {start[:4]!r}."
        )
    has_length = not is_mpeg or _has_length(file)
    is_unfinished = start[:4] == b"RIFF" and start[4:] in (b"\0\0\0\0", b"\xff\xff\xff\xff")
    kind = _Unfinished if is_unfinished else _Source if has_length else _Endless
    with ExitStack() as stack:
        # By file descriptor, because a name that ends in .raw would mean samples without a header.
        handle = stack.enter_context(kind(file.fileno(), closefd=False))
        handle.seek(0)
        try:
            sound = stack.enter_context(_Stream(handle))
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
            problem = _problem(error)
            if is_mpeg and "MP3" not in soundfile.available_formats():
                version = soundfile.__libsndfile_version__
                problem = f"libsndfile {version} does not support MP3, 1.1 does: pip install --upgrade soundfile"
            raise UserError(f"{name}: not a readable sound file ({problem}).") from error
        yield sound, sound.frames if has_length and sound.frames < _ENDLESS else None
        if handle.error is not None:
            raise handle.error


class _Source(io.FileIO):
    """File whose exceptions are stored, since those in callbacks of libsndfile would be printed and
    lost."""

    error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with suppress(OSError, OverflowError):  # damaged headers contain negative offsets
            super().seek(offset, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as error:
            self.error = error
            return 0


class _Endless(_Source):
    """File that reports a larger size, and is filled with zeros beyond its end.

    If an MP3 does not state its length, libsndfile estimates it from the first frame and stops
    there.
    """

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(offset + _LONGEST_RATIO * self._size())
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        if self.tell() > self._size():  # libsndfile searches for tags at the end
            buffer[:] = bytes(len(buffer))
            return len(buffer)
        return super().readinto(buffer)

    def _size(self) -> int:
        return os.fstat(self.fileno()).st_size


class _Unfinished(_Source):
    """WAV file without lengths in its header: unfinished, or from a streaming writer.

    If the stated size of the samples is 0, libsndfile reads them only if the stated size of the
    file is 8.
    """

    def readinto(self, buffer: Any) -> int:
        position = self.tell()
        count = super().readinto(buffer)
        for i in range(max(4, position), min(8, position + count)):
            buffer[i - position : i - position + 1] = b"\x08\0\0\0"[i - 4 : i - 3]
        return count


def _has_length(file: BinaryIO) -> bool:
    """Return True if the first frame of an MP3, after ID3 tags, states its length."""
    offset = 0
    for _ in range(_MOST_TAGS):
        file.seek(offset)
        head = file.read(_ID3_HEADER)
        if not head.startswith(b"ID3") or len(head) < _ID3_HEADER:
            break
        offset += _ID3_HEADER + sum(
            (byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
        )
    file.seek(offset)
    frame = file.read(_FIRST_FRAME)
    return b"Xing" in frame or b"Info" in frame


def _problem(error: Exception) -> str:
    text = getattr(error, "error_string", "") or (
        "" if isinstance(error, soundfile.SoundFileError) else str(error)
    )
    return text.strip() or f"error {getattr(error, 'code', 'without a number')} of libsndfile"
