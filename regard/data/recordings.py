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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

__all__ = ["Recordings", "made_sounds", "read_recordings", "scene"]

_PEAK = 8192
_MOST, _LOUDNESSES = 7, 7
_LIMIT = 32767
_NAMES = ("chirp", "high", "low", "noise")


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
    try:
        with np.load(path, allow_pickle=False) as content:
            parts = {name: content[name] for name in ("samples", "offsets", "label", "index", "sample_rate")}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(
            f"{path}: expected an npz with samples, offsets, label, index, sample_rate, without pickle ({error})."
        ) from error
    offsets = parts["offsets"].astype(np.int64)
    samples, count = parts["samples"], len(offsets) - 1
    lengths = np.diff(offsets)
    if samples.dtype != np.int16 or offsets[-1:].tolist() != [len(samples)] or (lengths <= 0).any():
        raise UserError(f"{path}: offsets must rise from 0 to the number of samples, which must be int16.")
    if len(parts["label"]) != count or len(parts["index"]) != count:
        raise UserError(f"{path}: holds {count} recordings, but {len(parts['label'])} labels.")
    if lengths.max() > length:
        raise UserError(
            f"{path}: a recording has {lengths.max():,} samples, but a scene {length:,}: raise data.seconds."
        )
    labels = tuple(str(label) for label in parts["label"])
    found = Recordings(samples, offsets, labels, parts["index"], int(parts["sample_rate"]), str(path))
    for split in ("train", "val", "test"):
        if not len(found.of(split)):
            raise UserError(f"{path}: no recording has an index of the {split} split.")
    return found


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
