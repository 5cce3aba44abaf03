"""The recipe `tracks`: where people will be who walk among each other; scored by ADE and FDE, in meters.

    ADE = mean over people and predicted steps of |y_t - target_t|        FDE = the same of the last step alone

Beside them stands what walking on at the last observed step would give. One answer a person (deterministic).

Source: pellegrini2009 (ADE, FDE); scholler2020 (walking on).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.numbers import plain
from regard.data.track_files import in_order, read_frames
from regard.data.tracks import TrackBatches, Windows, made_tracks, read_windows, views
from regard.digests import recorded
from regard.errors import UserError
from regard.look.scene import Axis, Plane, Scene, Track
from regard.models.build import build_forecaster
from regard.models.forecaster import Forecaster
from regard.recipes.config import Tracks
from regard.recipes.folder import Run
from regard.recipes.task import Task, Trained, numbered
from regard.telling import showing

Given = str | Path | NDArray[Any]
"""A recording's file, or tracks (people, observed, 2) in meters."""
_ROWS, _SHOWN = 1024, 20


class Ways(NamedTuple):
    """Where people will be: a line each, frame, id, x, y; there is no score."""

    text: str
    score: float


def errors(paths: Tensor, target: Tensor) -> tuple[float, float]:
    """ADE and FDE of (people, predicted, 2)."""
    distance = (paths - target).norm(dim=-1)
    return distance.mean().item(), distance[:, -1].mean().item()


class TracksTask(Task):
    """Recordings, and a forecaster."""

    metric = "ade"
    maximize = False

    @property
    def config(self) -> Tracks:
        """All settings of the run."""
        assert isinstance(self.run.config, Tracks)
        return self.run.config

    def check(self) -> None:
        """Read all recordings."""
        for name in ("val", "train"):
            self.windows(name)
        if self.has_test():
            with recorded():  # decides no weights: no part of what the run was trained on
                self.windows("test")

    def learn(self, folder: Path) -> None:
        """Nothing: meters are meters."""

    def open(self, folder: Path) -> None:
        """Nothing."""

    def windows(self, split: str) -> Windows:
        """The windows of a split."""
        paths = getattr(self.config.data, split)
        if not paths and not self.config.data.train:
            return made_tracks(split, self.run.seed, self.config.data)
        found = read_windows(paths, self.config.data)
        self.tell_skipped(found.origin, found.skipped)
        return found

    def tell_skipped(self, origin: str | Path, skipped: Sequence[str]) -> None:
        """Say how many lines were left out, and the first."""
        if skipped:
            self.tell(f"{origin}: skipped {len(skipped)} lines; first: {skipped[0]}")

    def batches(self) -> TrackBatches:
        """All people of the training windows."""
        settings = {"rows": self.config.batch, "seed": self.run.seed}
        return TrackBatches(self.windows("train"), self.config.data, augment=True, **settings)

    def model(self) -> Forecaster:
        """For so many positions."""
        data = self.config.data
        return build_forecaster(self.config.model, observed=data.observed, predicted=data.predicted)

    def measure(self, model: nn.Module) -> dict[str, float]:
        """ADE and FDE of the validation windows."""
        found = self.scores(model, self._val)
        return {name: found[name] for name in ("ade", "fde")}

    def scores(self, model: nn.Module, windows: Windows | TrackBatches) -> dict[str, float]:
        """The same of any windows, and of walking on."""
        batches = windows
        if isinstance(batches, Windows):
            batches = TrackBatches(batches, self.config.data, rows=_ROWS, seed=0)
        paths, targets, lines = [], [], []
        for rows in batches.plan(0):
            batch = batches.collate(0, rows)
            paths.append(_paths(model, batch.source))
            targets.append(batch.target)
            own = batch.source.items[:, 0]
            ahead = torch.arange(1, batch.target.shape[1] + 1)[:, None]
            lines.append((own[:, -1:] - own[:, -2:-1]) * ahead)
        target = torch.cat(targets)
        (ade, fde), (ade_on, fde_on) = errors(torch.cat(paths), target), errors(torch.cat(lines), target)
        return {"ade": ade, "fde": fde, "ade_walking_on": ade_on, "fde_walking_on": fde_on}

    def has_test(self) -> bool:
        """Always for made-up crowds."""
        return not self.config.data.train or bool(self.config.data.test)

    def trained(self, model: nn.Module, folder: Path) -> "TrainedTracks":
        """The model in use."""
        return TrainedTracks(self, model, folder)

    @cached_property
    def _val(self) -> TrackBatches:
        return TrackBatches(self.windows("val"), self.config.data, rows=_ROWS, seed=0)


