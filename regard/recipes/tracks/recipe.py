"""Recipe `tracks`: trajectory forecasting of pedestrians, scored by ADE and FDE, in meters.

    ADE = mean over people and predicted steps of |y_t - target_t|        FDE = the same of the last
    step alone

Both are also reported for the constant-velocity baseline. One trajectory is predicted per person
(deterministic): of one person at a time, in a frame of its own, or with model.joint of all people
of a scene at once.

Source: pellegrini2009 (ADE, FDE); scholler2020 (constant velocity).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.track_files import format_number, parse_frames, sort_ids
from regard.data.tracks import (
    SceneBatches,
    TrackBatches,
    TrackWindows,
    make_tracks,
    pad_scenes,
    plan_scenes,
    read_training_windows,
    read_windows,
    to_agent_frames,
    to_scene_frame,
)
from regard.errors import UserError
from regard.look.sample import Axis, Plane, Sample, Track
from regard.models.build import build_forecaster
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import TracksAnswer
from regard.recipes.base.recipe import (
    Examples,
    File,
    Prepared,
    Recipe,
    describe_skipped,
    plan_by_count,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.tracks.config import TracksRunConfig
from regard.system.progress import track
from regard.trace import Trace

_ROWS, _SHOWN = 1024, 20


class TrackGroup(NamedTuple):
    """People whose tracks are predicted together, and the frames in which they were observed."""

    names: list[str]
    tracks: NDArray[np.float64]
    """(people, observed, 2)"""
    frames: list[float]


class Person(NamedTuple):
    """One person's history and neighbors in the coordinates of that person."""

    history: NDArray[Any]
    count: Any
    rotation: NDArray[Any]
    last: NDArray[np.float64]
    """Last observed position, in the coordinates of the recording."""


class Scene(NamedTuple):
    """Histories (people, observed, 2) of all people of a scene, and the position from which they
    are measured."""

    history: NDArray[np.float64]
    origin: NDArray[np.float64]


class Forecast(NamedTuple):
    """Predicted trajectories (people, predicted, 2) of a group."""

    group: TrackGroup
    paths: NDArray[np.float64]


def displacement_errors(paths: Tensor, target: Tensor) -> tuple[float, float]:
    """Return ADE and FDE of trajectories (people, predicted, 2)."""
    distance = (paths - target).norm(dim=-1)
    return distance.mean().item(), distance[:, -1].mean().item()


