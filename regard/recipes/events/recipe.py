"""Recipe `events`: sound event detection with onset and duration, scored by F1.

    samples -> log-mel, convolutions -> encoder over times -> top-k proposals -> decoder queries -> label, time

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
from regard.data.sound.events import (
    EventBatches,
    SoundDataset,
    SoundEvent,
    make_sound_scenes,
    read_events,
    segment_starts,
)
from regard.data.sound.files import read_sound
from regard.data.sound.recordings import make_sounds, read_recordings
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, DetectedEvent, Sample, Sound
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.sound import FrameReader
from regard.recipes.base.likelihood import set_log_prob
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.events.config import EventsRunConfig
from regard.recipes.metrics.events import event_scores
from regard.system.compression import plain_name
from regard.system.fingerprints import record_digests

Given = str | Path | NDArray[Any]
"""A sound file or its samples."""
_LABELS = "labels.json"
_ROWS, _SAMPLES = 64, 5


class EventLines(NamedTuple):
    """Events of a sound as lines of label, score, onset and duration in seconds; and their mean score."""

    text: str
    score: float


class EventPrediction(NamedTuple):
    """Event predicted by a query, with its probability."""

    event: SoundEvent
    score: float
    query: int = 0


class EventsRecipe(Recipe):
    """Recipe of sound event detection."""

    metric = "f1"
    labels: Labels

    def __init__(self, run: Run, notify: Callable[[str], None]):
        super().__init__(run, notify)
        self._sounds: dict[str, SoundDataset] = {}

    @property
    def config(self) -> EventsRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, EventsRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all files."""
        labels = Labels(self.sounds("train").labels)
        if not labels.names:
            raise UserError(f"{self.sounds('train').origin}: there are no events to learn from.")
        for split in ("train", "val"):
            self.make_batches(self.sounds(split), labels)
        if self.has_test():
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.make_batches(self.sounds("test"), labels)

    def learn(self, folder: Path) -> None:
        """Save the labels of the training data."""
        Labels(self.sounds("train").labels).save(folder / _LABELS)

    def open(self, folder: Path) -> None:
        """Load the labels."""
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> EventBatches:
        """Return batches of the training sounds, shuffled in each epoch."""
        settings = {"rows": self.config.batch, "is_fixed": False, "augment": self.config.augment}
        return self.make_batches(self.sounds("train"), self.labels, **settings)

    def make_batches(
        self, sounds: SoundDataset, labels: Labels, *, rows: int = _ROWS, is_fixed: bool = True, augment: bool = False
    ) -> EventBatches:
        """Return batches of the sounds."""
        return EventBatches(
            sounds, labels, self.config.data, rows=rows, seed=self.run.seed, is_fixed=is_fixed, augment=augment
        )

    def sounds(self, split: str) -> SoundDataset:
        """Return the sounds of a split, which are read once."""
        if split not in self._sounds:
            self._sounds[split] = self._load_split(split)
        return self._sounds[split]

    def read_sounds(self, path: str | None, split: str, count: int, on_bad: OnBad) -> SoundDataset:
        """Read the sounds of a CSV, or generate scenes from recordings; from synthetic recordings without a path."""
        data = replace(self.config.data, on_bad=on_bad)
        if path is None:
            return make_sound_scenes(self._synthetic_sounds, split, count, data)
        if _is_table(path):
            sounds = read_events(Path(path), data)
            if sounds.skipped:
                self.notify(f"{path}: left out {len(sounds.skipped)} events; first: {sounds.skipped[0]}")
            for note in sounds.notes:
                self.notify(f"{path}: {note}")
            return sounds
        recordings = read_recordings(Path(path), round(data.seconds * data.sample_rate))
        return make_sound_scenes(recordings, split, count, data)

    def model(self) -> Model:
        """Return a detector for this length of sounds and these labels."""
        data, config = self.config.data, self.config.model
        reads = FrameReader(
            round(data.seconds * data.sample_rate),
            config.core.width,
            sample_rate=data.sample_rate,
            bands=data.bands,
            hop=data.hop,
            channels=self.config.channels,
            downsampling_layers=self.config.downsampling_layers,
            dropout=config.dropout,
            hidden=data.bands // 5 if self.config.augment else 0,
        )
        return build_detector(config, reads, num_classes=len(self.labels), axes=1)

    def describe(self) -> str:
        """Return the input size and the number of classes."""
        data = self.config.data
        return f"sounds of {data.seconds:g} s at {data.sample_rate} Hz, {len(self.labels)} kinds of events"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return F1 on the validation sounds."""
        return {"f1": self.score(model, self._val)["f1"]}

    def score(self, model: nn.Module, batches: EventBatches) -> dict[str, float]:
        """Return F1 and timing errors."""
        predicted: list[list[SoundEvent]] = []
        for rows in batches.plan(0):
            predictions = self.detect(model, batches.collate(0, rows).source)
            predicted += [[p.event for p in row if p.score >= self.config.threshold] for row in predictions]
        references = [batches.sounds.load(i)[1] for i in range(len(batches.sounds))]
        return event_scores(predicted, references, self.config.data.seconds)

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Tensor) -> list[list[EventPrediction]]:
        """Return the predictions of all queries for each sound, highest score first."""
        predictions = model(source.to(next(model.parameters()).device))
        score, label, region = predictions.best()
        region = region.double().cpu() * self.config.data.seconds
        rows = []
        for parts in zip(score.tolist(), label.tolist(), region.tolist(), predictions.order().tolist(), strict=True):
            row = [
                EventPrediction(SoundEvent(middle - duration / 2, duration, self.labels.names[c]), probability, query)
                for probability, c, (middle, duration), query in zip(*parts, strict=True)
            ]
            rows.append(row)
        return rows

    def has_test(self) -> bool:
        """Return True if there is test data; synthetic scenes always have it."""
        data = self.config.data
        return data.train is None or not _is_table(data.train) or data.test is not None

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedEvents":
        """Return the trained run of this model."""
        return TrainedEvents(self, model, folder)

    def _load_split(self, split: str) -> SoundDataset:
        data = self.config.data
        path = getattr(data, split)
        count = {"train": data.epoch_size, "val": data.val_size, "test": data.test_size}[split]
        if path is None and (data.train is None or not _is_table(data.train)):
            path = data.train  # other scenes of the same recordings
        return self.read_sounds(path, split, count, data.on_bad)

    @cached_property
    def _synthetic_sounds(self) -> Any:
        return make_sounds(self.config.data.sample_rate, self.run.seed)

    @cached_property
    def _val(self) -> EventBatches:
        return self.make_batches(self.sounds("val"), self.labels)


class TrainedEvents(TrainedRun):
    """Trained run of the recipe `events`."""

    recipe: EventsRecipe

    def predict(self, inputs: Sequence[Given], *, threshold: float | None = None) -> list[list[SoundEvent]]:
        """Detect the events of each sound with a score of at least `threshold` (default: the run's), in order of onset.

        inputs: sound files of any length (truncated files are read as far as possible, with a message), or samples at
                the run's rate: int16, or floating point in [-1, 1].
        """
        return [[event for event, _ in events] for events in self._detect_all(inputs, threshold, 1)]

    def answers(self, inputs: Sequence[Given], *, n_best: int = 1, first: int = 1) -> list[list[EventLines]]:
        """Return the detected events of each sound as lines of text."""
        rows = []
        for events in self._detect_all(inputs, None, first):
            lines = [f"{event.label}\t{score:.3f}\t{event.onset:.3f}\t{event.duration:.3f}" for event, score in events]
            rows.append([EventLines("\n".join(lines), sum(score for _, score in events) / max(1, len(events)))])
        return rows

    def evaluate(
        self, path: str | Path | None = None, *, on_bad: OnBad = "error", notify: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Return F1 and timing errors on the run's test sounds, a CSV of sound files, or scenes from recordings."""
        if path is None:
            self._check_test()
        data = self.config.data
        if path is None:
            sounds = self.recipe.sounds("test")
        else:
            sounds = self.recipe.read_sounds(str(path), "test", data.test_size, on_bad)
        batches = self.recipe.make_batches(sounds, self.recipe.labels)
        scores = self.recipe.score(self._model, batches)
        signature = f"onset within 50 ms, threshold {self.config.threshold:g}, segments of {data.seconds:g} s"
        samples = [self._sample(batches, i) for i in range(min(_SAMPLES, len(sounds)))]
        return {"data": sounds.origin, "examples": len(sounds), **scores, "signature": signature, "samples": samples}

    def split_inputs(self, inputs: Sequence[Given]) -> list[NDArray[np.int16]]:
        """Return the segments of all sounds, in the order in which the model reads them."""
        length = self._segment_length()
        sounds = (self._load_samples(given, number) for number, given in enumerate(inputs, start=1))
        return [_cut_segment(sound, start, length) for sound in sounds for start in segment_starts(len(sound), length)]

    def likelihood(self, given: Given, maps: SampleMaps) -> Tensor:
        """Return the sum of log p of the events that a segment contributes."""
        source = _source(_cut_segment(self._load_samples(given, 1), 0, self._segment_length()))
        predictions = self._model(source.to(next(self._model.parameters()).device))
        sound, names = maps.sample.pictures["sound"], self.recipe.labels.names
        assert isinstance(sound, Sound)
        return set_log_prob(predictions, [(event.query, names.index(event.label)) for event in sound.events], "event")

    def test_input(self, index: int) -> NDArray[np.int16]:
        """Return the samples of a sound of the test data."""
        self._check_test()
        sounds = self.recipe.sounds("test")
        number = get_input(range(len(sounds)), index, sounds.origin)
        return self._set_name(np.array(sounds.load(number)[0]), f"test sound {index}")

    def _detect_all(
        self, inputs: Sequence[Given], threshold: float | None, first: int
    ) -> list[list[tuple[SoundEvent, float]]]:
        rows = []
        for number, given in enumerate(inputs, start=first):
            samples = self._load_samples(given, number)
            rows.append(self._detect(samples, threshold, self._get_name(given, f"sound {number}")))
        return rows

    def _load_samples(self, given: Given, number: int) -> NDArray[np.int16]:
        if not isinstance(given, np.ndarray):
            samples, notes = read_sound(Path(given), self.config.data.sample_rate, f"input {number}")
            for note in filter(None, (notes.cut_off, notes.clipped)):
                self.recipe.notify(note)
            return samples
        if (
            given.ndim != 1
            or not len(given)
            or (given.dtype != np.int16 and not np.issubdtype(given.dtype, np.floating))
        ):
            raise UserError(
                f"input {number}: samples must be one row of 16-bit or floating numbers, got {given.dtype} of "
                f"{given.shape}"
            )
        if given.dtype == np.int16:
            return given
        if not np.abs(given).max() <= 1:
            raise UserError(f"input {number}: floating samples must lie within [-1, 1], but some do not")
        return np.round(given.astype(np.float64) * 32767).astype(np.int16)

    def _detect(self, sound: NDArray[np.int16], threshold: float | None, name: str) -> list[tuple[SoundEvent, float]]:
        """Detect the events of a sound in overlapping segments, each of which contributes those in its middle part."""
        data = self.config.data
        threshold = self.config.threshold if threshold is None else threshold
        length = self._segment_length()
        starts = segment_starts(len(sound), length)
        # The boundary between two segments is the middle of their overlap.
        ends = [(a + length + b) / 2 / data.sample_rate for a, b in pairwise(starts)]
        events = []
        for start, first, last in zip(starts, [0.0, *ends], [*ends, float("inf")], strict=True):
            source, begin = _source(_cut_segment(sound, start, length)), start / data.sample_rate
            with self._segment(lambda source=source, begin=begin: [self._look_sample(source, begin)]) as samples:
                (predictions,) = self.recipe.detect(self._model, source)
            own = []
            for prediction in predictions:
                event = replace(prediction.event, onset=prediction.event.onset + begin)
                if prediction.score >= threshold and first <= event.onset + event.duration / 2 < last:
                    events.append((event, prediction.score))
                    own.append(prediction)
            for sample in samples:
                part = f"{name}, {begin:g} to {begin + data.seconds:g} s" if len(starts) > 1 else name
                sample.title = f"{part} -> {_format_events(sorted(prediction.event for prediction in own))}"
                _complete(sample, predictions, own)
        return sorted(events)

    def _segment_length(self) -> int:
        """Return the number of samples of a segment."""
        return round(self.config.data.seconds * self.config.data.sample_rate)

    @torch.no_grad()
    def _look_sample(self, source: Tensor, begin: float) -> Sample:
        """Return the sample of a look at this segment of sound."""
        seconds, reads = self.config.data.seconds, self._model.reads
        bands = reads.spectrum(source.to(next(self._model.parameters()).device))[0].float().cpu().numpy()
        middles = reads.centers[:, 0].double().tolist()
        half = (middles[1] - middles[0]) / 2 if len(middles) > 1 else 1.0
        places = tuple((seconds * max(0.0, middle - half), seconds * min(1.0, middle + half)) for middle in middles)
        labels = tuple(f"{start:.2f} to {stop:.2f} s" for start, stop in places)
        axis = Axis(labels=labels, kind="time", picture="sound", places=places)
        return Sample(axes={"source": axis}, pictures={"sound": Sound(bands=bands, seconds=seconds, begin=begin)})

    def _sample(self, batches: EventBatches, i: int) -> dict[str, str]:
        samples, references = batches.sounds.load(i)
        events = [event for event, _ in self._detect(samples, None, f"sound {i}")]
        return {"source": f"sound {i}", "output": _format_events(events), "reference": _format_events(references)}


def create_recipe(run: Run, notify: Callable[[str], None]) -> EventsRecipe:
    """Create the recipe of a run."""
    return EventsRecipe(run, notify)


def _cut_segment(samples: NDArray[np.int16], start: int, length: int) -> NDArray[np.int16]:
    """Return a segment of `length` samples, padded with silence at the end."""
    segment = samples[start : start + length]
    return np.pad(segment, (0, length - len(segment)))


def _source(segment: NDArray[np.int16]) -> Tensor:
    return torch.from_numpy(segment).float()[None] / 32768


def _complete(sample: Sample, predictions: Sequence[EventPrediction], own: Sequence[EventPrediction]) -> None:
    """Add the predictions of all queries for a segment; `own` are those that it contributes."""
    events = tuple(
        DetectedEvent(
            label=p.event.label,
            score=p.score,
            onset=p.event.onset,
            duration=p.event.duration,
            query=p.query,
        )
        for p in own
    )
    sample.pictures["sound"] = replace(sample.pictures["sound"], events=events)  # type: ignore[call-arg]
    ordered = sorted(predictions, key=lambda p: p.query)
    sample.axes["queries"] = Axis(
        labels=tuple(f"{p.event.label} {p.score:.2f}" for p in ordered),
        kind="event",
        picture="sound",
        places=tuple((p.event.onset, p.event.offset) for p in ordered),
    )


def _format_events(events: Sequence[SoundEvent]) -> str:
    return ", ".join(f"{event.label} at {event.onset:.2f} for {event.duration:.2f} s" for event in events) or "nothing"


def _is_table(path: str) -> bool:
    return plain_name(path).endswith((".csv", ".tsv", ".jsonl"))
