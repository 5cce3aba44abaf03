"""Recipe `tracks`: trajectory forecasting of pedestrians, scored by ADE and FDE, in meters.

    ADE = mean over people and predicted steps of |y_t - target_t|
    FDE = the same of the last step alone

Both are also reported for the constant-velocity baseline. One trajectory is predicted per person
(deterministic): of one person at a time, in a frame of its own, or with model.joint of all people
of a scene at once. With model.paths = K > 1, ADE and FDE are those of the most probable path, and

    minADE_K = mean over people of min_k ADE of path k        minFDE_K: the same of FDE

the "best of K", which needs the true future: it tells whether one of K guesses is near.

Source: pellegrini2009 (ADE, FDE); scholler2020 (constant velocity); best of K gupta2018.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import pad_arrays, plan_by_sum
from regard.data.tables import numeric_order
from regard.data.track_files import format_number, read_frames
from regard.data.tracks import (
    SceneBatches,
    TrackBatches,
    TrackWindows,
    make_tracks,
    read_training_windows,
    read_windows,
    to_agent_frames,
    to_scene_frame,
)
from regard.errors import UserError
from regard.look.sample import Axis, Plane, Sample, Track
from regard.models.build import build_forecaster
from regard.models.model import Model
from regard.models.writers.tracks import Futures
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import Answer, Dataset, Example, File, Recipe, View
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of
from regard.recipes.tracks.config import TracksRunConfig
from regard.system.progress import track
from regard.trace import Trace

_MAX_METERS = 1e9
"""Largest coordinate: the squares of larger ones overflow in models."""


@dataclass
class TrackGroup:
    """People whose tracks are predicted together, and the frames in which they were observed."""

    names: list[str]
    tracks: NDArray[np.float64]
    """(people, observed, 2)"""
    frames: list[float]
    plane: Plane | None = None
    """Picture of all tracks, once they are predicted."""


def displacement_errors(paths: Tensor, target: Tensor) -> tuple[float, float]:
    """Return ADE and FDE of trajectories (people, predicted, 2)."""
    distance = (paths - target).norm(dim=-1)
    return distance.mean().item(), distance[:, -1].mean().item()


class TracksRecipe(Recipe[TracksRunConfig]):
    """Recipe of trajectory forecasting."""

    metric = "ade"
    unit = "tracks"
    columns: Mapping[str, type] = {"frame": float, "id": str, "x": float, "y": float}
    batch_rows = 1024
    tables = ()
    files_of_folder = (".txt", ".csv", ".tsv")
    monitored = ("ade", "fde")
    higher_is_better = False

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        if self.config.model.paths > 1:
            self.metric, self.monitored = "min_ade", ("min_ade", "min_fde", "ade", "fde")

    def load(self, split: str) -> Dataset[TrackWindows]:
        data = self.config.data
        paths = getattr(data, split)
        if not paths and not data.train:
            windows = make_tracks(split, self.run.seed, data)
        elif not data.val and split != "test":
            windows = self._held_out[split == "val"]
        else:
            windows = read_windows(paths, data)

        def read_input(i: int) -> NDArray[np.float64]:
            first, end = windows.offsets[i : i + 2]
            return windows.positions[first:end, : data.observed].copy()

        inputs = View(len(windows.offsets) - 1, read_input)
        return Dataset(windows, windows.origin, inputs, notes=(*windows.notices,))

    @cached_property
    def _held_out(self) -> tuple[TrackWindows, TrackWindows]:
        return read_training_windows(self.config.data)

    def encode(self, dataset: Dataset[TrackWindows]) -> Dataset[TrackWindows]:
        return replace(dataset, targets=self._batches(dataset, rows=self.batch_rows, is_fixed=True))

    def fit(self, train: Dataset[TrackWindows]) -> dict[str, Any]:
        return {}  # positions are not scaled

    def open(self, folder: Path) -> None:
        pass

    def batches(self) -> TrackBatches | SceneBatches:
        return self._batches(self.train, rows=self.config.batch)

    def _batches(self, dataset: Dataset[Any], **options: Any) -> TrackBatches | SceneBatches:
        kind = SceneBatches if self.config.model.joint else TrackBatches
        return kind(dataset.data, self.config.data, seed=self.run.seed, **options)

    def model(self) -> Model:
        data = self.config.data
        sizes = {"observed": data.observed, "predicted": data.predicted}
        return build_forecaster(self.config.model, **sizes, parts=self.parts())

    def metrics(self, inference: ActiveModel, dataset: Dataset[TrackWindows]) -> dict[str, Any]:
        batches: TrackBatches | SceneBatches = dataset.targets
        futures, targets, baselines = [], [], []
        for rows in track(batches.plan(0), "batches", size=lambda _: 1):
            batch = batches.collate(0, rows)
            found = _predict(inference.model, batch.source).paths
            target, own = batch.target, batch.source.items
            if isinstance(target, Padded):  # all people of each scene, from their last positions
                real = torch.arange(own.shape[1]) < batch.source.lengths[:, None]
                own = own[real]
                found, target = found[real] - own[:, None, -1:], target.items[real] - own[:, -1:]
            else:
                own = own[:, 0]
            futures.append(found)
            targets.append(target)
            ahead = torch.arange(1, target.shape[1] + 1)[:, None]
            baselines.append((own[:, -1:] - own[:, -2:-1]) * ahead)
        target, paths = torch.cat(targets), torch.cat(futures)
        ade, fde = displacement_errors(paths[:, 0], target)
        baseline_ade, baseline_fde = displacement_errors(torch.cat(baselines), target)
        data = self.config.data
        sizes = f"{data.observed} positions to {data.predicted}, at least {data.min_agents} people"
        kind = "all people of a window at once" if self.config.model.joint else "one at a time"
        best = {}
        if paths.shape[1] > 1:
            distance = (paths - target[:, None]).norm(dim=-1)
            best["min_ade"] = distance.mean(-1).amin(1).mean().item()
            best["min_fde"] = distance[..., -1].amin(1).mean().item()
            kind += f", best of {paths.shape[1]} paths, ADE and FDE of the most probable one"
        return {
            "ade": ade,
            "fde": fde,
            **best,
            "ade_constant_velocity": baseline_ade,
            "fde_constant_velocity": baseline_fde,
            "examples": len(dataset.data),
            "signature": f"{sizes}, {kind}",
        }

    def preprocess(self, given: Any, number: int) -> list[tuple[Any, ...]]:
        """Return a row for each person, or with model.joint for the scene.

        person: group, history with neighbors in the person's frame, their number, rotation, last
                position in the recording
        scene:  group, histories (people, observed, 2), position from which they are measured
        given:  a recording file, whose people present in all of the last frames are predicted, or
                tracks (people, observed, 2) in meters.
        """
        data, group = self.config.data, self._to_group(given, f"input {number}")
        if self.config.model.joint:
            return [(group, *to_scene_frame(group.tracks, data.observed))]
        windows = TrackWindows(group.tracks, np.array([0, len(group.tracks)]), "tracks")
        history, counts, _, rotations = to_agent_frames(
            windows, range(len(group.tracks)), observed=data.observed, neighbors=data.neighbors
        )
        rows = zip(history, counts, rotations, group.tracks[:, -1:], strict=True)
        return [(group, *row) for row in rows]

    def plan(self, rows: Sequence[Any]) -> Iterable[range]:
        if self.config.model.joint:
            return plan_by_sum([len(history) for _, history, _ in rows], self.batch_rows)
        return super().plan(rows)

    def forward(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Return the paths (paths, predicted, 2) of each person, the most probable first, and their
        probabilities; or those of all people (people, ...) by scene."""
        model = inference.model
        if self.config.model.joint:
            source = pad_arrays([history for _, history, _ in rows])
            paths, probability = (part.double().numpy() for part in _predict(model, source))
            outputs = []
            for (_, history, origin), path, share in zip(rows, paths, probability, strict=True):
                outputs.append((origin + path[: len(history)], share[: len(history)]))
            return outputs
        _, *columns = zip(*rows, strict=True)
        history, counts, rotations, last = map(np.stack, columns)
        source = Padded(torch.from_numpy(history).float(), torch.from_numpy(counts))
        paths, probability = (part.double().numpy() for part in _predict(model, source))
        return list(zip(last[:, None] + paths @ rotations[:, None], probability, strict=True))

    def postprocess(self, example: Example) -> Answer:
        group: TrackGroup = example.rows[0][0]
        *_, before, last = group.frames
        frames = [last + (t + 1) * (last - before) for t in range(self.config.data.predicted)]
        (paths, probability), tracks = self._paths(example), []
        count = paths.shape[1]
        lines = [f"# the most probable of {count} paths"] if count > 1 else []
        for t, frame in enumerate(frames):
            for name, (x, y) in zip(group.names, paths[:, 0, t], strict=True):
                lines.append(f"{format_number(frame)}\t{name}\t{x:.3f}\t{y:.3f}")
        for name, futures, shares in zip(group.names, paths.tolist(), probability, strict=True):
            tracks.append({"id": name, "positions": futures[0]})
            if count > 1:
                pairs = zip(shares.tolist(), futures, strict=True)
                tracks[-1]["paths"] = [{"probability": p, "positions": one} for p, one in pairs]
        value = paths if count > 1 else paths[:, 0]
        return Answer(value, {"frames": frames, "tracks": tracks}, lines)

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        """Return the positions of the most probable paths, frame by frame."""
        rows = []
        for t, frame in enumerate(answer.json["frames"]):
            for person in answer.json["tracks"]:
                cells = frame, person["id"], *person["positions"][t]
                rows.append(dict(zip(self.columns, cells, strict=True)))
        return rows

    def _paths(self, example: Example) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the paths (people, paths, predicted, 2) of an input, and their probabilities."""
        if self.config.model.joint:
            return example.outputs[0]
        paths, probability = zip(*example.outputs, strict=True)
        return np.stack(paths), np.stack(probability)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample | None:
        """Return a person and its neighbors, nearest first; None beyond the first 20 people.

        With model.joint, return all people of a scene.
        """
        group: TrackGroup = example.rows[i][0]
        if i >= 20:
            return None
        count = len(group.names)
        shown, labels = list(range(count)), group.names
        title = f"{example.name}: {count} {'people' if count > 1 else 'person'}"
        if not self.config.model.joint:
            distance = np.linalg.norm(group.tracks[:, -1] - group.tracks[i, -1], axis=-1)
            distance[i] = -1.0  # the person is first
            most = self.config.data.neighbors + 1
            shown = np.argsort(distance, kind="stable")[:most].tolist()
            labels = [f"{group.names[i]} (self)", *(group.names[one] for one in shown[1:])]
            x, y = example.outputs[i][0][0, -1]
            title = f"{example.name}: {group.names[i]} -> ({x:.2f}, {y:.2f})"
        places = tuple((float(one),) for one in shown)
        people = Axis(labels=tuple(labels), kind="person", picture="plane", places=places)
        if group.plane is None:  # one picture for all people
            tracks = []
            columns = group.names, group.tracks, self._paths(example)[0][:, 0]
            for name, *parts in zip(*columns, strict=True):
                history, future = (tuple(map(tuple, part.tolist())) for part in parts)
                tracks.append(Track(label=name, history=history, future=future))
            group.plane = Plane(tracks=tuple(tracks))
        return Sample(title=title, axes={"source": people}, pictures={"plane": group.plane})

    def _to_group(self, given: Any, where: str) -> TrackGroup:
        """Return the people present in all last frames of a file, or those of an array."""
        data, observed = self.config.data, self.config.data.observed
        if isinstance(given, File):
            frames, notes = read_frames(given.name, data.on_bad, given.content)
            for note in notes:
                self.notify(note)
            last = sorted(frames)[-observed:]
            ids = []
            if len(last) == observed:
                present = set.intersection(*(set(frames[frame]) for frame in last))
                ids = sorted(present, key=numeric_order)
            if not ids:
                problem = f"no person is present in all of the last {observed} frames"
                raise UserError(f"{where}: {given.name}: {problem}")
            tracks = np.array([[frames[frame][person] for frame in last] for person in ids])
            if np.abs(tracks).max() > _MAX_METERS:
                problem = f"positions must be at most {_MAX_METERS:g} m from the origin"
                raise UserError(f"{where}: {given.name}: {problem}")
            return TrackGroup(ids, tracks, last)
        shape = f"(people, {observed} observed, 2)"
        expected = f"{where}: tracks must be finite numbers up to {_MAX_METERS:g} {shape}"
        try:
            tracks = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:  # not numbers, or rows of different lengths
            raise UserError(f"{expected}: {error}") from error
        is_right = tracks.ndim == 3 and tracks.shape[1:] == (observed, 2) and len(tracks)
        if not is_right or not np.abs(tracks).max() <= _MAX_METERS:  # also nan
            raise UserError(f"{expected}, got {tracks.shape}")
        names = [str(i) for i in range(len(tracks))]
        return TrackGroup(names, tracks, [*map(float, range(observed))])


@torch.no_grad()
def _predict(model: nn.Module, source: Padded) -> Futures:
    """Return the paths of each agent, one (of probability 1) or several."""
    answer = model(source.to(device_of(model)))
    if isinstance(answer, Tensor):
        paths = answer.unsqueeze(-3)
        answer = Futures(paths, paths.new_ones(paths.shape[:-2]))
    return Futures(*(part.float().cpu() for part in answer))