class TracksRecipe(Recipe[TracksRunConfig]):
    """Recipe of trajectory forecasting."""

    metric = "ade"
    unit = "tracks"
    tables = ()
    files_of_folder = (".txt", ".csv", ".tsv")
    monitored = ("ade", "fde")
    higher_is_better = False

    def read(self, split: str, other: Any = None) -> Examples[TrackWindows]:
        data = self.config.data
        paths = getattr(data, split) if other is None else list(other.test)
        held_out: tuple[str, ...] = ()
        if not paths and not data.train:
            windows = make_tracks(split, self.run.seed, data)
        elif not data.val and split != "test":
            train, val, notice = self._held_out
            windows, held_out = (train, ()) if split == "train" else (val, (notice,))
        else:
            windows = read_windows(paths, data)

        def read_input(i: int) -> NDArray[np.float64]:
            return windows.positions[
                windows.offsets[i] : windows.offsets[i + 1], : data.observed
            ].copy()

        notes = describe_skipped(windows.origin, "lines", windows.skipped)
        notes = (*notes, *held_out)
        return Examples(
            windows, windows.origin, len(windows.offsets) - 1, input=read_input, skipped=notes
        )

    @cached_property
    def _held_out(self) -> tuple[TrackWindows, TrackWindows, str]:
        """Training and validation windows of the training recordings."""
        return read_training_windows(self.config.data)

    def usable(self, examples: Examples[TrackWindows]) -> Examples[TrackWindows]:
        kind = SceneBatches if self.config.model.joint else TrackBatches
        return replace(examples, targets=kind(examples.data, self.config.data, rows=_ROWS, seed=0))

    def learn(self, folder: Path) -> None:
        pass

    def open(self, folder: Path) -> None:
        pass

    def batches(self) -> TrackBatches | SceneBatches:
        settings = {"rows": self.config.batch, "seed": self.run.seed}
        kind = SceneBatches if self.config.model.joint else TrackBatches
        return kind(self.train.data, self.config.data, augment=True, **settings)

    def model(self) -> Model:
        data = self.config.data
        return build_forecaster(self.config.model, observed=data.observed, predicted=data.predicted)

    def score(
        self, inference: ActiveModel, examples: Examples[TrackWindows], options: Any
    ) -> dict[str, Any]:
        batches: TrackBatches | SceneBatches = examples.targets
        paths, targets, baselines = [], [], []
        for rows in track(batches.plan(0), "batches", size=lambda _: 1):
            batch = batches.collate(0, rows)
            found, target, own = (
                _predict_paths(inference.model, batch.source),
                batch.target,
                batch.source.items,
            )
            if isinstance(target, Padded):  # all people of each scene, from their last positions
                real = torch.arange(own.shape[1]) < batch.source.lengths[:, None]
                own = own[real]
                found, target = found[real] - own[:, -1:], target.items[real] - own[:, -1:]
            else:
                own = own[:, 0]
            paths.append(found)
            targets.append(target)
            ahead = torch.arange(1, target.shape[1] + 1)[:, None]
            baselines.append((own[:, -1:] - own[:, -2:-1]) * ahead)
        target = torch.cat(targets)
        ade, fde = displacement_errors(torch.cat(paths), target)
        baseline_ade, baseline_fde = displacement_errors(torch.cat(baselines), target)
        return {
            "ade": ade,
            "fde": fde,
            "ade_constant_velocity": baseline_ade,
            "fde_constant_velocity": baseline_fde,
        }

    def report(self, inference: ActiveModel, examples: Examples[TrackWindows]) -> dict[str, Any]:
        data = self.config.data
        sizes = f"{data.observed} positions to {data.predicted}, windows of at least {data.min_agents} people"
        kind = "all people of a window at once" if self.config.model.joint else "one prediction"
        return {"examples": len(examples.data), "signature": f"{sizes}, {kind}"}

    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        prepared, data = Prepared(len(inputs)), self.config.data
        for owner, given in enumerate(inputs):
            group = self._to_group(given, f"input {first + owner}", prepared.notes)
            if self.config.model.joint:
                prepared.add(
                    owner, Scene(*to_scene_frame(group.tracks, data.observed)), (group, 0, {})
                )
                continue
            windows = TrackWindows(group.tracks, np.array([0, len(group.tracks)]), "tracks")
            sizes = {"observed": data.observed, "neighbors": data.neighbors}
            history, counts, _, rotations = to_agent_frames(
                windows, range(len(group.tracks)), **sizes
            )
            people = zip(history, counts, rotations, group.tracks[:, -1:], strict=True)
            shared: dict[str, Plane] = {}
            for number, person in enumerate(people):
                prepared.add(owner, Person(*person), (group, number, shared))
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        if self.config.model.joint:
            return plan_scenes([len(scene.history) for scene in rows], _ROWS)
        return plan_by_count(rows, _ROWS)

    def answer(
        self, inference: ActiveModel, rows: Sequence[Any], options: Any, trace: Trace | None = None
    ) -> list[NDArray[np.float64]]:
        if self.config.model.joint:
            paths = (
                _predict_paths(inference.model, pad_scenes([scene.history for scene in rows]))
                .double()
                .numpy()
            )
            return [
                scene.origin + path[: len(scene.history)]
                for scene, path in zip(rows, paths, strict=True)
            ]
        history, counts, rotations, last = (np.stack(column) for column in zip(*rows, strict=True))
        source = Padded(torch.from_numpy(history).float(), torch.from_numpy(counts))
        return list(last + _predict_paths(inference.model, source).double().numpy() @ rotations)

    def join(
        self, prepared: Prepared, answers: Sequence[NDArray[np.float64]], options: Any
    ) -> list[Forecast]:
        people: list[list[int]] = [[] for _ in range(prepared.count)]
        for row, owner in enumerate(prepared.owner):
            people[owner].append(row)
        if self.config.model.joint:
            return [Forecast(prepared.facts[row][0], answers[row]) for (row,) in people]
        return [
            Forecast(prepared.facts[rows[0]][0], np.stack([answers[row] for row in rows]))
            for rows in people
        ]

    def values(self, answers: list[Forecast]) -> list[NDArray[np.float64]]:
        return [answer.paths for answer in answers]

    def lines(self, answer: Forecast) -> list[str]:
        names, paths = answer.group.names, answer.paths
        return [
            f"{format_number(frame)}\t{name}\t{paths[i, t, 0]:.3f}\t{paths[i, t, 1]:.3f}"
            for t, frame in enumerate(self._frames(answer))
            for i, name in enumerate(names)
        ]

    def json(self, answer: Forecast) -> TracksAnswer:
        rows = zip(answer.group.names, answer.paths.tolist(), strict=True)
        return {
            "frames": [*self._frames(answer)],
            "tracks": [{"id": name, "positions": positions} for name, positions in rows],
        }

    def sample(
        self,
        inference: ActiveModel,
        prepared: Prepared,
        row: int,
        answers: Sequence[NDArray[np.float64]],
    ) -> Sample | None:
        if self.config.model.joint:
            group, count = prepared.facts[row][0], len(answers[row])
            places = tuple((float(i),) for i in range(count))
            people = Axis(labels=tuple(group.names), kind="person", picture="plane", places=places)
            title = f"{prepared.name_of(row)}: {count} {'people' if count > 1 else 'person'}"
            return Sample(
                title=title,
                axes={"source": people},
                pictures={"plane": _plane(group, answers[row])},
            )
        (group, person, shared), (x, y) = prepared.facts[row], answers[row][-1]
        if person >= _SHOWN:
            return None
        shown = [person, *_nearest(group.tracks, person, self.config.data.neighbors)]
        labels = (f"{group.names[person]} (self)", *(group.names[i] for i in shown[1:]))
        places = tuple((float(i),) for i in shown)
        if not shared:  # one picture for all people
            first = row - person
            shared["plane"] = _plane(group, answers[first : first + len(group.names)])
        return Sample(
            title=f"{prepared.name_of(row)}: {group.names[person]} -> ({x:.2f}, {y:.2f})",
            axes={"source": Axis(labels=labels, kind="person", picture="plane", places=places)},
            pictures=dict(shared),
        )

    def check_log_prob(self) -> None:
        raise UserError(self.no_probability_message("positions"))

    @staticmethod
    def _frames(answer: Forecast) -> list[float]:
        """Return the predicted frames."""
        *_, before, last = answer.group.frames
        return [last + (t + 1) * (last - before) for t in range(answer.paths.shape[1])]

    def _to_group(self, given: Any, where: str, notes: list[str]) -> TrackGroup:
        """Return ids, positions and frames of the tracks; ids and frames of arrays are their
        indices."""
        observed = self.config.data.observed
        if isinstance(given, File):
            return self._last_frames(given, where, notes)
        try:
            tracks = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:  # not numbers, or rows of different lengths
            raise UserError(
                f"{where}: tracks must be (people, {observed} observed, 2): {error}"
            ) from error
        if (
            tracks.ndim != 3 or tracks.shape[1:] != (observed, 2) or not len(tracks)
        ):  # people, time, x and y
            raise UserError(
                f"{where}: tracks must be (people, {observed} observed, 2), got {tracks.shape}"
            )
        if not np.isfinite(tracks).all():
            raise UserError(f"{where}: tracks must be finite, but some numbers are not")
        return TrackGroup(
            [str(i) for i in range(len(tracks))], tracks, [float(i) for i in range(observed)]
        )

    def _last_frames(self, file: File, where: str, notes: list[str]) -> TrackGroup:
        """Return the people present in all of the last frames. Raises UserError if there is
        none."""
        frames, skipped = parse_frames(
            file.content.split(b"\n"), file.name, self.config.data.on_bad
        )
        notes += describe_skipped(file.name, "lines", skipped)
        observed = self.config.data.observed
        last = sorted(frames)[-observed:]
        ids = (
            sort_ids(set.intersection(*(set(frames[frame]) for frame in last)))
            if len(last) == observed
            else []
        )
        if not ids:
            raise UserError(
                f"{where}: {file.name}: no person is present in all of the last {observed} frames, "
                f"which a forecast "
                "needs."
            )
        return TrackGroup(
            ids, np.array([[frames[frame][person] for frame in last] for person in ids]), last
        )


@torch.no_grad()
def _predict_paths(model: nn.Module, source: Padded) -> Tensor:
    return model(source.to(device_of(model))).float().cpu()


def _plane(group: TrackGroup, paths: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> Plane:
    """Return the picture of all tracks of a group with their predicted paths."""
    rows = zip(group.names, group.tracks.tolist(), [path.tolist() for path in paths], strict=True)
    return Plane(
        tracks=tuple(
            Track(label=name, history=tuple(map(tuple, history)), future=tuple(map(tuple, future)))
            for name, history, future in rows
        )
    )


def _nearest(tracks: NDArray[np.float64], person: int, count: int) -> list[int]:
    others = np.delete(np.arange(len(tracks)), person)
    distance = np.linalg.norm(tracks[others, -1] - tracks[person, -1], axis=-1)
    return others[np.argsort(distance, kind="stable")][:count].tolist()
