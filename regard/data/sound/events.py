"""Data sets of sounds with events: files with a table of events, or scenes mixed from recordings.

Sounds are divided into segments of one length. Segments of a longer file overlap by half; an event
that is cut by the edge of a segment counts if at least a third of it, or a third of the segment, is
inside. In training, a segment is time-stretched and shifted, differently in each epoch, to prevent
overfitting on few recordings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator
from regard.data.config import EventsConfig
from regard.data.elements import LabeledRegions
from regard.data.held_out import describe_held_out, hold_out, last_part
from regard.data.number_store import NumberStore
from regard.data.sound.files import read_sound
from regard.data.sound.recordings import Recordings, mix_scene
from regard.data.tables import as_text, read_table
from regard.data.text.labels import Labels, normalize_label
from regard.errors import UserError

_COLUMNS = ("file", "onset", "duration", "label")
_MORE_COLUMNS = ("filename", "offset", "event_label")
"""Names in tables of DCASE."""
_MIN_INSIDE = 1 / 3
_MIN_SECONDS = 1e-5
_MAX_TEMPO, _MAX_SHIFT = 1.15, 0.1
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, order=True)
class SoundEvent:
    """Labeled sound event; onset and duration in seconds."""

    onset: float
    duration: float
    label: str

    @property
    def offset(self) -> float:
        """End of the event, in seconds."""
        return self.onset + self.duration


class EventSegment(NamedTuple):
    """Part of a sound file, with the events in it."""

    file: str
    begin: float
    """Start in the file, in seconds."""
    events: list[SoundEvent]


@dataclass(frozen=True)
class SoundDataset:
    """Segments of sound of one length, with the events in each."""

    count: int
    load: Callable[[int], tuple[NDArray[np.int16], list[SoundEvent]]]
    """Function that returns the samples and the events of segment i."""
    labels: tuple[str, ...]
    origin: str
    skipped: Sequence[str] = ()
    """Reason for each event that was skipped (on_bad = skip)."""
    notices: tuple[str, ...] = ()
    segments: tuple[EventSegment, ...] = ()
    """Segments of files; empty for scenes."""

    def __len__(self) -> int:
        return self.count

    def take(self, index: Sequence[int]) -> "SoundDataset":
        """Return the segments of files at these indices."""
        segments = tuple(self.segments[i] for i in index)
        return SoundDataset(
            len(index),
            lambda i: self.load(index[i]),
            _labels_of(segments),
            self.origin,
            segments=segments,
        )

    def name(self, index: int) -> str:
        """Return the file of a segment and where it begins; of a scene, its number."""
        if not self.segments:
            return f"sound {index}"
        segment = self.segments[index]
        return f"{segment.file}, from {segment.begin:g} s"

    def hold_out(self, share: float, *, seed: int) -> tuple["SoundDataset", "SoundDataset"]:
        """Return training and validation segments; see `regard.data.held_out.hold_out`.

        The segments of a sound file are on one side. If there is one file, its last part is for
        validation, and the two segments before it, which overlap it, are left out.
        """
        files = [segment.file for segment in self.segments]
        if len(set(files)) > 1:
            labels = [[event.label for event in segment.events] for segment in self.segments]
            first, last, notice = hold_out(
                len(self),
                share,
                seed=seed,
                origin=self.origin,
                noun="segments",
                groups=files,
                labels=labels,
            )
        else:
            cut = last_part(len(self), share, origin=self.origin, noun="segments")
            first, last = list(range(max(0, cut - 2))), list(range(cut, len(self)))
            notice = describe_held_out(
                len(last), len(self), share, origin=self.origin, noun="segments"
            )
        train = replace(self.take(first), skipped=self.skipped, notices=self.notices)
        missing = sorted(set(self.labels) - set(train.labels))
        if missing:
            raise UserError(
                f"{self.origin}: label {missing[0]!r} occurs only in the part held out for "
                "validation: give validation data with --data.val."
            )
        return train, replace(self.take(last), notices=(notice,))


def make_sound_scenes(
    recordings: Recordings, split: str, count: int, config: EventsConfig
) -> SoundDataset:
    """Return scenes 0 .. count - 1 of a split, mixed from recordings."""
    if recordings.sample_rate != config.sample_rate:
        raise UserError(
            f"{recordings.origin}: expected --data.sample-rate {recordings.sample_rate}, "
            f"got {config.sample_rate}."
        )
    length, rate = round(config.seconds * config.sample_rate), config.sample_rate

    @lru_cache(maxsize=_CACHE_BYTES // (2 * length))
    def load(i: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        samples, events = mix_scene(recordings, split, i, length)
        return samples, [
            SoundEvent(first / rate, (last - first) / rate, label) for first, last, label in events
        ]

    labels = tuple(sorted(set(recordings.labels)))
    return SoundDataset(
        count, load, labels, f"{recordings.origin}, {split} scenes 0 to {count - 1}"
    )


def read_events(path: Path, config: EventsConfig) -> SoundDataset:
    """Read the sounds and events of a table, divided into segments.

    Each file is read once, and its samples are stored.

    Raises: UserError naming the file and the row.
    """
    bad_rows = BadRows(config.on_bad, "events")
    store = NumberStore(np.int16)
    length, rate = round(config.seconds * config.sample_rate), config.sample_rate
    segments: list[EventSegment] = []
    spans: list[tuple[int, int]] = []
    for file, rows in _read_table(path, config, bad_rows).items():
        first, is_read = len(store), False
        where, _ = rows[0]
        with bad_rows.catch():
            for block in read_sound(path.parent / file, rate, where):
                store.append(block)
            is_read = True
        if not is_read:  # what was stored of it belongs to no segment
            continue
        count = len(store) - first
        end = count / rate
        events: list[SoundEvent] = []
        for where, event in rows:
            if event is None:
                continue
            if event.onset > end - _MIN_SECONDS:
                bad_rows.add(f"{where}: begins at {event.onset:g} s, after the end of {file}.")
            else:
                events.append(replace(event, duration=min(event.duration, end - event.onset)))
        starts = segment_starts(count, length)
        parts = _assign(events, np.array(starts) / rate, config.seconds)
        for start, part in zip(starts, parts, strict=True):
            segments.append(EventSegment(file, start / rate, part))
            spans.append((first + start, min(length, count - start)))
    if not spans:
        raise UserError(f"{path}: names no usable sound. {bad_rows.skipped.describe()}")
    samples = store.array()

    def load(i: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        start, count = spans[i]
        return np.pad(samples[start : start + count], (0, length - count)), segments[i].events

    return SoundDataset(
        len(spans),
        load,
        _labels_of(segments),
        str(path),
        bad_rows.skipped,
        segments=tuple(segments),
    )


def list_sounds(path: Path, config: EventsConfig) -> list[str]:
    """Return the names of the sound files of a table, in their order."""
    return list(_read_table(path, config, BadRows(config.on_bad, "events")))


def segment_starts(samples: int, length: int) -> list[int]:
    """Return the starts of segments that overlap by half; the last one ends with the sound."""
    if samples <= length:
        return [0]
    return [*range(0, samples - length, length // 2), samples - length]


EventBatch = Batch[Tensor, LabeledRegions]
"""Sounds (rows, samples) in [-1, 1] and events: center and duration relative to the length."""


class EventBatches(BatchesByCount):
    """Batches of sounds, shuffled in each epoch, or in the order of the data set (is_fixed).

    Raises: UserError naming a label that is not in `labels`.
    """

    def __init__(
        self,
        sounds: SoundDataset,
        labels: Labels,
        config: EventsConfig,
        *,
        rows: int,
        seed: int,
        is_fixed: bool = False,
        augment: bool = False,
    ):
        unknown = sorted(set(sounds.labels) - set(labels.names))
        if unknown:
            raise UserError(f"{sounds.origin}: label {unknown[0]!r} is not in the training data.")
        super().__init__(rows=rows, seed=seed, is_fixed=is_fixed)
        self.sounds, self.config, self.augment = sounds, config, augment
        self.numbers = {name: number for number, name in enumerate(labels.names)}

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(self.sounds))

    def collate(self, epoch: int, indices: Sequence[int]) -> EventBatch:
        seconds = self.config.seconds
        sounds, classes, regions = [], [], []
        for i in indices:
            samples, events = self.sounds.load(i)
            if self.augment:
                draw = generator(self.seed, epoch, i)
                samples, events = augment_sound(samples, events, draw, seconds=seconds)
            sounds.append(samples)
            classes.append(np.array([self.numbers[event.label] for event in events], np.int64))
            places = []
            for event in events:
                center = (event.onset + event.duration / 2) / seconds
                places.append((center, event.duration / seconds))
            regions.append(np.array(places))
        source = torch.from_numpy(np.stack(sounds)).float() / 32768
        return Batch(source, LabeledRegions.from_rows(classes, regions, 1), tuple(indices))


def augment_sound(
    samples: NDArray[np.int16],
    events: Sequence[SoundEvent],
    draw: np.random.Generator,
    *,
    seconds: float,
) -> tuple[NDArray[np.int16], list[SoundEvent]]:
    """Stretch a segment by up to 15 % and shift it by up to a tenth, the gap filled with noise."""
    rate, shift = draw.uniform(1 / _MAX_TEMPO, _MAX_TEMPO), draw.uniform(-_MAX_SHIFT, _MAX_SHIFT)
    length = len(samples)
    # The new sample n is the old one at (n - shift) / rate.
    before = (np.arange(length) - shift * length) / rate
    stretched = np.interp(before, np.arange(length), samples)
    outside = (before < 0) | (before > length - 1)
    level = np.sort(np.abs(samples.astype(np.float64)))[length // 4]
    stretched[outside] = draw.normal(0, 1 + level, int(outside.sum()))
    inside: list[SoundEvent] = []
    for event in events:
        onset = event.onset * rate + shift * seconds
        part = _clip(SoundEvent(onset, event.duration * rate, event.label), 0.0, seconds)
        if part is not None:
            inside.append(part)
    return stretched.clip(-32768, 32767).astype(np.int16), inside


def _labels_of(segments: Sequence[EventSegment]) -> tuple[str, ...]:
    return tuple(sorted({event.label for segment in segments for event in segment.events}))


def _read_table(
    path: Path, config: EventsConfig, bad_rows: BadRows
) -> dict[str, list[tuple[str, SoundEvent | None]]]:
    """Return the rows of each file: location, and event or None."""
    by_file: dict[str, list[tuple[str, SoundEvent | None]]] = {}
    if config.header == "no":
        numbers = range(1, 1 + len(_COLUMNS))
        table = read_table(path, [*numbers], header="no", bad_rows=bad_rows)
    else:
        names = (*_COLUMNS, *_MORE_COLUMNS)
        table = read_table(path, (), optional=names, header="yes", bad_rows=bad_rows)
    for number, cells in table:
        where = table.where(number)
        with bad_rows.catch(where):
            file, onset, duration, label, *more = [as_text(cell).strip() for cell in cells]
            filename, offset, event_label = more or ("", "", "")
            file, label = file or filename, label or event_label
            if not file:
                raise UserError(f"{where}: expected the name of a sound file, got none.")
            event = None
            if onset or duration or offset or label:
                event = _parse_event((onset, duration, offset), label, where, config)
            by_file.setdefault(file, []).append((where, event))
    return by_file


def _parse_event(
    times: tuple[str, str, str], label: str, where: str, config: EventsConfig
) -> SoundEvent:
    """Return the event with an onset, and a duration or, if that is empty, an offset."""
    onset, duration, offset = times
    try:
        start = float(onset)
        length = float(duration) if duration else float(offset) - start
    except ValueError as error:
        raise UserError(f"{where}: onset and duration must be numbers ({error}).") from error
    if config.unit == "samples":
        start, length = start / config.sample_rate, length / config.sample_rate
    if not (start >= 0 and _MIN_SECONDS <= length < float("inf") and label):
        raise UserError(
            f"{where}: expected an onset of at least 0, a duration above 0 and a label, got onset "
            f"{onset}, {f'duration {duration}' if duration else f'offset {offset}'}, {label!r}."
        )
    return SoundEvent(start, length, normalize_label(label))


def _assign(
    events: Sequence[SoundEvent], starts: NDArray[np.float64], seconds: float
) -> list[list[SoundEvent]]:
    """Return the events of each segment, in their order; the segments' `starts` are sorted."""
    assigned: list[list[SoundEvent]] = [[] for _ in starts]
    for event in events:
        first = np.searchsorted(starts, event.onset - seconds)
        for i in range(max(0, int(first) - 1), int(np.searchsorted(starts, event.offset))):
            part = _clip(event, float(starts[i]), seconds)
            if part is not None:
                assigned[i].append(part)
    return assigned


def _clip(event: SoundEvent, start: float, seconds: float) -> SoundEvent | None:
    """Return an event's part in a segment, None if under a third of the event and segment."""
    first, last = max(0.0, event.onset - start), min(seconds, event.offset - start)
    if last - first < _MIN_INSIDE * min(event.duration, seconds) or last <= first:
        return None
    return SoundEvent(first, last - first, event.label)
