"""Data sets for trajectory forecasting: windows of recordings, in agent-centric frames.

    window                      `observed + predicted` consecutive entries of the sorted list of
                                frames, and all agents that are present in all of them (at least
                                `least`)

The agent-centric frame of the ego agent has its origin at the last observed position, and its x
axis along the observed motion, so inputs are invariant to translations and rotations of the scene.

Source: windows as in gupta2018, section 4.1 (8 observed, 12 predicted, 0.4 s apart); synthetic
        crowds: helbing1995.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import Batch, BatchesByCount, generator, pad_arrays, plan_by_sum
from regard.data.config import TracksConfig
from regard.data.held_out import describe_held_out, last_part
from regard.data.tables import numeric_order
from regard.data.track_files import Frames, read_frames
from regard.errors import UserError


@dataclass(frozen=True)
class TrackWindows:
    """Windows of recordings: the trajectories of all agents, window by window."""

    positions: NDArray[np.float64]
    """(agents, time, 2)"""
    offsets: NDArray[np.int64]
    """Window i has the agents offsets[i] to offsets[i + 1]."""
    origin: str
    notices: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.positions)


def extract_windows(frames: Frames, length: int, least: int) -> list[NDArray[np.float64]]:
    """Return the positions (agents, length, 2) of all agents in `length` consecutive frames."""
    names, windows = sorted(frames), []
    for start in range(len(names) - length + 1):
        part = [frames[name] for name in names[start : start + length]]
        present = set.intersection(*(set(positions) for positions in part))
        agents = sorted(present, key=numeric_order)
        if len(agents) >= least:
            windows.append(np.array([[positions[agent] for positions in part] for agent in agents]))
    return windows


def read_windows(paths: Sequence[str | Path], config: TracksConfig) -> TrackWindows:
    """Read the windows of several recordings. Raises UserError if there is none."""
    windows: list[NDArray[np.float64]] = []
    notices: list[str] = []
    for path in paths:
        frames, notes = read_frames(path, config.on_bad)
        windows += extract_windows(frames, config.observed + config.predicted, config.min_agents)
        notices += notes
    return _concatenate(windows, ", ".join(map(str, paths)), config, notices)


def read_training_windows(config: TracksConfig) -> tuple[TrackWindows, TrackWindows]:
    """Read the training recordings, and hold out the last part of each for validation, at least one
    window; a recording that is shorter than two windows is used for training."""
    train: list[NDArray[np.float64]] = []
    val: list[NDArray[np.float64]] = []
    notices: list[str] = []
    length, origin = config.observed + config.predicted, ", ".join(map(str, config.train))
    for path in config.train:
        frames, notes = read_frames(path, config.on_bad)
        names = sorted(frames)
        cut = last_part(len(names), config.val_share, origin=str(path), noun="frames")
        cut = min(cut, len(names) - length)
        cut = cut if cut >= length else len(names)
        for part, windows in ((names[:cut], train), (names[cut:], val)):
            own = {name: frames[name] for name in part}
            windows.extend(extract_windows(own, length, config.min_agents))
        notices += notes
    if train and not val:
        window = f"a window of {length} frames with {config.min_agents} agents"
        raise UserError(f"{origin}: too short to hold out {window}: use --data.val.")
    count = len(train) + len(val)
    notice = describe_held_out(len(val), count, config.val_share, origin=origin, noun="windows")
    held_out = _concatenate(val, origin, config, (notice,))
    return _concatenate(train, origin, config, notices), held_out


def make_tracks(split: str, seed: int, config: TracksConfig) -> TrackWindows:
    """Simulate crowds by social forces: agents cross a square, and avoid each other."""
    draw = generator(seed, sum(map(ord, split)))
    count = {"train": 400, "val": 60, "test": 100}[split]
    length = config.observed + config.predicted
    crowds = [_simulate(draw, int(draw.integers(2, 7)), length) for _ in range(count)]
    return _concatenate(crowds, f"synthetic crowds, {split}", config)


def to_agent_frames(
    windows: TrackWindows, agents: Sequence[int], *, observed: int, neighbors: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Transform windows to the agent-centric frame of each of the given (ego) agents.

    Returns:
        observed positions (agents, 1 + neighbors, observed, 2): the ego agent first, then its
        nearest neighbors number of agents in each row, the ego agent included
        future positions of the ego agent in its frame (agents, predicted, 2)
        rotations (agents, 2, 2) back to the scene: x = origin + position @ rotation, with the last
        observed position of the ego agent as the origin
    """
    size = 1 + neighbors
    window_of = np.repeat(np.arange(len(windows.offsets) - 1), np.diff(windows.offsets))
    history = np.zeros((len(agents), size, observed, 2))
    counts, future, rotations = np.ones(len(agents), np.int64), [], []
    for row, ego in enumerate(agents):
        first, last = windows.offsets[window_of[ego]], windows.offsets[window_of[ego] + 1]
        positions = windows.positions[first:last]
        own = windows.positions[ego]
        origin, motion = own[observed - 1], own[observed - 1] - own[0]
        distance = np.hypot(*motion)
        direction = motion / distance if distance > 1e-6 else np.array([1.0, 0.0])
        rotation = np.array([direction, [-direction[1], direction[0]]])
        others = np.delete(np.arange(last - first), ego - first)
        distances = np.linalg.norm(positions[others, observed - 1] - origin, axis=-1)
        nearest = others[np.argsort(distances, kind="stable")]
        selected = [ego - first, *nearest[:neighbors]]
        history[row, : len(selected)] = (positions[selected, :observed] - origin) @ rotation.T
        counts[row] = len(selected)
        future.append((own[observed:] - origin) @ rotation.T)
        rotations.append(rotation)
    return history, counts, np.array(future), np.array(rotations)


