"""Recipe `tracks`: trajectory forecasting of pedestrians, scored by ADE and FDE, in meters.

    ADE = mean over people and predicted steps of |y_t - target_t|        FDE = the same of the last step alone

Both are also reported for the constant-velocity baseline. One trajectory is predicted per person (deterministic).

Source: pellegrini2009 (ADE, FDE); scholler2020 (constant velocity).
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
from regard.data.text.numbers import format_number
from regard.data.track_files import read_frames, sort_ids
from regard.data.tracks import TrackBatches, TrackWindows, make_tracks, read_windows, to_agent_frames
from regard.errors import UserError
from regard.look.sample import Axis, Plane, Sample, Track
from regard.models.build import build_forecaster
from regard.models.model import Model
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.tracks.config import TracksRunConfig
from regard.system.fingerprints import record_digests

Given = str | Path | NDArray[Any]
"""A recording file, or tracks (people, observed, 2) in meters."""
_ROWS, _SHOWN = 1024, 20


class TrackLines(NamedTuple):
    """Predicted positions as lines of frame, id, x, y; the score is always 0."""

    text: str
    score: float


def displacement_errors(paths: Tensor, target: Tensor) -> tuple[float, float]:
    """Return ADE and FDE of trajectories (people, predicted, 2)."""
    distance = (paths - target).norm(dim=-1)
    return distance.mean().item(), distance[:, -1].mean().item()


class TracksRecipe(Recipe):
    """Recipe of trajectory forecasting."""

    metric = "ade"
    higher_is_better = False

    @property
    def config(self) -> TracksRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, TracksRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all recordings."""
        for name in ("val", "train"):
            self.load_windows(name)
        if self.has_test():
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.load_windows("test")

    def learn(self, folder: Path) -> None:
        """Do nothing: positions are not scaled."""

    def open(self, folder: Path) -> None:
        """Do nothing."""

    def batches(self) -> TrackBatches:
        """Return batches of all people of the training windows."""
        settings = {"rows": self.config.batch, "seed": self.run.seed}
        return TrackBatches(self.load_windows("train"), self.config.data, augment=True, **settings)

    def model(self) -> Model:
        """Return a forecaster for these numbers of observed and predicted positions."""
        data = self.config.data
        return build_forecaster(self.config.model, observed=data.observed, predicted=data.predicted)

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return ADE and FDE on the validation windows."""
        scores = self.score(model, self._val)
        return {name: scores[name] for name in ("ade", "fde")}

    def score(self, model: nn.Module, windows: TrackWindows | TrackBatches) -> dict[str, float]:
        """Return ADE and FDE of the model and of the constant-velocity baseline."""
        batches = windows
        if isinstance(batches, TrackWindows):
            batches = TrackBatches(batches, self.config.data, rows=_ROWS, seed=0)
        paths, targets, baselines = [], [], []
        for rows in batches.plan(0):
            batch = batches.collate(0, rows)
            paths.append(_predict_paths(model, batch.source))
            targets.append(batch.target)
            own = batch.source.items[:, 0]
            ahead = torch.arange(1, batch.target.shape[1] + 1)[:, None]
            baselines.append((own[:, -1:] - own[:, -2:-1]) * ahead)
        target = torch.cat(targets)
        ade, fde = displacement_errors(torch.cat(paths), target)
        baseline_ade, baseline_fde = displacement_errors(torch.cat(baselines), target)
        return {"ade": ade, "fde": fde, "ade_constant_velocity": baseline_ade, "fde_constant_velocity": baseline_fde}

    def has_test(self) -> bool:
        """Return True if there is test data; synthetic crowds always have it."""
        return not self.config.data.train or bool(self.config.data.test)

    def load_windows(self, split: str) -> TrackWindows:
        """Read the windows of a split."""
        paths = getattr(self.config.data, split)
        if not paths and not self.config.data.train:
            return make_tracks(split, self.run.seed, self.config.data)
        windows = read_windows(paths, self.config.data)
        self.report_skipped(windows.origin, windows.skipped)
        return windows

    def report_skipped(self, origin: str | Path, skipped: Sequence[str]) -> None:
        """Report how many lines were left out, and the first of them."""
        if skipped:
            self.notify(f"{origin}: skipped {len(skipped)} lines; first: {skipped[0]}")

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedTracks":
        """Return the trained run of this model."""
        return TrainedTracks(self, model, folder)

    @cached_property
    def _val(self) -> TrackBatches:
        return TrackBatches(self.load_windows("val"), self.config.data, rows=_ROWS, seed=0)


class TrainedTracks(TrainedRun):
    """Trained run of the recipe `tracks`."""

    recipe: TracksRecipe

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[NDArray[np.float64]]:
        """Return the predicted trajectories (people, predicted, 2) of each set of tracks (people, observed, 2).

        inputs: tracks in meters, or recording files, whose people present in all of the last frames are predicted.
        A capture has a sample for each of the first 20 people of a set.
        """
        return [self._forecast(given, number) for number, given in enumerate(inputs, start=1)]

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[TrackLines]]:
        """Return the predictions for each recording as lines of text."""
        return [[TrackLines("\n".join(self._rows(given, i)), 0.0)] for i, given in enumerate(inputs, start=first)]

    def evaluate(
        self, path: str | Path | None = None, *, notify: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Return ADE and FDE, and those of the constant-velocity baseline, on the test data or another recording."""
        if path is None:
            self._check_test()
        data = self.config.data
        windows = self.recipe.load_windows("test") if path is None else read_windows([path], data)
        signature = f"{data.observed} positions to {data.predicted}, windows of at least {data.min_agents} people, "
        signature += "one prediction"
        scores = self.recipe.score(self._model, windows)
        return {"data": windows.origin, "examples": len(windows), **scores, "signature": signature, "samples": []}

    def test_input(self, index: int) -> NDArray[np.float64]:
        """Return the tracks (people, observed, 2) of a window of the test data."""
        self._check_test()
        windows = self.recipe.load_windows("test")
        number = get_input(range(len(windows.offsets) - 1), index, windows.origin)
        people = slice(windows.offsets[number], windows.offsets[number + 1])
        return self._set_name(windows.positions[people, : self.config.data.observed].copy(), f"test window {index}")

    def check_likelihood(self) -> None:
        """Raise UserError: predicted positions have no probability."""
        raise UserError(self._no_probability_message("positions"))

    def _rows(self, given: Given, number: int) -> list[str]:
        names, _, frames = self._load_tracks(given, number)
        step = frames[-1] - frames[-2]
        paths = self._forecast(given, number)
        return [
            f"{format_number(frames[-1] + (t + 1) * step)}\t{name}\t{paths[i, t, 0]:.3f}\t{paths[i, t, 1]:.3f}"
            for t in range(paths.shape[1])
            for i, name in enumerate(names)
        ]

    def _load_tracks(self, given: Given, number: int) -> tuple[list[str], NDArray[np.float64], list[float]]:
        """Return ids, positions and frames of the tracks; ids and frames of arrays are their indices."""
        if isinstance(given, str | Path):
            return self._load_last_frames(given)
        tracks, observed = np.asarray(given, np.float64), self.config.data.observed
        if tracks.ndim != 3 or tracks.shape[1:] != (observed, 2) or not len(tracks):  # people, time, x and y
            raise UserError(f"input {number}: tracks must be (people, {observed} observed, 2), got {tracks.shape}")
        if not np.isfinite(tracks).all():
            raise UserError(f"input {number}: tracks must be finite, but some numbers are not")
        return [str(i) for i in range(len(tracks))], tracks, [float(i) for i in range(observed)]

    def _load_last_frames(self, path: str | Path) -> tuple[list[str], NDArray[np.float64], list[float]]:
        """Return ids, positions and frames of the people present in all of the last frames.

        Raises UserError if there is none.
        """
        frames, skipped = read_frames(path, self.config.data.on_bad)
        self.recipe.report_skipped(path, skipped)
        observed = self.config.data.observed
        last = sorted(frames)[-observed:]
        ids = sort_ids(set.intersection(*(set(frames[frame]) for frame in last))) if len(last) == observed else []
        if not ids:
            raise UserError(
                f"{path}: no person is present in all of the last {observed} frames, which a forecast needs."
            )
        return ids, np.array([[frames[frame][person] for frame in last] for person in ids]), last

    def _forecast(self, given: Given, number: int) -> NDArray[np.float64]:
        data = self.config.data
        names, tracks, _ = self._load_tracks(given, number)
        windows = TrackWindows(tracks, np.array([0, len(tracks)]), "tracks")
        sizes = {"observed": data.observed, "neighbors": data.neighbors}
        history, counts, _, rotations = to_agent_frames(windows, range(len(tracks)), **sizes)
        source = Padded(torch.from_numpy(history).float(), torch.from_numpy(counts))
        with self._segment(lambda: self._look_samples(names, tracks)) as samples:
            paths = tracks[:, -1:] + _predict_paths(self._model, source).double().numpy() @ rotations
        if samples:
            _complete(samples, self._get_name(given, f"tracks {number}"), names, tracks, paths)
        return paths

    def _look_samples(self, names: Sequence[str], tracks: NDArray[np.float64]) -> list[Sample]:
        """Return the samples of a look at the first people: each attends to itself and its neighbors, nearest first."""
        samples = []
        for person in range(min(len(tracks), _SHOWN)):
            group = [person, *_nearest(tracks, person, self.config.data.neighbors)]
            labels = (f"{names[person]} (self)", *(names[i] for i in group[1:]))
            places = tuple((float(i),) for i in group)
            samples.append(Sample(axes={"source": Axis(labels=labels, kind="person", picture="plane", places=places)}))
        return samples


