"""Scenes of several recordings over one another: sounds to find events in, made from single recordings by a fixed rule.

Scene k of split S has the key fsdd-scene-v1/S/k; its numbers are the bytes of SHA-256(key/0), SHA-256(key/1), ...:

    n = up to six events, each: a recording, brought to a peak of 8,192, at a place of its own, louder or softer
    noise = the bytes of SHA-256(key/noise/0) .. less 128

so that a scene is the same everywhere and for ever. Recordings lie in an npz: samples (int16, end to end), offsets,
label, index, sample_rate; index 0 to 4 are for tests, 5 to 9 choose, the rest is learned from. Without any, tones and
noises are made up.

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
from regard.data.spellings import Spellings
from regard.errors import UserError

_PEAK = 8192
_MOST, _LOUDNESSES = 7, 7
_LIMIT = 32767
_NAMES = ("chirp", "high", "low", "noise")
_MOST_RATE = 768_000
_ARRAYS = {
    "samples": ("i", 1, "a row of int16"),
    "offsets": ("iu", 1, "a row of whole numbers"),
    "label": ("iufUS", 1, "a row of texts or numbers"),
    "index": ("iu", 1, "a row of whole numbers"),
    "sample_rate": ("iuf", 0, "a number"),
}
"""Of each array: what it holds, as numpy's kinds, axes and words."""


@dataclass(frozen=True)
class Recordings:
    """Single recordings with a label each."""

    samples: NDArray[np.int16]
    offsets: NDArray[np.int64]
    labels: tuple[str, ...]
    index: NDArray[np.int64]
    sample_rate: int
    origin: str

    def of(self, split: str) -> NDArray[np.int64]:
        """The numbers of the recordings of a split, in their order."""
        first, last = {"test": (0, 5), "val": (5, 10), "train": (10, 1 << 40)}[split]
        return np.flatnonzero((self.index >= first) & (self.index < last))

    def one(self, number: int) -> NDArray[np.int64]:
        """The samples of a recording."""
        return self.samples[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)


def read_recordings(path: Path, length: int) -> Recordings:
    """The recordings of an npz file. Raises UserError naming the file and what is wrong, also for too long ones."""
    parts = read_arrays(path, tuple(_ARRAYS))
    for name, (kinds, axes, wanted) in _ARRAYS.items():
        part = parts[name]
        if part.dtype.kind not in kinds or part.ndim != axes or not part.size:
            raise UserError(f"{path}, array {name}: expected {wanted}, got {part.dtype} of shape {part.shape}.")
    samples, offsets, index = parts["samples"], parts["offsets"], parts["index"].astype(np.int64)
    whole = [*offsets[:1].tolist(), *offsets[-1:].tolist()] == [0, len(samples)] and (offsets[1:] > offsets[:-1]).all()
    if samples.dtype.itemsize != 2 or not whole or len(offsets) < 2:
        raise UserError(f"{path}: offsets must rise from 0 to the number of samples, which must be int16.")
    offsets = offsets.astype(np.int64)
    count, lengths = len(offsets) - 1, np.diff(offsets)
    for name, what in (("label", "labels"), ("index", "entries of index")):
        if len(parts[name]) != count:
            raise UserError(f"{path}: holds {count} recordings, but {len(parts[name])} {what}.")
    if lengths.max() > length:
        raise UserError(
            f"{path}: a recording has {lengths.max():,} samples, but a scene {length:,}: raise data.seconds."
        )
    rate = parts["sample_rate"].item()
    if not 1 <= rate <= _MOST_RATE or rate != int(rate):
        raise UserError(f"{path}: sample_rate must be a whole number of 1 to {_MOST_RATE:,}, but is {rate}.")
    spellings = Spellings()
    labels = tuple(spellings[_label(label, i, path)] for i, label in enumerate(parts["label"].tolist(), start=1))
    spellings.warn_merged(str(path))
    found = Recordings(samples.astype(np.int16), offsets, labels, index, int(rate), str(path))
    for split in ("train", "val", "test"):
        if not len(found.of(split)):
            raise UserError(f"{path}: no recording has an index of the {split} split.")
    return found


def _label(given: object, number: int, path: Path) -> str:
    """A label as text. Raises UserError for one that is empty, not a number, or not Unicode."""
    try:
        label = given.decode("utf-8") if isinstance(given, bytes) else str(given)
        label.encode()
    except UnicodeError as error:
        raise UserError(f"{path}, label {number}: not UTF-8 ({error}).") from error
    if not label.strip() or (isinstance(given, float) and not math.isfinite(given)):
        raise UserError(f"{path}, label {number}: expected a text or a number, got {label!r}.")
    return label


def made_sounds(sample_rate: int, seed: int) -> Recordings:
    """Tones, chirps and noises of a quarter of a second to one second, 40 of each."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 41))))
    parts, labels, index = [], [], []
    for number in range(40):
        for name in _NAMES:
            time = np.arange(int(draw.uniform(0.25, 1.0) * sample_rate)) / sample_rate
            parts.append((_sound(name, time, sample_rate, draw) * 8000).astype(np.int16))
            labels.append(name)
            index.append(number)
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return Recordings(np.concatenate(parts), offsets, tuple(labels), np.array(index), sample_rate, "made-up sounds")


def scene(
    recordings: Recordings, split: str, number: int, length: int
) -> tuple[NDArray[np.int16], list[tuple[int, int, str]]]:
    """The samples of a scene, and its events in order: first sample, past the last, label."""
    key = f"fsdd-scene-v1/{split}/{number}"
    draws, choice = _draws(key), recordings.of(split)
    sound, events = np.zeros(length, np.int64), []
    for _ in range(next(draws) % _MOST):
        which = int(choice[next(draws) % len(choice)])
        one = recordings.one(which)
        one = one * _PEAK // max(1, int(np.abs(one).max()))
        start = next(draws) % (length - len(one) + 1)
        sound[start : start + len(one)] += one * (64 + 32 * (next(draws) % _LOUDNESSES)) // 256
        events.append((start, start + len(one), recordings.labels[which]))
    blocks = range(-(-length // 32))
    noise = b"".join(hashlib.sha256(f"{key}/noise/{i}".encode("ascii")).digest() for i in blocks)
    sound += np.frombuffer(noise, np.uint8)[:length].astype(np.int64) - 128
    return np.clip(sound, -_LIMIT - 1, _LIMIT).astype(np.int16), sorted(events)


def _draws(key: str) -> Iterator[int]:
    """Big-endian numbers of four bytes each."""
    block = 0
    while True:
        digest = hashlib.sha256(f"{key}/{block}".encode("ascii")).digest()
        yield from (int.from_bytes(digest[i : i + 4], "big") for i in range(0, len(digest), 4))
        block += 1


def _sound(name: str, time: NDArray[np.float64], sample_rate: int, draw: np.random.Generator) -> NDArray[np.float64]:
    fade = np.minimum(1.0, np.minimum(time, time[-1] - time) / 0.02)
    top = sample_rate / 2
    if name == "noise":
        return fade * draw.uniform(-1, 1, len(time))
    low, high = {"low": (0.04, 0.1), "high": (0.4, 0.7), "chirp": (0.1, 0.4)}[name]
    pitch = draw.uniform(low, high) * top
    rise = 0.5 * pitch / time[-1] if name == "chirp" else 0.0
    return fade * np.sin(2 * np.pi * (pitch * time + rise * time**2 / 2))