def to_scene_frame(
    scene: NDArray[np.float64], observed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a scene (agents, time, 2) from the mean of its last observed positions, and that."""
    origin = scene[:, observed - 1].mean(0)
    return scene - origin, origin


@dataclass(eq=False)
class TrackBatches(BatchesByCount):
    """Batches of agents, in order (is_fixed), or shuffled, mirrored and scaled in each epoch."""

    data: TrackWindows
    config: TracksConfig

    def __post_init__(self) -> None:
        agents, config = range(len(self.data)), self.config
        history, counts, future, _ = to_agent_frames(
            self.data, agents, observed=config.observed, neighbors=config.neighbors
        )
        self.history = torch.from_numpy(history).float()
        self.future = torch.from_numpy(future).float()
        self.counts = torch.from_numpy(counts)

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Padded, Tensor]:
        """Return observed (rows, agents, observed, 2), ego agent first, and future positions (rows,
        predicted, 2), in meters."""
        index = torch.tensor(indices)
        history, counts, future = self.history[index], self.counts[index], self.future[index]
        if not self.is_fixed:
            seeds = [np.random.SeedSequence((self.seed, epoch, i)) for i in indices]
            draws = [np.random.PCG64(seed).random_raw(2) for seed in seeds]
            sign = torch.tensor([[1.0, 1.0 if draw[0] % 2 else -1.0] for draw in draws])
            scale = torch.tensor([0.8 + 0.5 * float(draw[1] % 1024) / 1024 for draw in draws])
            factor = sign * scale[:, None]
            history, future = history * factor[:, None, None], future * factor[:, None]
        return Batch(Padded(history[:, : int(counts.max())], counts), future, tuple(indices))


@dataclass(eq=False)
class SceneBatches(BatchesByCount):
    """Batches of scenes with up to `rows` agents together, or one scene: in order (is_fixed), or
    shuffled, turned, mirrored and scaled in each epoch."""

    data: TrackWindows
    config: TracksConfig

    def __post_init__(self) -> None:
        self.scenes = []
        for first, last in pairwise(self.data.offsets):
            scene, _ = to_scene_frame(self.data.positions[first:last], self.config.observed)
            self.scenes.append(scene)

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(self.scenes))

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        order = [i for batch in super().plan(epoch) for i in batch]
        parts = plan_by_sum([len(self.scenes[i]) for i in order], self.rows)
        return [tuple(order[i] for i in part) for part in parts]

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Padded, Padded]:
        """Return observed (rows, agents, observed, 2) and future positions (rows, agents,
        predicted, 2) of scenes, in meters from the mean of the last observed positions."""
        scenes = [self.scenes[i] for i in indices]
        if not self.is_fixed:
            for row, i in enumerate(indices):
                draw = generator(self.seed, epoch, i)
                angle, sign = draw.uniform(0, 2 * np.pi), draw.choice([-1.0, 1.0])
                scale, cos, sin = draw.uniform(0.8, 1.3), np.cos(angle), np.sin(angle)
                turn = scale * np.array([[cos, sin], [-sign * sin, sign * cos]])
                scenes[row] = scenes[row] @ turn
        (items, lengths), observed = pad_arrays(scenes), self.config.observed
        source = Padded(items[:, :, :observed], lengths)
        return Batch(source, Padded(items[:, :, observed:], lengths), tuple(indices))


def _simulate(draw: np.random.Generator, num_agents: int, length: int) -> NDArray[np.float64]:
    angle = draw.uniform(0, 2 * np.pi, num_agents)
    circle = 4 * np.stack((np.cos(angle), np.sin(angle)), -1)
    position = circle + draw.normal(0, 0.5, (num_agents, 2))
    goal = -position + draw.normal(0, 1.0, (num_agents, 2))
    speed = draw.uniform(0.8, 1.5, (num_agents, 1))
    velocity, tracks, dt = np.zeros((num_agents, 2)), [], 0.1
    not_self = np.eye(num_agents)[..., None] * 1e9
    for step in range(4 * length):
        away = position[:, None] - position[None]
        distance = np.linalg.norm(away, axis=-1, keepdims=True) + not_self
        repulsion = (away / distance * 3.0 * np.exp(-distance / 0.6)).sum(1)
        way = goal - position
        desired = way / np.maximum(np.linalg.norm(way, axis=-1, keepdims=True), 0.3) * speed
        velocity = velocity + dt * ((desired - velocity) / 0.5 + repulsion)
        position = position + dt * velocity
        if step % 4 == 0:
            tracks.append(position)
    return np.stack(tracks, 1)


def _concatenate(
    windows: Sequence[NDArray[np.float64]],
    origin: str,
    config: TracksConfig,
    notices: Sequence[str] = (),
) -> TrackWindows:
    if not windows:
        window = f"{config.observed + config.predicted} consecutive frames"
        agents = f"at least {config.min_agents} agents (--data.min-agents)"
        raise UserError(f"{origin}: there is no window of {window} with {agents}.")
    offsets = np.cumsum([0, *(len(window) for window in windows)])
    return TrackWindows(np.concatenate(windows), offsets, origin, notices)