def create_recipe(run: Run, notify: Callable[[str], None]) -> TracksRecipe:
    """Create the recipe of a run."""
    return TracksRecipe(run, notify)


@torch.no_grad()
def _predict_paths(model: nn.Module, source: Padded) -> Tensor:
    device = next(model.parameters()).device
    return model(source.to(device)).float().cpu()


def _complete(
    samples: Sequence[Sample],
    title: str,
    names: Sequence[str],
    tracks: NDArray[np.float64],
    paths: NDArray[np.float64],
) -> None:
    """Add the plane with all tracks, and each person's final predicted position to the titles."""
    rows = zip(names, tracks.tolist(), paths.tolist(), strict=True)
    plane = Plane(
        tracks=tuple(
            Track(label=name, history=tuple((x, y) for x, y in history), future=tuple((x, y) for x, y in future))
            for name, history, future in rows
        )
    )
    for sample, name, path in zip(samples, names, paths, strict=False):
        x, y = path[-1]
        sample.pictures["plane"] = plane
        sample.title = f"{title}: {name} -> ({x:.2f}, {y:.2f})"


def _nearest(tracks: NDArray[np.float64], person: int, count: int) -> list[int]:
    others = np.delete(np.arange(len(tracks)), person)
    distance = np.linalg.norm(tracks[others, -1] - tracks[person, -1], axis=-1)
    return others[np.argsort(distance, kind="stable")][:count].tolist()
