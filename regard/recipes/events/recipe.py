"""Recipe `events`: sound event detection with onset and duration, scored by F1.

    samples -> log-mel, convolutions -> encoder over times -> top-k proposals -> decoder queries ->
    label, time

Source: lectures, E.5 (sequence to set: location and duration of events); carion2020.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import plan_by_sum
from regard.data.config import used_augmentation
from regard.data.sound.events import (
    EventBatches,
    SoundDataset,
    SoundEvent,
    Sounds,
    list_sounds,
    make_sound_scenes,
    read_event_files,
    segment_length,
    segment_starts,
)
from regard.data.sound.files import ENDINGS, decode_sound
from regard.data.sound.recordings import is_recordings, make_sounds, read_recordings
from regard.data.tables import TABLES, Input
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedEvent, Sample, Sound, format_score
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.sound import FrameReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.recipe import Answer, Dataset, Example, File, Recipe, Results, View
from regard.recipes.base.scoring import device_of, set_log_prob
from regard.recipes.events.config import EventsRunConfig
from regard.recipes.metrics.events import event_scores
from regard.system.files import one_path
from regard.system.progress import track
from regard.trace import Trace

_LABELS = "labels.json"
_AUTO = ("speed", "shift", "frequency-mask")
_MARGIN = 1 / 32
"""Share of a segment by which the parts that contribute events overlap, on either side."""
_MIN_OVERLAP = 1 / 3
"""Share of the shorter of two events that must overlap for them to be joined."""


class EventPrediction(NamedTuple):
    """Event predicted by a query, with its probability."""

    event: SoundEvent
    score: float
    query: int = 0
    segment: int = 0
    """Index of the segment of the sound."""


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
    columns: Mapping[str, type] = {
        "onset": float,
        "offset": float,
        "label": str,
        "probability": float,
    }
    unit = "sounds"
    batch_rows = 64
    monitored = ("f1",)
    files_of_folder = ENDINGS
    tables = (*TABLES, ".selections.txt")
    least_val = 0  # its examples are files of any length
    labels: Labels

    def load(self, split: str) -> Dataset[Sounds]:
        data = self.config.data
        paths = getattr(data, split) or data.train
        if paths is not None and not is_recordings(paths[0]):
            if split == "test" or data.val is not None:
                sounds = read_event_files(paths, data)
            else:
                sounds = self._held_out[split == "val"]
        else:
            if paths is None:
                recordings = make_sounds(data.sample_rate, self.run.seed)
            else:
                recordings = read_recordings(one_path(paths), segment_length(data))
            counts = {"train": data.epoch_size, "val": data.val_size, "test": data.test_size}
            sounds = make_sound_scenes(recordings, split, counts[split], data)
        count = len(sounds)
        return Dataset(
            sounds,
            sounds.origin,
            inputs=View(count, lambda i: np.array(sounds.load(i)[0])),
            references=View(count, lambda i: [_to_json(event) for event in sounds.load(i)[1]]),
            names=View(count, sounds.name),
            notes=sounds.notices,
        )

    @cached_property
    def _held_out(self) -> tuple[SoundDataset, SoundDataset]:
        data: Any = self.config.data
        return read_event_files(data.train, data).hold_out(seed=self.run.seed)

    def has_test(self) -> bool:
        data = self.config.data
        return data.train is None or is_recordings(data.train[0]) or data.test is not None

    def fit(self, train: Dataset[Sounds]) -> dict[str, Any]:
        if not train.data.labels:
            raise UserError(f"{train.origin}: there are no events to learn from")
        return {_LABELS: Labels(train.data.labels)}

    def open(self, folder: Path) -> None:
        self.labels = Labels.load(folder / _LABELS)

    def encode(self, dataset: Dataset[Sounds]) -> Dataset[Sounds]:
        unknown = sorted(set(dataset.data.labels) - set(self.labels.names))
        if unknown:
            raise UserError(f"{dataset.origin}: label {unknown[0]!r} is not in the training data")
        return dataset

    def batches(self) -> EventBatches:
        return EventBatches(
            self.encode(self.train).data,
            self.labels,
            self.config.data,
            rows=self.config.batch,
            seed=self.run.seed,
            augment=used_augmentation(self.config.augment, _AUTO),
        )

    def model(self) -> Model:
        data, config = self.config.data, self.config.model
        reader = FrameReader(
            segment_length(data),
            config.core.width,
            sample_rate=data.sample_rate,
            bands=data.bands,
            hop=data.hop,
            channels=self.config.channels,
            downsampling_layers=self.config.downsampling_layers,
            dropout=config.dropout,
        )
        sizes = {"num_classes": len(self.labels), "axes": 1}
        return build_detector(config, reader, **sizes, parts=self.parts())

    def describe(self) -> str:
        data, count = self.config.data, len(self.labels)
        return f"sounds of {data.seconds:g} s at {data.sample_rate} Hz, {count} kinds of events"

    def metrics(self, inference: ActiveModel, dataset: Dataset[Sounds]) -> dict[str, Any]:
        return self.results(inference, dataset).scores

    def results(self, inference: ActiveModel, dataset: Dataset[Sounds]) -> Results:
        threshold, seconds = self.config.threshold, self.config.data.seconds
        predicted: list[list[SoundEvent]] = []
        plan = plan_by_sum(dataset.data.sizes, self.batch_rows)
        for indices in track(plan, "sounds", len(dataset)):
            sounds = [dataset.inputs[i] for i in indices]
            for answer in self.answers(inference, sounds):
                predicted.append(answer.value)
        references = [dataset.data.load(i)[1] for i in range(len(dataset))]
        signature = f"onset within 50 ms, threshold {threshold:g}, segments of {seconds:g} s joined"

        def score(rows: Sequence[int]) -> dict[str, Any]:
            return event_scores([predicted[i] for i in rows], [references[i] for i in rows])

        return Results(score(range(len(dataset))) | {"signature": signature}, score)

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
        for file in list_sounds(path, data):
            yield Input(file, file)

    def preprocess(self, given: Any, number: int) -> list[SoundSegment]:
        """Return overlapping segments of a sound; each contributes the events near its middle.

        given: a sound file of any length, or samples at the run's rate: int16, or floating point in
               [-1, 1].
        """
        rate, where = self.config.data.sample_rate, f"input {number}"
        length = segment_length(self.config.data)
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
        starts, margin = segment_starts(len(sound), length), _MARGIN * length / rate
        # The boundary between two segments is the middle of their overlap.
        middles = [(a + length + b) / 2 / rate for a, b in pairwise(starts)]
        firsts = [0.0, *(middle - margin for middle in middles)]
        lasts = [*(middle + margin for middle in middles), len(sound) / rate]
        rows = []
        for start, first, last in zip(starts, firsts, lasts, strict=True):
            samples = sound[start : start + length]
            samples = np.pad(samples, (0, length - len(samples)))
            rows.append(SoundSegment(samples, start / rate, first, last))
        return rows

    def forward(
        self, inference: ActiveModel, rows: Sequence[SoundSegment], trace: Trace | None = None
    ) -> list[list[EventPrediction]]:
        return self.detect(inference.model, self.collate(rows))

    def collate(self, rows: Sequence[SoundSegment]) -> Tensor:
        samples = np.stack([segment.samples for segment in rows])
        return torch.from_numpy(samples).float() / 32768

    def join(self, example: Example) -> list[EventPrediction]:
        """Return the events of a sound, from the predictions above the threshold of its segments.

        Each has the query and the segment of its highest score.
        """
        segments = []
        for number, (row, output) in enumerate(zip(example.rows, example.outputs, strict=True)):
            own = []
            for part, score, query, _ in output:
                event = replace(part, onset=row.begin + part.onset)
                is_near = row.first <= event.onset + event.duration / 2 < row.last
                if score >= self.config.threshold and is_near:
                    own.append(EventPrediction(event, score, query, number))
            segments.append(own)
        return join_events(segments)

    def postprocess(self, example: Example) -> Answer:
        """Return the events of a sound by onset, clipped to it."""
        seconds = example.rows[-1].last
        events, lines, found = [], [], []
        for event, score, *_ in self.join(example):
            first, last = max(0.0, event.onset), min(seconds, event.offset)
            found.append((SoundEvent(first, last - first, event.label), score))
        for event, score in sorted(found):
            events.append(_to_json(event) | {"score": score})
            lines.append(f"{event.label}\t{score:.3f}\t{event.onset:.3f}\t{event.duration:.3f}")
        return Answer([event for event, _ in sorted(found)], {"events": events}, lines)

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        rows = []
        for event in answer.json["events"]:
            offset = event["onset"] + event["duration"]
            cells = event["onset"], offset, event["label"], event["score"]
            rows.append(dict(zip(self.columns, cells, strict=True)))
        return rows

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        segment, predictions = example.rows[i], example.outputs[i]
        seconds, reader = self.config.data.seconds, inference.model.reader
        with torch.no_grad():
            bands = reader.spectrum(self.collate([segment]).to(device_of(inference.model)))[0]
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
        own, title = [one for one in self.join(example) if one.segment == i], example.name
        if len(example.rows) > 1:
            title += f", {segment.begin:g} to {segment.begin + seconds:g} s"
        found, detected = [], []
        for whole, score, query, _ in sorted(own):
            event = replace(whole, onset=whole.onset - segment.begin)
            found.append(f"{event.label} at {event.onset:.2f} for {event.duration:.2f} s")
            detected.append(DetectedEvent(**asdict(event), score=score, query=query))
        sound = Sound(
            bands=bands.float().cpu().numpy(),
            seconds=seconds,
            begin=segment.begin,
            events=tuple(detected),
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
        predictions = model(self.collate([segment]).to(device_of(model)))
        pairs = []
        for event, _, query, number in self.join(example):
            if number == i:
                pairs.append((query, self.labels.names.index(event.label)))
        return set_log_prob(predictions, pairs, "event")


def join_events(segments: Iterable[Sequence[EventPrediction]]) -> list[EventPrediction]:
    """Return the events of a sound from those of its segments.

    Events of adjacent segments that have the same label and overlap are one event, whole in both
    segments or cut by an edge: it begins as in the first of them, and ends as in the last.
    """
    joined: list[EventPrediction] = []
    before: list[int] = []  # indices of the events of the previous segment
    for found in segments:
        own = []
        for prediction in found:
            i = _find_same(prediction.event, joined, before)
            if i is None:
                i = len(joined)
                joined.append(prediction)
            else:
                before.remove(i)
                onset, end = joined[i].event.onset, prediction.event.offset
                event = replace(prediction.event, onset=onset, duration=end - onset)
                better = max(joined[i], prediction, key=lambda one: one.score)
                joined[i] = better._replace(event=event)
            own.append(i)
        before = own
    return joined


def _find_same(
    event: SoundEvent, joined: Sequence[EventPrediction], candidates: Iterable[int]
) -> int | None:
    """Return which of the candidates overlaps an event of its label most, and enough."""
    best, largest = None, 0.0
    for i in candidates:
        other = joined[i].event
        overlap = min(other.offset, event.offset) - max(other.onset, event.onset)
        least = _MIN_OVERLAP * min(other.duration, event.duration)
        if other.label == event.label and overlap > max(largest, least):
            best, largest = i, overlap
    return best


def _to_json(event: SoundEvent) -> dict[str, Any]:
    return {"label": event.label, "onset": event.onset, "duration": event.duration}
