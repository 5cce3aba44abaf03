"""The recipe `events`: sound to the events that are in it, with onset and duration; scored by F1.

    samples -> log-mel, convolutions -> times that read one another -> the surest propose -> queries -> label, when

Source: lectures, E (sequence to set: location and duration of events); carion2020.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.events import Event, EventBatches, Sounds, pieces, read_events, scenes_of
from regard.data.labeled import Labels
from regard.data.recordings import made_sounds, read_recordings
from regard.data.sound_files import read_sound
from regard.digests import recorded
from regard.errors import UserError
from regard.look.map import Seen
from regard.look.scene import Axis, Scene, Sound
from regard.look.scene import Event as Sounding
from regard.models.build import build_detector
from regard.models.detector import Detector
from regard.models.reads.frames import FrameReader
from regard.packed import plain_name
from regard.recipes.config import Events
from regard.recipes.event_scores import event_scores
from regard.recipes.folder import Run
from regard.recipes.likelihood import of_found
from regard.recipes.task import Task, Trained, numbered
from regard.telling import showing

Given = str | Path | NDArray[Any]
"""A sound file, or its samples."""
_LABELS = "labels.json"
_ROWS, _SAMPLES = 64, 5


class Heard(NamedTuple):
    """The events of a sound, a line each: label, score, onset, duration in seconds; and the mean score."""

    text: str
    score: float


class Said(NamedTuple):
    """What a query says, with its probability."""

    event: Event
    score: float
    query: int = 0


class EventsTask(Task):
    """Sounds with events, and a detector."""

    metric = "f1"
    labels: Labels

    def __init__(self, run: Run, tell: Callable[[str], None]):
        super().__init__(run, tell)
        self._sounds: dict[str, Sounds] = {}

    @property
    def config(self) -> Events:
        """All settings of the run."""
        assert isinstance(self.run.config, Events)
        return self.run.config

    def check(self) -> None:
        """Read all files."""
        labels = Labels(self.sounds("train").labels)
        if not labels.names:
            raise UserError(f"{self.sounds('train').origin}: there is no event in it to learn from.")
        for split in ("train", "val"):
            self.prepared(self.sounds(split), labels)
        if self.has_test():
            with recorded():  # decides no weights: no part of what the run was trained on
                self.prepared(self.sounds("test"), labels)

    def learn(self, folder: Path) -> None:
        """The labels that occur."""
        Labels(self.sounds("train").labels).save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """The labels."""
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> EventBatches:
        """All training sounds, in a new order each epoch."""
        settings = {"rows": self.config.batch, "is_fixed": False, "augment": self.config.augment}
        return self.prepared(self.sounds("train"), self.labels, **settings)

    def prepared(
        self, sounds: Sounds, labels: Labels, *, rows: int = _ROWS, is_fixed: bool = True, augment: bool = False
    ) -> EventBatches:
        """Batches of any sounds."""
        return EventBatches(
            sounds, labels, self.config.data, rows=rows, seed=self.run.seed, is_fixed=is_fixed, augment=augment
        )

    def sounds(self, split: str) -> Sounds:
        """The sounds of a split, read once."""
        if split not in self._sounds:
            self._sounds[split] = self._of_split(split)
        return self._sounds[split]

    def _of_split(self, split: str) -> Sounds:
        data = self.config.data
        path = getattr(data, split)
        count = {"train": data.scenes, "val": data.val_scenes, "test": data.test_scenes}[split]
        if path is None and (data.train is None or not _is_csv(data.train)):
            path = data.train  # scenes of another split of the same recordings
        return self.read(path, split, count, data.on_bad)

    def read(self, path: str | None, split: str, count: int, on_bad: OnBad) -> Sounds:
        """The sounds of a file: those of a CSV, or scenes made of recordings; of made-up ones without a file."""
        data = replace(self.config.data, on_bad=on_bad)
        if path is None:
            return scenes_of(self._made, split, count, data)
        if _is_csv(path):
            found = read_events(Path(path), data)
            if found.skipped:
                self.tell(f"{path}: left out {len(found.skipped)} events; first: {found.skipped[0]}")
            for note in found.notes:
                self.tell(f"{path}: {note}")
            return found
        recordings = read_recordings(Path(path), round(data.seconds * data.sample_rate))
        return scenes_of(recordings, split, count, data)

    def model(self) -> Detector:
        """For sounds of this length and these labels."""
        data, config = self.config.data, self.config.model
        reads = FrameReader(
            round(data.seconds * data.sample_rate),
            config.core.width,
            sample_rate=data.sample_rate,
            bands=data.bands,
            hop=data.hop,
            channels=self.config.channels,
            halvings=self.config.halvings,
            dropout=config.dropout,
            hidden=data.bands // 5 if self.config.augment else 0,
        )
        return build_detector(config, reads, num_classes=len(self.labels), axes=1)

    def describe(self) -> str:
        """What is read and found."""
        data = self.config.data
        return f"sounds of {data.seconds:g} s at {data.sample_rate} Hz, {len(self.labels)} kinds of events"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """F1 of the validation sounds."""
        return {"f1": self.scores(model, self._val)["f1"]}

    def scores(self, model: nn.Module, batches: EventBatches) -> dict[str, float]:
        """F1 and errors of any sounds."""
        found: list[list[Event]] = []
        for rows in batches.plan(0):
            some = self.found(model, batches.collate(0, rows).source)
            found += [[said.event for said in one if said.score >= self.config.threshold] for one in some]
        wanted = [batches.sounds.hear(i)[1] for i in range(len(batches.sounds))]
        return event_scores(found, wanted, self.config.data.seconds)

    @torch.no_grad()
    def found(self, model: nn.Module, source: Tensor) -> list[list[Said]]:
        """All that the queries say of each sound, the surest first."""
        said = model(source.to(next(model.parameters()).device))
        score, label, region = said.best()
        region = region.double().cpu() * self.config.data.seconds
        rows = []
        for parts in zip(score.tolist(), label.tolist(), region.tolist(), said.order().tolist(), strict=True):
            row = [
                Said(Event(middle - duration / 2, duration, self.labels.names[c]), sure, query)
                for sure, c, (middle, duration), query in zip(*parts, strict=True)
            ]
            rows.append(row)
        return rows

    def has_test(self) -> bool:
        """Always for made-up scenes."""
        data = self.config.data
        return data.train is None or not _is_csv(data.train) or data.test is not None

    def trained(self, model: nn.Module, folder: Path) -> "TrainedEvents":
        """The model with its labels."""
        return TrainedEvents(self, model, folder)

    @cached_property
    def _made(self) -> Any:
        return made_sounds(self.config.data.sample_rate, self.run.seed)

    @cached_property
    def _val(self) -> EventBatches:
        return self.prepared(self.sounds("val"), self.labels)


class TrainedEvents(Trained):
    """A detector of events in use."""

    task: EventsTask

    def predict(self, inputs: Sequence[Given], *, threshold: float | None = None) -> list[list[Event]]:
        """The events of each sound, of any length, in order; those of at least `threshold` (the run's own).

        inputs: sound files (those that are cut off are read up to there, with a notice), or samples at the run's rate:
                16-bit, or floating within [-1, 1].
        """
        return [[event for event, _ in found] for found in self._all_heard(inputs, threshold, 1)]

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[Heard]]:
        """For each sound its events."""
        rows = []
        for found in self._all_heard(inputs, None, first):
            lines = [f"{one.label}\t{score:.3f}\t{one.onset:.3f}\t{one.duration:.3f}" for one, score in found]
            rows.append([Heard("\n".join(lines), sum(score for _, score in found) / max(1, len(found)))])
        return rows

    def evaluate(
        self, path: str | Path | None = None, *, on_bad: OnBad = "error", tell: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """F1 and errors on the run's test sounds, or on others: a CSV of sound files, or recordings made scenes of."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        data = self.config.data
        if path is None:
            sounds = self.task.sounds("test")
        else:
            sounds = self.task.read(str(path), "test", data.test_scenes, on_bad)
        batches = self.task.prepared(sounds, self.task.labels)
        scores = self.task.scores(self._model, batches)
        signature = f"onset within 50 ms, threshold {self.config.threshold:g}, pieces of {data.seconds:g} s"
        samples = [self._sample(batches, i) for i in range(min(_SAMPLES, len(sounds)))]
        return {"data": sounds.origin, "examples": len(sounds), **scores, "signature": signature, "samples": samples}

    def parts(self, inputs: Sequence[Given]) -> list[NDArray[np.int16]]:
        """The pieces of all sounds, as they are read one by one."""
        sounds, length = (self._samples(one, number) for number, one in enumerate(inputs, start=1)), self._length()
        return [_piece(one, start, length) for one in sounds for start in pieces(len(one), length)]

    def likelihood(self, given: Given, seen: Seen) -> Tensor:
        """Sum of log p of the events that were heard in a piece of sound, those that it answers for."""
        piece = _source(_piece(self._samples(given, 1), 0, self._length()))
        said = self._model(piece.to(next(self._model.parameters()).device))
        sound, names = seen.scene.pictures["sound"], self.task.labels.names
        assert isinstance(sound, Sound)
        return of_found(said, [(one.query, names.index(one.label)) for one in sound.events], "event")

    def test_input(self, index: int) -> NDArray[np.int16]:
        """The samples of a sound of the test data."""
        self._check_test()
        sounds = self.task.sounds("test")
        number = numbered(range(len(sounds)), index, sounds.origin)
        return self._named(np.array(sounds.hear(number)[0]), f"test sound {index}")

    def _all_heard(
        self, inputs: Sequence[Given], threshold: float | None, first: int
    ) -> list[list[tuple[Event, float]]]:
        rows = []
        for number, one in enumerate(inputs, start=first):
            rows.append(self._heard(self._samples(one, number), threshold, self._called(one, f"sound {number}")))
        return rows

    def _samples(self, one: Given, number: int) -> NDArray[np.int16]:
        if not isinstance(one, np.ndarray):
            samples, notes = read_sound(Path(one), self.config.data.sample_rate, f"input {number}")
            for note in filter(None, (notes.cut_off, notes.clipped)):
                self.task.tell(note)
            return samples
        if one.ndim != 1 or not len(one) or (one.dtype != np.int16 and not np.issubdtype(one.dtype, np.floating)):
            raise UserError(
                f"input {number}: samples must be one row of 16-bit or floating numbers, but are {one.dtype} of "
                f"{one.shape}"
            )
        if one.dtype == np.int16:
            return one
        if not np.abs(one).max() <= 1:
            raise UserError(f"input {number}: floating samples must lie within [-1, 1], but some do not")
        return np.round(one.astype(np.float64) * 32767).astype(np.int16)

    def _heard(self, samples: NDArray[np.int16], threshold: float | None, name: str) -> list[tuple[Event, float]]:
        """The events of a sound of any length, piece by piece: each piece answers for its middle half."""
        data = self.config.data
        least = self.config.threshold if threshold is None else threshold
        length = self._length()
        starts = pieces(len(samples), length)
        # Where one piece hands over to the next: the middle of what both hear.
        ends = [(a + length + b) / 2 / data.sample_rate for a, b in pairwise(starts)]
        found = []
        for start, first, last in zip(starts, [0.0, *ends], [*ends, float("inf")], strict=True):
            source, begin = _source(_piece(samples, start, length)), start / data.sample_rate
            with showing(lambda source=source, begin=begin: [self._scene(source, begin)]) as scenes:
                (heard,) = self.task.found(self._model, source)
            own = []
            for said in heard:
                here = replace(said.event, onset=said.event.onset + begin)
                if said.score >= least and first <= here.onset + here.duration / 2 < last:
                    found.append((here, said.score))
                    own.append(said)
            for scene in scenes:
                part = f"{name}, {begin:g} to {begin + data.seconds:g} s" if len(starts) > 1 else name
                scene.title = f"{part} -> {_told(sorted(said.event for said in own))}"
                _complete(scene, heard, own)
        return sorted(found)

    def _length(self) -> int:
        """Samples of a piece."""
        return round(self.config.data.seconds * self.config.data.sample_rate)

    @torch.no_grad()
    def _scene(self, source: Tensor, begin: float) -> Scene:
        """What is read of a piece of sound, for those who look on."""
        seconds, reads = self.config.data.seconds, self._model.reads
        bands = reads.spectrum(source.to(next(self._model.parameters()).device))[0].float().cpu().numpy()
        middles = reads.centers[:, 0].double().tolist()
        half = (middles[1] - middles[0]) / 2 if len(middles) > 1 else 1.0
        places = tuple((seconds * max(0.0, one - half), seconds * min(1.0, one + half)) for one in middles)
        labels = tuple(f"{start:.2f} to {stop:.2f} s" for start, stop in places)
        axis = Axis(labels=labels, what="time", on="sound", places=places)
        return Scene(axes={"source": axis}, pictures={"sound": Sound(bands=bands, seconds=seconds, begin=begin)})

    def _sample(self, batches: EventBatches, i: int) -> dict[str, str]:
        samples, wanted = batches.sounds.hear(i)
        found = [event for event, _ in self._heard(samples, None, f"sound {i}")]
        return {"source": f"sound {i}", "output": _told(found), "reference": _told(wanted)}


def _piece(samples: NDArray[np.int16], start: int, length: int) -> NDArray[np.int16]:
    """Return a piece as long as the model reads, silent behind the end."""
    piece = samples[start : start + length]
    return np.pad(piece, (0, length - len(piece)))


def _source(piece: NDArray[np.int16]) -> Tensor:
    return torch.from_numpy(piece).float()[None] / 32768


def _complete(scene: Scene, heard: Sequence[Said], own: Sequence[Said]) -> None:
    """What the queries said of a piece; `own`: of these it answers for."""
    events = tuple(
        Sounding(
            label=said.event.label,
            score=said.score,
            onset=said.event.onset,
            duration=said.event.duration,
            query=said.query,
        )
        for said in own
    )
    scene.pictures["sound"] = replace(scene.pictures["sound"], events=events)  # type: ignore[call-arg]
    ordered = sorted(heard, key=lambda said: said.query)
    scene.axes["queries"] = Axis(
        labels=tuple(f"{said.event.label} {said.score:.2f}" for said in ordered),
        what="event",
        on="sound",
        places=tuple((said.event.onset, said.event.offset) for said in ordered),
    )


def _told(events: Sequence[Event]) -> str:
    return ", ".join(f"{one.label} at {one.onset:.2f} for {one.duration:.2f} s" for one in events) or "nothing"


def _is_csv(path: str) -> bool:
    return plain_name(path).endswith(".csv")


def task(run: Run, tell: Callable[[str], None]) -> EventsTask:
    """This recipe at work."""
    return EventsTask(run, tell)