class TrainedTracks(Trained):
    """A forecaster in use."""

    task: TracksTask

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[NDArray[np.float64]]:
        """For each set of tracks (people, observed, 2), where all of them will be: (people, predicted, 2).

        inputs: tracks in meters, or recordings' files, of which those count who are there in the last frames.
        Those who look on are shown what each of the first 20 people of a set reads.
        """
        return [self._future(one, number) for number, one in enumerate(inputs, start=1)]

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[Ways]]:
        """For each recording, where those will be who are there in its last frames."""
        return [[Ways("\n".join(self._rows(one, i)), 0.0)] for i, one in enumerate(inputs, start=first)]

    def evaluate(self, path: str | Path | None = None, *, tell: Callable[[str], None] | None = None) -> dict[str, Any]:
        """ADE and FDE, and those of walking on, on the run's test recordings or on another."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        data = self.config.data
        windows = self.task.windows("test") if path is None else read_windows([path], data)
        signature = (
            f"{data.observed} positions to {data.predicted}, windows of {data.least} people at least, one answer"
        )
        scores = self.task.scores(self._model, windows)
        return {"data": windows.origin, "examples": len(windows), **scores, "signature": signature, "samples": []}

    def test_input(self, index: int) -> NDArray[np.float64]:
        """The tracks (people, observed, 2) of a window of the test data."""
        self._check_test()
        windows = self.task.windows("test")
        number = numbered(range(len(windows.offsets) - 1), index, windows.origin)
        people = slice(windows.offsets[number], windows.offsets[number + 1])
        return self._named(windows.positions[people, : self.config.data.observed].copy(), f"test window {index}")

    def check_likelihood(self) -> None:
        """Raises UserError: where somebody will be is said without a probability."""
        raise UserError(self._improbable("positions"))

    def _rows(self, one: Given, number: int) -> list[str]:
        names, _, frames = self._seen(one, number)
        step = frames[-1] - frames[-2]
        paths = self._future(one, number)
        return [
            f"{plain(frames[-1] + (t + 1) * step)}\t{name}\t{paths[i, t, 0]:.3f}\t{paths[i, t, 1]:.3f}"
            for t in range(paths.shape[1])
            for i, name in enumerate(names)
        ]

    def _seen(self, one: Given, number: int) -> tuple[list[str], NDArray[np.float64], list[float]]:
        """Who is there, where, and the frames; of tracks without names or frames, their numbers."""
        if isinstance(one, str | Path):
            return self._last(one)
        tracks, observed = np.asarray(one, np.float64), self.config.data.observed
        if tracks.ndim != 3 or tracks.shape[1:] != (observed, 2) or not len(tracks):  # people, time, x and y
            raise UserError(f"input {number}: tracks must be (people, {observed} observed, 2), but are {tracks.shape}")
        if not np.isfinite(tracks).all():
            raise UserError(f"input {number}: tracks must be numbers of meters, but some are not finite")
        return [str(i) for i in range(len(tracks))], tracks, [float(i) for i in range(observed)]

    def _last(self, path: str | Path) -> tuple[list[str], NDArray[np.float64], list[float]]:
        """Who is there in all of the last frames, where, and the frames. Raises UserError if nobody is."""
        frames, skipped = read_frames(path, self.config.data.on_bad)
        self.task.tell_skipped(path, skipped)
        observed = self.config.data.observed
        last = sorted(frames)[-observed:]
        there = in_order(set.intersection(*(set(frames[frame]) for frame in last))) if len(last) == observed else []
        if not there:
            raise UserError(f"{path}: nobody is there in the last {observed} frames, which a forecast needs.")
        return there, np.array([[frames[frame][who] for frame in last] for who in there]), last

    def _future(self, one: Given, number: int) -> NDArray[np.float64]:
        data = self.config.data
        names, tracks, _ = self._seen(one, number)
        windows = Windows(tracks, np.array([0, len(tracks)]), "tracks")
        sizes = {"observed": data.observed, "neighbors": data.neighbors}
        seen, counts, _, turns = views(windows, range(len(tracks)), **sizes)
        source = Padded(torch.from_numpy(seen).float(), torch.from_numpy(counts))
        with showing(lambda: self._scenes(names, tracks)) as scenes:
            paths = tracks[:, -1:] + _paths(self._model, source).double().numpy() @ turns
        if scenes:
            _complete(scenes, self._called(one, f"tracks {number}"), names, tracks, paths)
        return paths

    def _scenes(self, names: Sequence[str], tracks: NDArray[np.float64]) -> list[Scene]:
        """What the first people read, for those who look on: themselves, and who is around, the nearest first."""
        scenes = []
        for person in range(min(len(tracks), _SHOWN)):
            who = [person, *_nearest(tracks, person, self.config.data.neighbors)]
            labels = (f"{names[person]} (self)", *(names[i] for i in who[1:]))
            places = tuple((float(i),) for i in who)
            scenes.append(Scene(axes={"source": Axis(labels=labels, what="person", on="plane", places=places)}))
        return scenes


@torch.no_grad()
def _paths(model: nn.Module, source: Padded) -> Tensor:
    device = next(model.parameters()).device
    return model(source.to(device)).float().cpu()


def _complete(
    scenes: Sequence[Scene],
    called: str,
    names: Sequence[str],
    tracks: NDArray[np.float64],
    paths: NDArray[np.float64],
) -> None:
    """One plane for all, and where each scene's person ends."""
    ways = zip(names, tracks.tolist(), paths.tolist(), strict=True)
    plane = Plane(
        tracks=tuple(
            Track(label=name, seen=tuple((x, y) for x, y in seen), ahead=tuple((x, y) for x, y in ahead))
            for name, seen, ahead in ways
        )
    )
    for scene, name, path in zip(scenes, names, paths, strict=False):
        x, y = path[-1]
        scene.pictures["plane"] = plane
        scene.title = f"{called}: {name} -> ({x:.2f}, {y:.2f})"


def _nearest(tracks: NDArray[np.float64], person: int, count: int) -> list[int]:
    others = np.delete(np.arange(len(tracks)), person)
    distance = np.linalg.norm(tracks[others, -1] - tracks[person, -1], axis=-1)
    return others[np.argsort(distance, kind="stable")][:count].tolist()


def task(run: Run, tell: Callable[[str], None]) -> TracksTask:
    """This recipe at work."""
    return TracksTask(run, tell)
