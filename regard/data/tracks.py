"""Tracks of people on a plane: frames, who is where, and windows of them as each person sees the others.

    FILE: frame, id, x, y       in meters (regard.data.track_files)
    window                      `observed + predicted` consecutive entries of the sorted list of frames, and everybody
                                who is there in all of them (at least `least` people)

A person's view of a window: where they last were is the origin, and the way they came points along x. Whatever is moved
or turned as a whole then looks the same, which is what every crowd has in common.

Source: windows as in gupta2018, section 4.1 (8 observed, 12 predicted, 0.4 s apart); made-up crowds helbing1995.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.config import TracksConfig
from regard.data.track_files import Frames, in_order, read_frames
from regard.errors import UserError

_SLOW = 1e-6


@dataclass(frozen=True)
class Windows:
    """All windows of some recordings."""

    positions: NDArray[np.float64]
    """(people, time, 2), window after window"""
    offsets: NDArray[np.int64]
    """Window i is people offsets[i] to offsets[i + 1]."""
    origin: str
    skipped: tuple[str, ...] = ()
    """Lines that were left out because the user asked for that, and why."""

    @property
    def window_of(self) -> NDArray[np.int64]:
        """The window that each person is in."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.positions)


def windows_of(frames: Frames, length: int, least: int) -> list[NDArray[np.float64]]:
    """Positions (people, length, 2) of everybody who is there in `length` entries of the list of frames in a row."""
    names, found = sorted(frames), []
    for start in range(len(names) - length + 1):
        part = [frames[name] for name in names[start : start + length]]
        always = in_order(set.intersection(*(set(there) for there in part)))
        if len(always) >= least:
            found.append(np.array([[there[who] for there in part] for who in always]))
    return found


def read_windows(paths: Sequence[str | Path], config: TracksConfig) -> Windows:
    """The windows of several recordings. Raises UserError as `read_frames`, and if there is none."""
    found: list[NDArray[np.float64]] = []
    skipped: list[str] = []
    for path in paths:
        frames, bad = read_frames(path, config.on_bad)
        found += windows_of(frames, config.observed + config.predicted, config.least)
        skipped += bad
    origin = ", ".join(map(str, paths))
    if not found:
        length = config.observed + config.predicted
        raise UserError(f"{origin}: nowhere are {config.least} people there in {length} frames in a row.")
    return replace(_joined(found, origin), skipped=tuple(skipped))


def made_tracks(split: str, seed: int, config: TracksConfig) -> Windows:
    """People who cross a square, each toward a goal and around the others: a crowd made by forces between people."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, sum(map(ord, split))))))
    count = {"train": 400, "val": 60, "test": 100}[split]
    length = config.observed + config.predicted
    return _joined([_crowd(draw, int(draw.integers(2, 7)), length) for _ in range(count)], f"made-up crowds, {split}")


def _crowd(draw: np.random.Generator, people: int, length: int) -> NDArray[np.float64]:
    angle = draw.uniform(0, 2 * np.pi, people)
    place = 4 * np.stack((np.cos(angle), np.sin(angle)), -1) + draw.normal(0, 0.5, (people, 2))
    goal = -place + draw.normal(0, 1.0, (people, 2))
    pace = draw.uniform(0.8, 1.5, (people, 1))
    velocity, tracks, dt = np.zeros((people, 2)), [], 0.1
    for step in range(4 * length):
        away = place[:, None] - place[None]
        distance = np.linalg.norm(away, axis=-1, keepdims=True) + np.eye(people)[..., None] * 1e9
        push = (away / distance * 3.0 * np.exp(-distance / 0.6)).sum(1)
        wish = (goal - place) / np.maximum(np.linalg.norm(goal - place, axis=-1, keepdims=True), 0.3) * pace
        velocity = velocity + dt * ((wish - velocity) / 0.5 + push)
        place = place + dt * velocity
        if step % 4 == 0:
            tracks.append(place)
    return np.stack(tracks, 1)


def _joined(found: Sequence[NDArray[np.float64]], origin: str) -> Windows:
    offsets = np.cumsum([0, *(len(one) for one in found)])
    return Windows(np.concatenate(found), offsets, origin)


def views(
    windows: Windows, people: Sequence[int], *, observed: int, neighbors: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """What each of these people sees: (person, 1 + neighbors, observed, 2), themselves first, then the nearest.

    Also how many are there, what is to come in the same frame (person, predicted, 2), and the turns (person, 2, 2) that
    lead back: x = origin + view @ turn, the origin being where the person last was.
    """
    window_of, size = windows.window_of, 1 + neighbors
    seen = np.zeros((len(people), size, observed, 2))
    counts, future, turns = np.ones(len(people), np.int64), [], []
    for row, person in enumerate(people):
        first, last = windows.offsets[window_of[person]], windows.offsets[window_of[person] + 1]
        everyone = windows.positions[first:last]
        own = windows.positions[person]
        origin, came = own[observed - 1], own[observed - 1] - own[0]
        reach = np.hypot(*came)
        along = came / reach if reach > _SLOW else np.array([1.0, 0.0])
        turn = np.array([along, [-along[1], along[0]]])
        others = np.delete(np.arange(last - first), person - first)
        nearest = others[np.argsort(np.linalg.norm(everyone[others, observed - 1] - origin, axis=-1), kind="stable")]
        who = [person - first, *nearest[:neighbors]]
        seen[row, : len(who)] = (everyone[who, :observed] - origin) @ turn.T
        counts[row] = len(who)
        future.append((own[observed:] - origin) @ turn.T)
        turns.append(turn)
    return seen, counts, np.array(future), np.array(turns)


@dataclass(frozen=True)
class TrackBatch:
    """Views and what is to come of each, in meters."""

    source: Padded
    """(rows, people, observed, 2), the row's own person first"""
    target: Tensor
    """(rows, predicted, 2)"""
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "TrackBatch":
        """The same batch on a device."""
        return TrackBatch(self.source.to(device), self.target.to(device, non_blocking=True), self.indices)


class TrackBatches:
    """Batches of people in an order of their own for each epoch; training mirrors and scales them at random."""

    def __init__(self, windows: Windows, config: TracksConfig, *, rows: int, seed: int, augment: bool = False):
        self.config, self.rows, self.seed, self.augment = config, rows, seed, augment
        people = range(len(windows))
        seen = views(windows, people, observed=config.observed, neighbors=config.neighbors)
        self.seen, self.counts, self.future = (torch.from_numpy(part) for part in seen[:3])

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (seed, epoch)."""
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch))))
        order = draw.permutation(len(self.counts)) if self.augment else np.arange(len(self.counts))
        return [tuple(order[i : i + self.rows].tolist()) for i in range(0, len(order), self.rows)]

    def collate(self, epoch: int, indices: Sequence[int]) -> TrackBatch:
        """The tensors of these people."""
        index = torch.tensor(indices)
        seen, counts, future = self.seen[index].float(), self.counts[index], self.future[index].float()
        if self.augment:
            draws = [np.random.PCG64(np.random.SeedSequence((self.seed, epoch, i))).random_raw(2) for i in indices]
            sign = torch.tensor([[1.0, 1.0 if draw[0] % 2 else -1.0] for draw in draws])
            scale = torch.tensor([0.8 + 0.5 * float(draw[1] % 1024) / 1024 for draw in draws])
            change = sign * scale[:, None]
            seen, future = seen * change[:, None, None], future * change[:, None]
        return TrackBatch(Padded(seen[:, : int(counts.max())], counts), future, tuple(indices))
