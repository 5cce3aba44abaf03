"""Sounds with events: sound files with a CSV of onset, duration and label, or scenes made of single recordings.

A sound is heard in pieces of one length. Of a longer file, training takes pieces that follow one another by half their
length; an event that a piece's edge cuts counts where a third of it is inside. Training plays a piece faster or slower
and moves it, another way in each epoch, so that a few recordings are not learned by heart. What cannot be learned from
is named before training: files that are missing or no sound, events without duration or outside their file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.elements import Elements
from regard.data.labeled import Labels
from regard.data.numbers import number
from regard.data.recordings import Recordings, scene
from regard.data.sample_store import SampleStore
from regard.data.sets_config import EventsConfig
from regard.data.sound_files import SoundNotes, append_sound
from regard.data.spellings import Spellings
from regard.data.tables import read_table
from regard.errors import UserError

_COLUMNS = ("file", "onset", "duration|offset", "label")
_TIMES = ("onset", "duration", "offset")
_IN_SIGHT = 1 / 3
_TEMPO, _SHIFT = 1.15, 0.1
_KEPT_BYTES = 1 << 30
_LEAST_SECONDS, _MOST_SECONDS = 1e-5, 1e9
"""What an event may last, and when it may begin, so that times are numbers that training can tell apart."""


@dataclass(frozen=True, order=True)
class Event:
    """Something that sounds: seconds from the beginning."""

    onset: float
    duration: float
    label: str

    @property
    def offset(self) -> float:
        """When it ends."""
        return self.onset + self.duration


@dataclass(frozen=True)
class Sounds:
    """Pieces of sound of one length, with the events in each."""

    count: int
    hear: Callable[[int], tuple[NDArray[np.int16], list[Event]]]
    """The samples and the events of piece i."""
    labels: tuple[str, ...]
    origin: str
    skipped: tuple[str, ...] = ()
    """Sentences about events that were left out."""
    notes: tuple[str, ...] = ()
    """Sentences about files that are cut off or clipped, one of each kind."""

    def __len__(self) -> int:
        return self.count


def scenes_of(recordings: Recordings, split: str, count: int, config: EventsConfig) -> Sounds:
    """Scenes 0 .. count - 1 of a split. Raises UserError for another sample rate than the config's."""
    if recordings.sample_rate != config.sample_rate:
        raise UserError(
            f"{recordings.origin}: has {recordings.sample_rate} samples a second, but the run {config.sample_rate}: "
            "set data.sample_rate."
        )
    length, rate = round(config.seconds * config.sample_rate), config.sample_rate

    @lru_cache(maxsize=_KEPT_BYTES // (2 * length))
    def hear(i: int) -> tuple[NDArray[np.int16], list[Event]]:
        samples, events = scene(recordings, split, i, length)
        return samples, [Event(first / rate, (last - first) / rate, label) for first, last, label in events]

    labels = tuple(sorted(set(recordings.labels)))
    return Sounds(count, hear, labels, f"{recordings.origin}, {split} scenes 0 to {count - 1}")


def read_events(path: Path, config: EventsConfig) -> Sounds:
    """Return the sounds of a CSV, in pieces. Each file is read once, and its samples are stored.

    Raises: UserError naming the file and the line, what was expected and what was got.
    """
    by_file, places, skipped = _csv(path, config)
    store, notes = SampleStore(), []
    length, rate = round(config.seconds * config.sample_rate), config.sample_rate
    where: list[tuple[int, int]] = []
    inside: list[list[Event]] = []
    for file, rows in by_file.items():
        first = len(store)
        notes.append(append_sound(store, path.parent / file, rate, places[file]))
        if notes[-1].cut_off and config.on_bad == "error":
            raise UserError(f"{notes[-1].cut_off} With `on_bad` = skip, it is read up to there.")
        count = len(store) - first
        for place, event in rows[:]:
            if event.onset >= count / rate:
                _bad(f"{place}: the event begins at {event.onset:g} s, but {file} ends before.", config, skipped)
                rows.remove((place, event))
        starts = pieces(count, length)
        where += [(first + start, min(length, count - start)) for start in starts]
        inside += _distributed([event for _, event in rows], np.array(starts) / rate, config.seconds)
    samples = store.array()

    def hear(i: int) -> tuple[NDArray[np.int16], list[Event]]:
        start, count = where[i]
        return np.pad(samples[start : start + count], (0, length - count)), inside[i]

    labels = tuple(sorted({event.label for rows in by_file.values() for _, event in rows}))
    return Sounds(len(where), hear, labels, str(path), tuple(skipped), _summaries(notes))


def pieces(samples: int, length: int) -> list[int]:
    """Where pieces begin that follow one another by half their length, the last of which reaches the end."""
    if samples <= length:
        return [0]
    return [*range(0, samples - length, length // 2), samples - length]


@dataclass(frozen=True)
class EventBatch:
    """Sound within [-1, 1] (rows, samples) and its events: middle and duration as shares of the length."""

    source: Tensor
    target: Elements
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "EventBatch":
        """The same batch on a device."""
        return EventBatch(self.source.to(device, non_blocking=True), self.target.to(device), self.indices)


class EventBatches:
    """Batches in an order of their own for each epoch, or (is_fixed) in the sounds' own.

    Raises: UserError naming the label that is none of `labels`.
    """

    def __init__(
        self,
        sounds: Sounds,
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
            raise UserError(f"{sounds.origin}: label {unknown[0]!r} is none of those of the training sounds: {known}.")
        self.sounds, self.config, self.rows, self.seed, self.is_fixed = sounds, config, rows, seed, is_fixed
        self.augment = augment
        self.numbers = {name: number for number, name in enumerate(labels.names)}

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (seed, epoch)."""
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch))))
        order = np.arange(len(self.sounds)) if self.is_fixed else draw.permutation(len(self.sounds))
        return [tuple(order[i : i + self.rows].tolist()) for i in range(0, len(order), self.rows)]

    def collate(self, epoch: int, indices: Sequence[int]) -> EventBatch:
        """The tensors of these sounds."""
        heard = [self.sounds.hear(i) for i in indices]
        if self.augment:
            draws = [
                np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch, i)))) for i in indices
            ]
            whole = self.config.seconds
            heard = [played(*one, draw, seconds=whole) for one, draw in zip(heard, draws, strict=True)]
        classes = [np.array([self.numbers[event.label] for event in events], np.int64) for _, events in heard]
        whole = self.config.seconds
        regions = [
            np.array([((event.onset + event.duration / 2) / whole, event.duration / whole) for event in events])
            for _, events in heard
        ]
        source = torch.from_numpy(np.stack([samples for samples, _ in heard])).float() / 32768
        return EventBatch(source, Elements.of(classes, regions, 1), tuple(indices))


def played(
    samples: NDArray[np.int16], events: Sequence[Event], draw: np.random.Generator, *, seconds: float
) -> tuple[NDArray[np.int16], list[Event]]:
    """A piece up to a seventh slower or faster, moved by up to a tenth of its length; what comes in is quiet noise."""
    rate, shift = draw.uniform(1 / _TEMPO, _TEMPO), draw.uniform(-_SHIFT, _SHIFT)
    length = len(samples)
    # The sample at place n was at (n - shift) / rate before.
    before = (np.arange(length) - shift * length) / rate
    found = np.interp(before, np.arange(length), samples)
    outside = (before < 0) | (before > length - 1)
    level = np.sort(np.abs(samples.astype(np.float64)))[length // 4]
    found[outside] = draw.normal(0, 1 + level, int(outside.sum()))
    moved = [Event(event.onset * rate + shift * seconds, event.duration * rate, event.label) for event in events]
    inside = [_cut(event, 0.0, seconds) for event in moved]
    return found.clip(-32768, 32767).astype(np.int16), [event for event in inside if event is not None]


def _csv(path: Path, config: EventsConfig) -> tuple[dict[str, list[tuple[str, Event]]], dict[str, str], list[str]]:
    """The events of each file, with where they stand, where each file is named first, and what was left out."""
    found: dict[str, list[tuple[str, Event]]] = {}
    places: dict[str, str] = {}
    skipped: list[str] = []
    spellings = Spellings()
    for where, cells in read_table(path, _COLUMNS, numeric=_TIMES):
        if not cells["file"]:
            raise UserError(f"{where}: expected the name of a sound file, got none.")
        events = found.setdefault(cells["file"], [])
        places.setdefault(cells["file"], where)
        if any(cells.get(name) for name in (*_TIMES, "label")):
            event = _event(cells | {"label": spellings[cells["label"]]}, where, config)
            if event.duration < _LEAST_SECONDS or event.onset < 0 or not event.label:
                end = "duration" if "duration" in cells else "offset"
                got = f"onset {cells['onset'][:60]}, {end} {cells[end][:60]}, label {event.label!r}"
                wanted = "an onset of 0 or more, a duration above 0 and a label"
                _bad(f"{where}: expected {wanted}, got {got}.", config, skipped)
            else:
                events.append((where, event))
    if not found:
        raise UserError(f"{path}: there is no file in it.")
    spellings.warn_merged(str(path))
    return found, places, skipped


def _event(cells: dict[str, str], where: str, config: EventsConfig) -> Event:
    end = "duration" if "duration" in cells else "offset"
    onset, duration = (number(cells[name], most=_MOST_SECONDS * config.sample_rate) for name in ("onset", end))
    if onset is None or duration is None:
        got = f"{cells['onset'][:60]!r}, {cells[end][:60]!r}"
        raise UserError(f"{where}: expected onset and {end}, two numbers, got {got}.")
    if end == "offset":
        duration -= onset
    unit = config.sample_rate if config.unit == "samples" else 1
    return Event(onset / unit, duration / unit, cells["label"])


def _bad(problem: str, config: EventsConfig, skipped: list[str]) -> None:
    if config.on_bad == "error":
        raise UserError(f"{problem} With `on_bad` = skip, such events are left out and counted.")
    skipped.append(problem)


def _distributed(events: Sequence[Event], starts: NDArray[np.float64], seconds: float) -> list[list[Event]]:
    """Return the events of each piece, in their order; starts: where the pieces begin, rising."""
    found: list[list[Event]] = [[] for _ in starts]
    for event in events:
        first = np.searchsorted(starts, event.onset - seconds)
        for i in range(max(0, int(first) - 1), int(np.searchsorted(starts, event.offset))):
            part = _cut(event, float(starts[i]), seconds)
            if part is not None:
                found[i].append(part)
    return found


def _summaries(notes: Sequence[SoundNotes]) -> tuple[str, ...]:
    """Return a sentence of the files that are cut off, and one of those that are clipped."""
    cut_off = [one.cut_off for one in notes if one.cut_off]
    clipped = [one.clipped for one in notes if one.clipped]
    found = (
        (f"{len(cut_off)} files are cut off or damaged and read up to there; first: {cut_off[0]}",) if cut_off else ()
    )
    return (*found, f"{len(clipped)} files are clipped; first: {clipped[0]}") if clipped else found


def _cut(event: Event, start: float, seconds: float) -> Event | None:
    """The event as a piece hears it; None if less than a third of it is inside."""
    first, last = max(0.0, event.onset - start), min(seconds, event.offset - start)
    if last - first < _IN_SIGHT * event.duration or last <= first:
        return None
    return Event(first, last - first, event.label)
