"""Single recordings of sounds, from a file or synthetic, and scenes mixed from them by a
deterministic rule.

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
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import read_arrays
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.lines import check_kind
from regard.errors import UserError

_EXPECTED = "a table of sound files and events in .csv, .tsv or .jsonl, or recordings in .npz"

_PEAK = 8192
_MOST, _LOUDNESSES = 7, 7
_LIMIT = 32767
_NAMES = ("chirp", "high", "low", "noise")
_MOST_RATE = 768_000
_ARRAYS = {
    "samples": ("i", 1, "a row of int16"),
    "offsets": ("iu", 1, "a row of integers"),
    "label": ("iufUS", 1, "a row of strings or numbers"),
    "index": ("iu", 1, "a row of integers"),
    "sample_rate": ("iuf", 0, "a number"),
}
"""Kinds of dtype, number of axes and description of each array."""


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
        """Return the indices of the recordings of a split."""
        first, last = {"test": (0, 5), "val": (5, 10), "train": (10, 1 << 40)}[split]
        return np.flatnonzero((self.index >= first) & (self.index < last))

    def read(self, number: int) -> NDArray[np.int64]:
        """Return the samples of a recording."""
        return self.samples[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)


def read_recordings(path: Path, length: int) -> Recordings:
    """Read the recordings of an npz file. Raises UserError if it is invalid, or one exceeds
    `length` samples."""
    if path.exists() and path.suffix.lower() != ".npz":
        check_kind(path, _EXPECTED)
        if path.suffix.lower() == ".txt":
            hint = "label tracks of Audacity name no sound file: write a table with file,onset,offset,label"
            raise UserError(f"{path}: expected {_EXPECTED}; {hint}.")
    arrays = read_arrays(path, tuple(_ARRAYS))
    for name, (kinds, axes, expected) in _ARRAYS.items():
        array = arrays[name]
        if array.dtype.kind not in kinds or array.ndim != axes or not array.size:
            raise UserError(
                f"{path}, array {name}: expected {expected}, got {array.dtype} of shape "
                f"{array.shape}."
            )
    samples, offsets, index = arrays["samples"], arrays["offsets"], arrays["index"].astype(np.int64)
    is_complete = [*offsets[:1].tolist(), *offsets[-1:].tolist()] == [0, len(samples)] and (
        offsets[1:] > offsets[:-1]
    ).all()
    if samples.dtype.itemsize != 2 or not is_complete or len(offsets) < 2:
        raise UserError(
            f"{path}: offsets must increase from 0 to the number of samples, which must be int16."
        )
    offsets = offsets.astype(np.int64)
    count, lengths = len(offsets) - 1, np.diff(offsets)
    for name, noun in (("label", "labels"), ("index", "entries of index")):
        if len(arrays[name]) != count:
            raise UserError(f"{path}: has {count} recordings, but {len(arrays[name])} {noun}.")
    if lengths.max() > length:
        raise UserError(
            f"{path}: a recording has {lengths.max():,} samples, more than the {length:,} of a "
            f"scene: raise "
            "--data.seconds."
        )
    rate = arrays["sample_rate"].item()
    if not 1 <= rate <= _MOST_RATE or rate != int(rate):
        raise UserError(
            f"{path}: sample_rate must be an integer from 1 to {_MOST_RATE:,}, got {rate}."
        )
    normalizer = LabelNormalizer()
    labels = tuple(
        normalizer[_label(label, i, path)]
        for i, label in enumerate(arrays["label"].tolist(), start=1)
    )
    normalizer.warn(str(path))
    recordings = Recordings(samples.astype(np.int16), offsets, labels, index, int(rate), str(path))
    for split in ("train", "val", "test"):
        if not len(recordings.indices(split)):
            raise UserError(f"{path}: no recording has an index of the {split} split.")
    return recordings


def make_sounds(sample_rate: int, seed: int) -> Recordings:
    """Generate synthetic tones, chirps and noises of a quarter of a second to one second, 40 of
    each."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 41))))
    parts, labels, index = [], [], []
    for number in range(40):
        for name in _NAMES:
            time = np.arange(int(draw.uniform(0.25, 1.0) * sample_rate)) / sample_rate
            parts.append((_synthesize(name, time, sample_rate, draw) * 8000).astype(np.int16))
            labels.append(name)
            index.append(number)
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return Recordings(
        np.concatenate(parts),
        offsets,
        tuple(labels),
        np.array(index),
        sample_rate,
        "synthetic sounds",
    )


def mix_scene(
    recordings: Recordings, split: str, number: int, length: int
) -> tuple[NDArray[np.int16], list[tuple[int, int, str]]]:
    """Mix a scene. Returns its samples, and its events in order: first sample, end, label."""
    key = f"fsdd-scene-v1/{split}/{number}"
    draws, choice = _draws(key), recordings.indices(split)
    sound, events = np.zeros(length, np.int64), []
    for _ in range(next(draws) % _MOST):
        index = int(choice[next(draws) % len(choice)])
        recording = recordings.read(index)
        recording = recording * _PEAK // max(1, int(np.abs(recording).max()))
        start = next(draws) % (length - len(recording) + 1)
        sound[start : start + len(recording)] += (
            recording * (64 + 32 * (next(draws) % _LOUDNESSES)) // 256
        )
        events.append((start, start + len(recording), recordings.labels[index]))
    blocks = range(-(-length // 32))
    noise = b"".join(hashlib.sha256(f"{key}/noise/{i}".encode("ascii")).digest() for i in blocks)
    sound += np.frombuffer(noise, np.uint8)[:length].astype(np.int64) - 128
    return np.clip(sound, -_LIMIT - 1, _LIMIT).astype(np.int16), sorted(events)


def _label(value: object, number: int, path: Path) -> str:
    """Return a label as a string. Raises UserError if it is empty, nan or infinite, or not
    UTF-8."""
    try:
        label = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        label.encode()
    except UnicodeError as error:
        raise UserError(f"{path}, label {number}: not UTF-8 ({error}).") from error
    if not label.strip() or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{path}, label {number}: expected a string or a number, got {label!r}.")
    return label


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
