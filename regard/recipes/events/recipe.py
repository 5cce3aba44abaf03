"""Recipe `events`: sound event detection with onset and duration, scored by F1.

    samples -> log-mel, convolutions -> encoder over times -> top-k proposals -> decoder queries ->
    label, time

Source: lectures, E.5 (sequence to set: location and duration of events); carion2020.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.sound.events import (
    EventBatches,
    SoundDataset,
    SoundEvent,
    list_sounds,
    make_sound_scenes,
    read_events,
    segment_starts,
)
from regard.data.sound.files import ENDINGS, decode_sound
from regard.data.sound.recordings import make_sounds, read_recordings
from regard.data.tables import is_table
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedEvent, Sample, Sound, format_score
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.sound import FrameReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.inputs import Input
from regard.recipes.base.recipe import Answer, Dataset, Example, File, Recipe, View, note_skipped
from regard.recipes.base.scoring import device_of, set_log_prob
from regard.recipes.events.config import EventsRunConfig
from regard.recipes.metrics.events import event_scores
from regard.system.progress import track
from regard.trace import Trace

_LABELS = "labels.json"


class EventPrediction(NamedTuple):
    """Event predicted by a query, with its probability."""

    event: SoundEvent
    score: float
    query: int = 0


class SoundSegment(NamedTuple):
    """Part of a sound, with the times between which it contributes events."""

    samples: NDArray[np.int16]
    begin: float
    """Start in the sound, in seconds."""
    first: float
    last: float


class EventsRecipe(Recipe[EventsRunConfig]):
    """Recipe of sound event detection."""

    metric = "f1"
    unit = "sounds"
    batch_rows = 64
    monitored = ("f1",)
    files_of_folder = ENDINGS
    labels: Labels

    def load(self, split: str) -> Dataset[SoundDataset]:
        data = self.config.data
        path = getattr(data, split) or data.train
        if path is not None and is_table(path):
            if split == "test" or data.val is not None:
                sounds = read_events(Path(path), data)
            else:
                sounds = self._held_out[split == "val"]
        else:
            if path is None:
                recordings = make_sounds(data.sample_rate, self.run.seed)
            else:
                recordings = read_recordings(Path(path), round(data.seconds * data.sample_rate))
            counts = {"train": data.epoch_size, "val": data.val_size, "test": data.test_size}
            sounds = make_sound_scenes(recordings, split, counts[split], data)
        count = len(sounds)
        return Dataset(
            sounds,
            sounds.origin,
            inputs=View(count, lambda i: np.array(sounds.load(i)[0])),
            references=View(count, lambda i: [_to_json(event) for event in sounds.load(i)[1]]),
            names=View(count, sounds.name),
            notes=(*note_skipped(sounds.origin, "events", sounds.skipped), *sounds.notices),
        )

    @cached_property
    def _held_out(self) -> tuple[SoundDataset, SoundDataset]:
        data: Any = self.config.data
        return read_events(Path(data.train), data).hold_out(data.val_share, seed=self.run.seed)

    def has_test(self) -> bool:
        data = self.config.data
        return not is_table(data.train) or data.test is not None

    def fit(self, train: Dataset[SoundDataset]) -> dict[str, Any]:
        if not train.data.labels:
            raise UserError(f"{train.origin}: there are no events to learn from")
        return {_LABELS: Labels(train.data.labels)}

    def open(self, folder: Path) -> None:
        self.labels = Labels.load(folder / _LABELS)

    def encode(self, dataset: Dataset[SoundDataset]) -> Dataset[SoundDataset]:
        return replace(dataset, targets=self._batches(dataset, rows=self.batch_rows, is_fixed=True))

    def batches(self) -> EventBatches:
        return self._batches(self.train, rows=self.config.batch, augment=self.config.augment)

    def _batches(self, dataset: Dataset[SoundDataset], **options: Any) -> EventBatches:
        data, seed = self.config.data, self.run.seed
        return EventBatches(dataset.data, self.labels, data, seed=seed, **options)

    def model(self) -> Model:
        data, config = self.config.data, self.config.model
        reader = FrameReader(
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
        return build_detector(config, reader, num_classes=len(self.labels), axes=1)

    def describe(self) -> str:
        data, count = self.config.data, len(self.labels)
        return f"sounds of {data.seconds:g} s at {data.sample_rate} Hz, {count} kinds of events"

    def metrics(self, inference: ActiveModel, dataset: Dataset[SoundDataset]) -> dict[str, Any]:
        batches: EventBatches = dataset.targets
        threshold, seconds = self.config.threshold, self.config.data.seconds
        predicted: list[list[SoundEvent]] = []
        for rows in track(batches.plan(0), "sounds", len(dataset)):
            for row in self.detect(inference.model, batches.collate(0, rows).source):
                predicted.append([p.event for p in row if p.score >= threshold])
        references = [dataset.data.load(i)[1] for i in range(len(dataset))]
        signature = f"onset within 50 ms, threshold {threshold:g}, segments of {seconds:g} s"
        return event_scores(predicted, references, seconds) | {"signature": signature}

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Tensor) -> list[list[EventPrediction]]:
        """Return the predictions of all queries for each sound, highest score first."""
        predictions, rows = model(source.to(device_of(model))), []
        scores, classes, regions = predictions.best()
        regions = regions.double().cpu() * self.config.data.seconds
        columns = [part.tolist() for part in (scores, classes, regions, predictions.order())]
        for parts in zip(*columns, strict=True):
            row = []
            for score, number, (middle, duration), query in zip(*parts, strict=True):
                event = SoundEvent(middle - duration / 2, duration, self.labels.names[number])
                row.append(EventPrediction(event, score, query))
            rows.append(row)
        return rows

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        data = replace(self.config.data, on_bad="skip") if skip_bad else self.config.data
        for name in list_sounds(path, data):
            file = str(path.parent / name)
            yield Input(file, file)

    def preprocess(self, given: Any, number: int) -> list[SoundSegment]:
        """Return overlapping segments of a sound; each contributes the events in its middle.

        given: a sound file of any length, or samples at the run's rate: int16, or floating point in
               [-1, 1].
        """
        rate, where = self.config.data.sample_rate, f"input {number}"
        length = round(self.config.data.seconds * rate)
        if isinstance(given, File):
            content = io.BytesIO(given.content)
            sound = np.concatenate([*decode_sound(content, rate, f"{where}: {given.name}")])
        else:
            is_row = isinstance(given, np.ndarray) and given.ndim == 1 and len(given)
            if is_row and given.dtype.kind == "f" and np.abs(given).max() <= 1:
                given = np.round(given.astype(np.float64) * 32768).clip(max=32767)
            elif not is_row or given.dtype.newbyteorder("=") != np.int16:
                expected = "one row of int16, or of floats within [-1, 1]"
                raise UserError(f"{where}: samples must be {expected}")
            sound = given.astype(np.int16)
        starts = segment_starts(len(sound), length)
        # The boundary between two segments is the middle of their overlap.
        middles = [(a + length + b) / 2 / rate for a, b in pairwise(starts)]
        bounds = [0.0, *middles, len(sound) / rate]
        rows = []
        for start, span in zip(starts, pairwise(bounds), strict=True):
            samples = sound[start : start + length]
            samples = np.pad(samples, (0, length - len(samples)))
            rows.append(SoundSegment(samples, start / rate, *span))
        return rows

    def forward(
        self, inference: ActiveModel, rows: Sequence[SoundSegment], trace: Trace | None = None
    ) -> list[list[EventPrediction]]:
        return self.detect(inference.model, _source(rows))

    def select_own(
        self, segment: SoundSegment, predictions: Sequence[EventPrediction]
    ) -> list[EventPrediction]:
        """Return the predictions above the threshold in the middle of a segment."""
        selected = []
        for prediction in predictions:
            middle = segment.begin + prediction.event.onset + prediction.event.duration / 2
            is_own = segment.first <= middle < segment.last
            if prediction.score >= self.config.threshold and is_own:
                selected.append(prediction)
        return selected

    def postprocess(self, example: Example) -> Answer:
        """Return the events of a sound by onset, clipped to it."""
        seconds, found = example.rows[-1].last, []
        for row, output in zip(example.rows, example.outputs, strict=True):
            for event, score, _ in self.select_own(row, output):
                first = max(0.0, row.begin + event.onset)
                last = min(seconds, row.begin + event.offset)
                found.append((SoundEvent(first, last - first, event.label), score))
        events, lines = [], []
        for event, score in sorted(found):
            events.append(_to_json(event) | {"score": score})
            lines.append(f"{event.label}\t{score:.3f}\t{event.onset:.3f}\t{event.duration:.3f}")
        return Answer([event for event, _ in sorted(found)], {"events": events}, lines)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        segment, predictions = example.rows[i], example.outputs[i]
        seconds, reader = self.config.data.seconds, inference.model.reader
        with torch.no_grad():
            bands = reader.spectrum(_source([segment]).to(device_of(inference.model)))[0]
        middles = reader.centers[:, 0].tolist()
        half = (middles[1] - middles[0]) / 2 if len(middles) > 1 else 1.0
        places = []
        for middle in middles:
            places.append((seconds * max(0.0, middle - half), seconds * min(1.0, middle + half)))
        source = Axis(
            labels=tuple(f"{start:.2f} to {stop:.2f} s" for start, stop in places),
            kind="time",
            picture="sound",
            places=tuple(places),
        )
        ordered = sorted(predictions, key=lambda p: p.query)
        queries = Axis(
            labels=tuple(f"{p.event.label} {format_score(p.score)}" for p in ordered),
            kind="event",
            picture="sound",
            places=tuple((p.event.onset, p.event.offset) for p in ordered),
        )
        own, title = self.select_own(segment, predictions), example.name
        if len(example.rows) > 1:
            title += f", {segment.begin:g} to {segment.begin + seconds:g} s"
        found = []
        for event in sorted(prediction.event for prediction in own):
            found.append(f"{event.label} at {event.onset:.2f} for {event.duration:.2f} s")
        sound = Sound(
            bands=bands.float().cpu().numpy(),
            seconds=seconds,
            begin=segment.begin,
            events=tuple(DetectedEvent(**asdict(e), score=s, query=query) for e, s, query in own),
            labels=self.labels.names,
            hertz=self.config.data.sample_rate / 2,
        )
        return Sample(
            title=f"{title} -> {', '.join(found) or 'nothing'}",
            axes={"source": source, "queries": queries},
            pictures={"sound": sound},
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        segment = example.rows[i]
        predictions = model(_source([segment]).to(device_of(model)))
        pairs = []
        for event, _, query in self.select_own(segment, example.outputs[i]):
            pairs.append((query, self.labels.names.index(event.label)))
        return set_log_prob(predictions, pairs, "event")


def _source(segments: Sequence[SoundSegment]) -> Tensor:
    return torch.from_numpy(np.stack([segment.samples for segment in segments])).float() / 32768


def _to_json(event: SoundEvent) -> dict[str, Any]:
    return {"label": event.label, "onset": event.onset, "duration": event.duration}
