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
from torch import nn

from regard.data.config import OnBad
from regard.data.events import Event, EventBatches, Sounds, pieces, read_events, read_wav, scenes_of
from regard.data.labelled import Labels
from regard.data.recordings import made_sounds, read_recordings
from regard.errors import UserError
from regard.look.plot_result import plot_events
from regard.models.build import build_detector
from regard.models.detector import Detector
from regard.models.reads.frames import FrameReader, LogMel
from regard.recipes.config import Events
from regard.recipes.event_scores import event_scores
from regard.recipes.folder import Run
from regard.recipes.task import Task, Trained

__all__ = ["EventsTask", "Heard", "TrainedEvents", "task"]

_LABELS = "labels.json"
_ROWS, _SAMPLES = 64, 5


class Heard(NamedTuple):
    """The events of a sound, a line each: label, score, onset, duration in seconds; and the mean score."""

    text: str
    score: float


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
        for split in ("train", "val", *(("test",) if self.has_test() else ())):
            self.prepared(self.sounds(split), labels)

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
            found += [[event for event, score in one if score >= self.config.threshold] for one in some]
        wanted = [batches.heard(i)[1] for i in range(len(batches.sounds))]
        return event_scores(found, wanted, self.config.data.seconds)

    @torch.no_grad()
    def found(self, model: nn.Module, source: torch.Tensor) -> list[list[tuple[Event, float]]]:
        """All that the queries say of each sound, with probabilities, the surest first."""
        score, label, region = model(source.to(next(model.parameters()).device)).best()
        region = region.double().cpu() * self.config.data.seconds
        rows = []
        for scores, labels, regions in zip(score.tolist(), label.tolist(), region.tolist(), strict=True):
            events = [
                Event(middle - duration / 2, duration, self.labels.names[c])
                for c, (middle, duration) in zip(labels, regions, strict=True)
            ]
            rows.append(list(zip(events, scores, strict=True)))
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

    def predict(self, inputs: Sequence[str | Path], *, threshold: float | None = None) -> list[list[Event]]:
        """The events of each wav file, of any length, in order; those of at least `threshold` (the run's own)."""
        return [[event for event, _ in self._heard(self._samples(path), threshold)] for path in inputs]

    def answers(self, inputs: Sequence[str], *, n_best: int = 1, first: int = 1) -> list[list[Heard]]:
        """For each wav file its events."""
        rows = []
        for path in inputs:
            found = self._heard(self._samples(path), None)
            lines = [f"{one.label}\t{score:.3f}\t{one.onset:.3f}\t{one.duration:.3f}" for one, score in found]
            rows.append([Heard("\n".join(lines), sum(score for _, score in found) / max(1, len(found)))])
        return rows

    def evaluate(
        self, path: str | Path | None = None, *, on_bad: OnBad = "error", tell: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """F1 and errors on the run's test sounds, or on others: a CSV of wav files, or recordings made scenes of."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        data = self.config.data
        if path is None:
            sounds = self.task.sounds("test")
        else:
            sounds = self.task.read(str(path), "test", data.test_scenes, on_bad)
        batches = self.task.prepared(sounds, self.task.labels)
        scores = self.task.scores(self.model, batches)
        signature = f"onset within 50 ms, threshold {self.config.threshold:g}, pieces of {data.seconds:g} s"
        samples = [self._sample(batches, i) for i in range(min(_SAMPLES, len(sounds)))]
        return {"data": sounds.origin, "examples": len(sounds), **scores, "signature": signature, "samples": samples}

    def draw(self, text: str, out: Path, *, overwrite: bool = False) -> None:
        """A wav file's spectrogram with the events found. Raises UserError as `regard.look.plot_result`."""
        samples, data = self._samples(text), self.config.data
        spectrum = LogMel(data.sample_rate, data.bands, hop=data.hop)
        bands = spectrum(torch.from_numpy(samples).float()[None] / 32768)[0].numpy()
        events = [(event.label, score, event.onset, event.duration) for event, score in self._heard(samples, None)]
        seconds = len(samples) / data.sample_rate
        plot_events(bands, events, out, seconds=seconds, title=Path(text).name, overwrite=overwrite)

    def _samples(self, path: str | Path) -> NDArray[np.int16]:
        return read_wav(Path(path), self.config.data.sample_rate)

    def _heard(self, samples: NDArray[np.int16], threshold: float | None) -> list[tuple[Event, float]]:
        """The events of a sound of any length, piece by piece: each piece answers for its middle half."""
        data = self.config.data
        least = self.config.threshold if threshold is None else threshold
        length = round(data.seconds * data.sample_rate)
        starts = pieces(len(samples), length)
        # Where one piece hands over to the next: the middle of what both hear.
        ends = [(a + length + b) / 2 / data.sample_rate for a, b in pairwise(starts)]
        found = []
        for start, first, last in zip(starts, [0.0, *ends], [*ends, float("inf")], strict=True):
            piece = samples[start : start + length]
            piece = np.pad(piece, (0, length - len(piece)))
            (heard,) = self.task.found(self.model, torch.from_numpy(piece).float()[None] / 32768)
            for event, score in heard:
                here = replace(event, onset=event.onset + start / data.sample_rate)
                if score >= least and first <= here.onset + here.duration / 2 < last:
                    found.append((here, score))
        return sorted(found)

    def _sample(self, batches: EventBatches, i: int) -> dict[str, str]:
        samples, wanted = batches.heard(i)
        found = [event for event, _ in self._heard(samples, None)]
        return {"source": f"sound {i}", "output": _told(found), "reference": _told(wanted)}


def _told(events: Sequence[Event]) -> str:
    return ", ".join(f"{one.label} at {one.onset:.2f} for {one.duration:.2f} s" for one in events) or "nothing"


def _is_csv(path: str) -> bool:
    return path.removesuffix(".gz").endswith(".csv")


def task(run: Run, tell: Callable[[str], None]) -> EventsTask:
    """This recipe at work."""
    return EventsTask(run, tell)
