"""Data sets of sounds with events: sound files with a table of onset, duration and label, or mixed
from recordings.

Sounds are divided into segments of one length. Segments of a longer file overlap by half; an event
that is cut by the edge of a segment counts if at least a third of it, or a third of the segment, is
inside. In training, a segment is time-stretched and shifted, differently in each epoch, to prevent
overfitting on few recordings. Unusable data is reported before training: files that are missing or
not sound, events without duration or outside their file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator
from regard.data.config import EventsConfig
from regard.data.elements import LabeledRegions
from regard.data.held_out import describe_held_out, hold_out, last_part
from regard.data.named_files import NamedFiles
from regard.data.number_store import NumberStore
from regard.data.sound.files import SoundNotes, append_sound
from regard.data.sound.recordings import Recordings, mix_scene
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.labels import Labels
from regard.data.text.lines import locate
from regard.data.text.numbers import parse_number
from regard.data.text.rows import read_table
from regard.errors import UserError

_COLUMNS = ("file|filename", "onset", "duration|offset", "label|event_label")
_TIMES = ("onset", "duration", "offset")
_LEAST_INSIDE = 1 / 3
_LEAST_BEYOND = 0.05
"""Seconds by which an event must exceed its file to be reported."""
_TEMPO, _SHIFT = 1.15, 0.1
_CACHE_BYTES = 1 << 30
_LEAST_SECONDS, _MOST_SECONDS = 1e-5, 1e9
"""Bounds of durations and onsets, within which times are distinct in the precision of training."""


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
    notes: tuple[str, ...] = ()
    """Notes on files that are truncated or clipped, one of each kind, and on the data."""
    files: tuple[str, ...] = ()
    """Sound file of each segment of a table."""
    begins: tuple[float, ...] = ()
    """Begin of each segment of a table in its file, in seconds."""
    labels_of: tuple[tuple[str, ...], ...] = ()
    """Labels of each segment of a table."""

    def __len__(self) -> int:
        return self.count

    def take(self, index: Sequence[int]) -> "SoundDataset":
        """Return the segments of the given indices of a table."""
        labels_of = tuple(self.labels_of[i] for i in index)
        labels = tuple(sorted({label for own in labels_of for label in own}))
        places = {
            "files": tuple(self.files[i] for i in index),
            "begins": tuple(self.begins[i] for i in index),
        }
        load = self.load
        return SoundDataset(
            len(index), lambda i: load(index[i]), labels, self.origin, labels_of=labels_of, **places
        )

    def name(self, index: int) -> str:
        """Return the file of a segment and where it begins; of a scene, its number."""
        return (
            f"{self.files[index]}, from {self.begins[index]:g} s"
            if self.files
            else f"sound {index}"
        )

    def hold_out(self, share: float, *, seed: int) -> tuple["SoundDataset", "SoundDataset"]:
        """Return training and validation segments of a table; see `regard.data.held_out.hold_out`.

        The segments of a sound file are on one side. If there is one file, its last part is for
        validation, and the two segments before it, which overlap it, are left out.
        """
        names, labels = {"origin": self.origin, "noun": "segments"}, set(self.labels)
        if len(set(self.files)) > 1:
            groups = {"groups": self.files, "labels": self.labels_of}
            first, last, notice = hold_out(len(self), share, seed=seed, **names, **groups)
        else:
            cut = last_part(len(self), share, **names)
            first, last = list(range(max(0, cut - 2))), list(range(cut, len(self)))
            notice = describe_held_out(len(last), len(self), share, **names)
        train = replace(self.take(first), skipped=self.skipped, notes=self.notes)
        val = replace(self.take(last), notes=(notice,))
        if missing := sorted(labels - set(train.labels)):
            raise UserError(
                f"{self.origin}: the label {missing[0]!r} occurs only in the part that would be "
                f"held out for "
                "validation: give validation data with --data.val."
            )
        return train, val


class SoundFiles(NamedFiles):
    """Sound files of a folder, by name."""

    noun = "sound"


def make_sound_scenes(
    recordings: Recordings, split: str, count: int, config: EventsConfig
) -> SoundDataset:
    """Return scenes 0 .. count - 1 of a split, mixed from recordings.

    Raises: UserError if the sample rate is not that of the config.
    """
    if recordings.sample_rate != config.sample_rate:
        raise UserError(
            f"{recordings.origin}: the sample rate must be --data.sample-rate "
            f"({config.sample_rate}), "
            f"got {recordings.sample_rate}."
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
    """Read the sounds and events of a table, divided into segments. Each file is read once, and its
    samples are stored.

    Raises: UserError naming the file and the line, what was expected and what was found.
    """
    bad_rows = BadRows(config.on_bad, "events")
    by_file, first_line = _read_table(path, config, bad_rows)
    store, notes = NumberStore(np.int16, "samples"), list[SoundNotes]()
    length, rate = round(config.seconds * config.sample_rate), config.sample_rate
    spans: list[tuple[int, int]] = []
    files: list[str] = []
    events_of: list[list[SoundEvent]] = []
    begins: list[float] = []
    cut: list[str] = []
    sounds = SoundFiles.from_path(path.parent)
    for file, rows in by_file.items():
        first = len(store)
        note = None
        with bad_rows.catch():
            note = append_sound(
                store, sounds.resolve(file, first_line[file]), rate, first_line[file]
            )
        if note is None:  # samples that are stored of it belong to no segment
            continue
        notes.append(note)
        if note.cut_off and config.on_bad == "error":
            raise UserError(f"{note.cut_off} With --data.on-bad skip, it is read up to there.")
        count = len(store) - first
        events: list[SoundEvent] = []
        for where, event in rows:
            end = count / rate
            if event.onset > end - _LEAST_SECONDS:
                bad_rows.add(
                    f"{where}: the event begins at {event.onset:g} s, after the end of {file}."
                )
                continue
            if event.offset > end + _LEAST_BEYOND:
                cut.append(f"{where}: ends at {event.offset:g} s, but {file} at {end:g} s")
            events.append(replace(event, duration=min(event.duration, end - event.onset)))
        starts = segment_starts(count, length)
        files += [file] * len(starts)
        begins += [start / rate for start in starts]
        spans += [(first + start, min(length, count - start)) for start in starts]
        events_of += _assign(events, np.array(starts) / rate, config.seconds)
    if not spans:
        raise UserError(
            "\n".join(
                filter(None, [f"{path}: names no usable sound.", bad_rows.skipped.describe()])
            )
        )
    samples = store.array()

    def load(i: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        start, count = spans[i]
        return np.pad(samples[start : start + count], (0, length - count)), events_of[i]

    labels = tuple(sorted({event.label for events in events_of for event in events}))
    labels_of = tuple(tuple(sorted(event.label for event in events)) for events in events_of)
    summaries = [f"{path}: {note}" for note in _summaries(notes)]
    if cut:
        summaries.append(
            f"{path}: {len(cut)} events end after their file, and are cut there; first: {cut[0]}"
        )
    places = {"files": tuple(files), "begins": tuple(begins), "labels_of": labels_of}
    return SoundDataset(
        len(spans), load, labels, str(path), bad_rows.skipped, tuple(summaries), **places
    )


def list_sounds(path: Path, config: EventsConfig) -> dict[str, str]:
    """Return the names of the sound files of a table, in their order, and where each is first
    named.

    Raises: UserError naming the line.
    """
    return _read_table(path, config, BadRows(config.on_bad, "events"))[1]


def segment_starts(samples: int, length: int) -> list[int]:
    """Return the starts of segments that overlap by half; the last one ends with the sound."""
    if samples <= length:
        return [0]
    return [*range(0, samples - length, length // 2), samples - length]


EventBatch = Batch[Tensor, LabeledRegions]
"""Sounds (rows, samples) within [-1, 1] and their events: center and duration relative to the
length."""


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
            known = ", ".join(labels.names[:20])
            raise UserError(
                f"{sounds.origin}: label {unknown[0]!r} does not occur in the training sounds "
                f"({known})."
            )
        super().__init__(rows=rows, seed=seed, is_fixed=is_fixed)
        self.sounds, self.config, self.augment = sounds, config, augment
        self.numbers = {name: number for number, name in enumerate(labels.names)}

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices of the examples."""
        return np.arange(len(self.sounds))

    def collate(self, epoch: int, indices: Sequence[int]) -> EventBatch:
        """Return the tensors of the given sounds."""
        segments = [self.sounds.load(i) for i in indices]
        if self.augment:
            draws = [generator(self.seed, epoch, i) for i in indices]
            seconds = self.config.seconds
            segments = [
                augment_sound(*segment, draw, seconds=seconds)
                for segment, draw in zip(segments, draws, strict=True)
            ]
        classes = [
            np.array([self.numbers[event.label] for event in events], np.int64)
            for _, events in segments
        ]
        seconds = self.config.seconds
        regions = [
            np.array(
                [
                    ((event.onset + event.duration / 2) / seconds, event.duration / seconds)
                    for event in events
                ]
            )
            for _, events in segments
        ]
        source = torch.from_numpy(np.stack([samples for samples, _ in segments])).float() / 32768
        return Batch(source, LabeledRegions.from_rows(classes, regions, 1), tuple(indices))


