"""Single recordings of sounds, from a file or synthetic, and scenes mixed from them by a rule.

Scene k of split S has the key fsdd-scene-v1/S/k; its numbers are the bytes of SHA-256(key/0),
SHA-256(key/1), ...:

    n = up to six events, each: a recording, scaled to a peak of 8,192, at a random position and
    with a random gain noise = the bytes of SHA-256(key/noise/0) .. minus 128

so a scene is the same on every machine. Recordings are stored in an npz file: samples (int16,
concatenated), offsets, label, index, sample_rate; index 0 to 4 is the test split, 5 to 9
validation, the rest training. By default, synthetic tones and noises are used.

Source: Free Spoken Digit Dataset (splits by index).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import load_arrays
from regard.data.batches import generator
from regard.data.text.labels import normalize_label
from regard.errors import UserError
from regard.system.files import read_bytes, suffix_of

_ARRAYS = ("samples", "offsets", "label", "index", "sample_rate")
_PEAK = 8192
_MAX_EVENTS, _NUM_GAINS = 7, 7
_NAMES = ("chirp", "high", "low", "noise")


@dataclass(frozen=True)
class Recordings:
    """Single recordings with their labels."""

    samples: NDArray[np.int16]
    offsets: NDArray[np.int64]
    labels: tuple[str, ...]
    index: NDArray[np.int64]
    sample_rate: int
    origin: str

    def indices(self, split: str) -> NDArray[np.int64]:
        first, last = {"test": (0, 5), "val": (5, 10), "train": (10, 1 << 40)}[split]
        return np.flatnonzero((self.index >= first) & (self.index < last))

    def read(self, number: int) -> NDArray[np.int64]:
        return self.samples[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)


def is_recordings(path: str | Path) -> bool:
    """Return True for a file of recordings, rather than of events."""
    return suffix_of(path) == ".npz"


def read_recordings(path: Path, length: int) -> Recordings:
    """Read the recordings of an npz file, each of at most `length` samples."""
    arrays = load_arrays(read_bytes(path), str(path), _ARRAYS)
    samples, offsets, label, index, rate = [arrays[name] for name in _ARRAYS]
    if samples.dtype != np.int16 or samples.ndim != 1:
        raise UserError(f"{path}: samples must be a row of int16, got {samples.dtype}.")
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.min() < 1 or offsets[0] or offsets[-1] != len(samples):
        raise UserError(f"{path}: offsets must increase from 0 to the number of samples.")
    if not len(lengths) == len(label) == len(index):
        counts = f"{len(label)} labels and {len(index)} entries of index"
        raise UserError(f"{path}: {len(lengths)} recordings, but {counts}.")
    if lengths.max() > length:
        problem = f"a recording has {lengths.max():,} samples, more than the {length:,} of a scene"
        raise UserError(f"{path}: {problem}: raise --data.seconds.")
    names = tuple(normalize_label(name) for name in label.astype(str).tolist())
    offsets, index = offsets.astype(np.int64), index.astype(np.int64)
    recordings = Recordings(samples, offsets, names, index, int(rate), str(path))
    for split in ("train", "val", "test"):
        if not len(recordings.indices(split)):
            raise UserError(f"{path}: no recording has an index of the {split} split.")
    return recordings


def make_sounds(sample_rate: int, seed: int) -> Recordings:
    """Generate tones, chirps and noises of a quarter of a second to one second, 40 of each."""
    draw = generator(seed, 41)
    parts, labels, index = [], [], []
    for number in range(40):
        for name in _NAMES:
            time = np.arange(int(draw.uniform(0.25, 1.0) * sample_rate)) / sample_rate
            parts.append((_synthesize(name, time, sample_rate, draw) * 8000).astype(np.int16))
            labels.append(name)
            index.append(number)
    samples, offsets = np.concatenate(parts), np.cumsum([0, *(len(part) for part in parts)])
    origin = "synthetic sounds"
    return Recordings(samples, offsets, tuple(labels), np.array(index), sample_rate, origin)


def mix_scene(
    recordings: Recordings, split: str, number: int, length: int
) -> tuple[NDArray[np.int16], list[tuple[int, int, str]]]:
    """Mix a scene. Returns its samples, and its events in order: first sample, end, label."""
    key = f"fsdd-scene-v1/{split}/{number}"
    draws, choice = _draws(key), recordings.indices(split)
    sound, events = np.zeros(length, np.int64), []
    for _ in range(next(draws) % _MAX_EVENTS):
        index = int(choice[next(draws) % len(choice)])
        recording = recordings.read(index)
        recording = recording * _PEAK // max(1, int(np.abs(recording).max()))
        start = next(draws) % (length - len(recording) + 1)
        end = start + len(recording)
        sound[start:end] += recording * (64 + 32 * (next(draws) % _NUM_GAINS)) // 256
        events.append((start, end, recordings.labels[index]))
    blocks = range(-(-length // 32))
    noise = b"".join(hashlib.sha256(f"{key}/noise/{i}".encode("ascii")).digest() for i in blocks)
    sound += np.frombuffer(noise, np.uint8)[:length].astype(np.int64) - 128
    return np.clip(sound, -32768, 32767).astype(np.int16), sorted(events)


def _draws(key: str) -> Iterator[int]:
    """Yield pseudo-random integers: big-endian, of four bytes each."""
    block = 0
    while True:
        digest = hashlib.sha256(f"{key}/{block}".encode("ascii")).digest()
        yield from (int.from_bytes(digest[i : i + 4], "big") for i in range(0, len(digest), 4))
        block += 1


def _synthesize(
    name: str, time: NDArray[np.float64], sample_rate: int, draw: np.random.Generator
) -> NDArray[np.float64]:
    fade = np.minimum(1.0, np.minimum(time, time[-1] - time) / 0.02)
    top = sample_rate / 2
    if name == "noise":
        return fade * draw.uniform(-1, 1, len(time))
    low, high = {"low": (0.04, 0.1), "high": (0.4, 0.7), "chirp": (0.1, 0.4)}[name]
    pitch = draw.uniform(low, high) * top
    rise = 0.5 * pitch / time[-1] if name == "chirp" else 0.0
    return fade * np.sin(2 * np.pi * (pitch * time + rise * time**2 / 2))
