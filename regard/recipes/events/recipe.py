"""Recipe `events`: sound event detection with onset and duration, scored by F1.

    samples -> log-mel, convolutions -> encoder over times -> top-k proposals -> decoder queries ->
    label, time

Source: lectures, E.5 (sequence to set: location and duration of events); carion2020.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.look.sample import Axis, DetectedEvent, Sample, Sound, format_score
from regard.models.build import build_detector
from regard.models.model import Model
from regard.models.readers.sound import FrameReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import set_log_prob
from regard.recipes.base.inputs import Input
from regard.recipes.base.recipe import (
    Answer,
    Dataset,
    File,
    Prepared,
    Recipe,
    View,
    describe_skipped,
    plan_by_count,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.events.config import EventsRunConfig
from regard.recipes.metrics.events import event_scores
from regard.system.files import plain_name
from regard.system.progress import track
from regard.trace import Trace

_LABELS = "labels.json"
_ROWS = 64


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
    monitored = ("f1",)
    tables = (".csv", ".tsv", ".jsonl", ".json")
    files_of_folder = ENDINGS
    labels: Labels

    def load(self, split: str) -> Dataset[SoundDataset]:
        """Return the sounds of a table, or scenes from recordings, or else synthetic ones."""
        data, notes = self.config.data, ()
        path = getattr(data, split)
        if path is None and (split == "val" or data.train is None or not _is_table(data.train)):
            path = data.train  # other scenes of the same recordings, or a part of the files
        counts = {"train": data.epoch_size, "val": data.val_size, "test": data.test_size}
        if path is None:
            sounds = make_sound_scenes(self._synthetic_sounds, split, counts[split], data)
        elif _is_table(path):
            is_held_out = split != "test" and data.val is None
            if is_held_out:
                sounds = self._held_out[split == "val"]
            else:
                sounds = read_events(Path(path), data)
            notes = (*describe_skipped(path, "events", sounds.skipped), *sounds.notices)
        else:
            recordings = read_recordings(Path(path), round(data.seconds * data.sample_rate))
            sounds = make_sound_scenes(recordings, split, counts[split], data)
        count = len(sounds)
        return Dataset(
            sounds,
            sounds.origin,
            View(count, lambda i: np.array(sounds.load(i)[0])),
            View(count, lambda i: [_to_json(event) for event in sounds.load(i)[1]]),
            View(count, sounds.name),
            notes,
        )

    @cached_property
    def _held_out(self) -> tuple[SoundDataset, SoundDataset]:
        """Training and validation segments from the training table."""
        data = self.config.data
        assert data.train is not None
        return read_events(Path(data.train), data).hold_out(data.val_share, seed=self.run.seed)

    def encode(self, dataset: Dataset[SoundDataset]) -> Dataset[SoundDataset]:
        return replace(dataset, targets=self.make_batches(dataset.data, self.labels))

    def has_test(self) -> bool:
        data = self.config.data
        return data.train is None or not _is_table(data.train) or data.test is not None

    def fit(self, train: Dataset[SoundDataset]) -> dict[str, Any]:
        if not train.data.labels:
            raise UserError(f"{train.origin}: there are no events to learn from")
        return {_LABELS: Labels(train.data.labels)}

    def open(self, folder: Path) -> None:
        self.labels = Labels.load(folder / _LABELS)

    def batches(self) -> EventBatches:
        config = self.config
        return self.make_batches(
            self.train.data, self.labels, rows=config.batch, is_fixed=False, augment=config.augment
        )

    def make_batches(
        self,
        sounds: SoundDataset,
        labels: Labels,
        *,
        rows: int = _ROWS,
        is_fixed: bool = True,
        augment: bool = False,
    ) -> EventBatches:
        """Return batches of the sounds."""
        return EventBatches(
            sounds,
            labels,
            self.config.data,
            rows=rows,
            seed=self.run.seed,
            is_fixed=is_fixed,
            augment=augment,
        )

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
        data = self.config.data
        return f"sounds of {data.seconds:g} s at {data.sample_rate} Hz, {len(self.labels)} kinds of events"

    def metrics(self, inference: ActiveModel, dataset: Dataset[SoundDataset]) -> dict[str, Any]:
        """Return F1 and timing errors."""
        batches: EventBatches = dataset.targets
        threshold, seconds = self.config.threshold, self.config.data.seconds
        predicted: list[list[SoundEvent]] = []
        for rows in track(batches.plan(0), "sounds", len(dataset)):
            for row in self.detect(inference.model, batches.collate(0, rows).source):
                predicted.append([p.event for p in row if p.score >= threshold])
        references = [batches.sounds.load(i)[1] for i in range(len(batches.sounds))]
        signature = f"onset within 50 ms, threshold {threshold:g}, segments of {seconds:g} s"
        return event_scores(predicted, references, seconds) | {"signature": signature}

    @torch.no_grad()
    def detect(self, model: nn.Module, source: Tensor) -> list[list[EventPrediction]]:
        """Return the predictions of all queries for each sound, highest score first."""
        predictions = model(source.to(device_of(model)))
        score, label, region = predictions.best()
        region = region.double().cpu() * self.config.data.seconds
        rows = []
        for parts in zip(
            score.tolist(),
            label.tolist(),
            region.tolist(),
            predictions.order().tolist(),
            strict=True,
        ):
            row = [
                EventPrediction(
                    SoundEvent(middle - duration / 2, duration, self.labels.names[c]),
                    probability,
                    query,
                )
                for probability, c, (middle, duration), query in zip(*parts, strict=True)
            ]
            rows.append(row)
        return rows

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        data = self.config.data
        data = replace(data, on_bad="skip") if skip_bad else data
        for name in list_sounds(path, data):
            file = str(path.parent / name)
            yield Input(file, file)

    def preprocess(self, inputs: Sequence[Any], first: int) -> Prepared:
        prepared, rate = Prepared(len(inputs)), self.config.data.sample_rate
        length = round(self.config.data.seconds * rate)
        for owner, given in enumerate(inputs):
            where = f"input {first + owner}"
            if isinstance(given, File):
                content = io.BytesIO(given.content)
                sound = np.concatenate([*decode_sound(content, rate, f"{where}: {given.name}")])
            else:
                sound = _to_samples(given, where)
            starts = segment_starts(len(sound), length)
            # The boundary between two segments is the middle of their overlap.
            ends = [(a + length + b) / 2 / rate for a, b in pairwise(starts)]
            for start, begin, end in zip(
                starts, [0.0, *ends], [*ends, len(sound) / rate], strict=True
            ):
                prepared.add(
                    owner,
                    SoundSegment(_cut_segment(sound, start, length), start / rate, begin, end),
                )
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_count(rows, _ROWS)

    def forward(
        self, inference: ActiveModel, rows: Sequence[SoundSegment], trace: Trace | None = None
    ) -> list[list[EventPrediction]]:
        return self.detect(inference.model, _source(rows))

    def shown(
        self, segment: SoundSegment, predictions: Sequence[EventPrediction]
    ) -> list[EventPrediction]:
        """Return the predictions that a segment contributes: those with a score of at least the
        threshold in its middle."""
        own = []
        for prediction in predictions:
            event = prediction.event
            middle = segment.begin + event.onset + event.duration / 2
            is_own = segment.first <= middle < segment.last
            if prediction.score >= self.config.threshold and is_own:
                own.append(prediction)
        return own

    def postprocess(
        self, prepared: Prepared, outputs: Sequence[list[EventPrediction]]
    ) -> list[Answer]:
        """Return the events of each sound with their scores, in order of onset, clipped to the
        sound."""
        results: list[list[tuple[SoundEvent, float]]] = [[] for _ in range(prepared.count)]
        seconds = dict.fromkeys(prepared.owner, 0.0)
        for owner, row in zip(prepared.owner, prepared.rows, strict=True):
            seconds[owner] = row.last
        for owner, row, output in zip(prepared.owner, prepared.rows, outputs, strict=True):
            for event, score, _ in self.shown(row, output):
                first = max(0.0, row.begin + event.onset)
                last = min(seconds[owner], row.begin + event.offset)
                results[owner].append((SoundEvent(first, last - first, event.label), score))
        return [_to_answer(sorted(events)) for events in results]

    def sample(
        self,
        inference: ActiveModel,
        prepared: Prepared,
        row: int,
        outputs: Sequence[list[EventPrediction]],
    ) -> Sample:
        segment, predictions = prepared.rows[row], outputs[row]
        own = self.shown(segment, predictions)
        seconds, reader, rate = (
            self.config.data.seconds,
            inference.model.reader,
            self.config.data.sample_rate,
        )
        with torch.no_grad():
            bands = (
                reader.spectrum(_source([segment]).to(device_of(inference.model)))[0]
                .float()
                .cpu()
                .numpy()
            )
        middles = reader.centers[:, 0].double().tolist()
        half = (middles[1] - middles[0]) / 2 if len(middles) > 1 else 1.0
        places = tuple(
            (seconds * max(0.0, middle - half), seconds * min(1.0, middle + half))
            for middle in middles
        )
        labels = tuple(f"{start:.2f} to {stop:.2f} s" for start, stop in places)
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
        ordered = sorted(predictions, key=lambda p: p.query)
        queries = Axis(
            labels=tuple(f"{p.event.label} {format_score(p.score)}" for p in ordered),
            kind="event",
            picture="sound",
            places=tuple((p.event.onset, p.event.offset) for p in ordered),
        )
        begin, name = segment.begin, prepared.name_of(row)
        part = (
            f"{name}, {begin:g} to {begin + seconds:g} s"
            if prepared.owner.count(prepared.owner[row]) > 1
            else name
        )
        return Sample(
            title=f"{part} -> {_format_events(sorted(prediction.event for prediction in own))}",
            axes={
                "source": Axis(labels=labels, kind="time", picture="sound", places=places),
                "queries": queries,
            },
            pictures={
                "sound": Sound(
                    bands=bands,
                    seconds=seconds,
                    begin=begin,
                    events=events,
                    labels=self.labels.names,
                    hertz=rate / 2,
                )
            },
        )

    def log_prob(
        self, model: Any, prepared: Prepared, row: int, output: list[EventPrediction]
    ) -> Tensor:
        predictions = model(_source([prepared.rows[row]]).to(device_of(model)))
        pairs = [
            (p.query, self.labels.names.index(p.event.label))
            for p in self.shown(prepared.rows[row], output)
        ]
        return set_log_prob(predictions, pairs, "event")

    @cached_property
    def _synthetic_sounds(self) -> Any:
        return make_sounds(self.config.data.sample_rate, self.run.seed)


def _to_samples(given: Any, where: str) -> NDArray[np.int16]:
    """Return samples in 16 bits. Raises UserError naming the input."""
    if not isinstance(given, np.ndarray) or given.ndim != 1 or not len(given):
        found = (
            f"{given.dtype} of {given.shape}"
            if isinstance(given, np.ndarray)
            else type(given).__name__
        )
        raise UserError(
            f"{where}: samples must be one row of 16-bit or floating numbers, got {found}"
        )
    if given.dtype == np.int16:
        return given
    if not np.issubdtype(given.dtype, np.floating):
        raise UserError(
            f"{where}: samples must be one row of 16-bit or floating numbers, got {given.dtype}"
        )
    if not np.abs(given).max() <= 1:
        raise UserError(f"{where}: floating samples must lie within [-1, 1], but some do not")
    return np.round(given.astype(np.float64) * 32767).astype(np.int16)


def _source(segments: Sequence[SoundSegment]) -> Tensor:
    return torch.from_numpy(np.stack([segment.samples for segment in segments])).float() / 32768


def _cut_segment(samples: NDArray[np.int16], start: int, length: int) -> NDArray[np.int16]:
    """Return a segment of `length` samples, padded with silence at the end."""
    segment = samples[start : start + length]
    return np.pad(segment, (0, length - len(segment)))


def _to_answer(found: Sequence[tuple[SoundEvent, float]]) -> Answer:
    events, lines = [], []
    for event, score in found:
        times = {"onset": event.onset, "duration": event.duration}
        events.append({"label": event.label, "score": score, **times})
        lines.append(f"{event.label}\t{score:.3f}\t{event.onset:.3f}\t{event.duration:.3f}")
    return Answer([event for event, _ in found], {"events": events}, lines)


def _to_json(event: SoundEvent) -> dict[str, Any]:
    """Return an annotated event as `json` gives detected ones, without a score."""
    return {"label": event.label, "onset": event.onset, "duration": event.duration}


def _format_events(events: Sequence[SoundEvent]) -> str:
    return (
        ", ".join(
            f"{event.label} at {event.onset:.2f} for {event.duration:.2f} s" for event in events
        )
        or "nothing"
    )


def _is_table(path: str) -> bool:
    return plain_name(path).endswith((".csv", ".tsv", ".jsonl", ".json"))