def augment_sound(
    samples: NDArray[np.int16],
    events: Sequence[SoundEvent],
    draw: np.random.Generator,
    *,
    seconds: float,
) -> tuple[NDArray[np.int16], list[SoundEvent]]:
    """Stretch a segment by up to 15 % and shift it by up to a tenth of its length; the gap is
    filled with noise."""
    rate, shift = draw.uniform(1 / _TEMPO, _TEMPO), draw.uniform(-_SHIFT, _SHIFT)
    length = len(samples)
    # The new sample n is the old one at (n - shift) / rate.
    before = (np.arange(length) - shift * length) / rate
    stretched = np.interp(before, np.arange(length), samples)
    outside = (before < 0) | (before > length - 1)
    level = np.sort(np.abs(samples.astype(np.float64)))[length // 4]
    stretched[outside] = draw.normal(0, 1 + level, int(outside.sum()))
    moved = [
        SoundEvent(event.onset * rate + shift * seconds, event.duration * rate, event.label)
        for event in events
    ]
    inside = [_clip(event, 0.0, seconds) for event in moved]
    return stretched.clip(-32768, 32767).astype(np.int16), [
        event for event in inside if event is not None
    ]


def _read_table(
    path: Path, config: EventsConfig, bad_rows: BadRows
) -> tuple[dict[str, list[tuple[str, SoundEvent]]], dict[str, str]]:
    """Return the events of each file with their locations, and where each file is first named."""
    by_file: dict[str, list[tuple[str, SoundEvent]]] = {}
    first_line: dict[str, str] = {}
    normalizer = LabelNormalizer()
    records = read_table(path, _COLUMNS, numeric=_TIMES, header=config.header)
    for number, row in records.rows:
        where = locate(path, number)
        with bad_rows.catch(where):
            file, filename, onset, duration, offset, label, event_label = records.parse(row)
            file, label = file or filename, label or event_label
            if not file:
                raise UserError(f"{where}: expected the name of a sound file, got none.")
            events = by_file.setdefault(file, [])
            first_line.setdefault(file, where)
            if onset or duration or offset or label:
                events.append(
                    (
                        where,
                        _parse_event((onset, duration, offset), normalizer[label], where, config),
                    )
                )
    if not by_file:
        raise UserError(
            "\n".join(filter(None, [f"{path}: names no sound file.", bad_rows.skipped.describe()]))
        )
    normalizer.warn(str(path))
    return by_file, first_line


def _parse_event(
    times: tuple[str, str, str], label: str, where: str, config: EventsConfig
) -> SoundEvent:
    """Return the event with an onset, and a duration or, if that is empty, an offset."""
    onset, duration, offset = times
    end, name = (offset, "offset") if offset and not duration else (duration, "duration")
    start, length = (
        parse_number(cell, most=_MOST_SECONDS * config.sample_rate) for cell in (onset, end)
    )
    if start is None or length is None:
        raise UserError(
            f"{where}: expected onset and {name}, two numbers, got {onset[:60]!r}, {end[:60]!r}."
        )
    if name == "offset":
        length -= start
    unit = config.sample_rate if config.unit == "samples" else 1
    event = SoundEvent(start / unit, length / unit, label)
    if event.duration < _LEAST_SECONDS or event.onset < 0 or not event.label:
        actual = f"onset {onset[:60]}, {name} {end[:60]}, label {event.label!r}"
        raise UserError(
            f"{where}: expected an onset of at least 0, a duration above 0 and a label, got "
            f"{actual}."
        )
    return event


def _assign(
    events: Sequence[SoundEvent], starts: NDArray[np.float64], seconds: float
) -> list[list[SoundEvent]]:
    """Return the events of each segment, in their order. `starts` of the segments must be
    sorted."""
    assigned: list[list[SoundEvent]] = [[] for _ in starts]
    for event in events:
        first = np.searchsorted(starts, event.onset - seconds)
        for i in range(max(0, int(first) - 1), int(np.searchsorted(starts, event.offset))):
            part = _clip(event, float(starts[i]), seconds)
            if part is not None:
                assigned[i].append(part)
    return assigned


def _summaries(notes: Sequence[SoundNotes]) -> tuple[str, ...]:
    """Return a note on the files that are truncated, and one on those that are clipped."""
    cut_off = [note.cut_off for note in notes if note.cut_off]
    clipped = [note.clipped for note in notes if note.clipped]
    summaries = (
        (
            f"{len(cut_off)} files are truncated or damaged and read up to there; first: "
            f"{cut_off[0]}",
        )
        if cut_off
        else ()
    )
    return (
        (*summaries, f"{len(clipped)} files are clipped; first: {clipped[0]}")
        if clipped
        else summaries
    )


def _clip(event: SoundEvent, start: float, seconds: float) -> SoundEvent | None:
    """Return the part of an event inside a segment, or None if it is less than a third of the event
    and the segment."""
    first, last = max(0.0, event.onset - start), min(seconds, event.offset - start)
    if last - first < _LEAST_INSIDE * min(event.duration, seconds) or last <= first:
        return None
    return SoundEvent(first, last - first, event.label)
