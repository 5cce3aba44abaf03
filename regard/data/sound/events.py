"""Data sets of sounds with events: files with a table of events, or scenes mixed from recordings.

A model reads segments of one length. Those of a longer sound overlap by half; an event that is cut
by the edge of a segment counts there if at least a third of it, or a third of the segment, is
inside. In training, a segment is time-stretched and shifted, and parts of its spectrogram are
masked, differently in each epoch, to prevent overfitting on few recordings. Its random numbers are
a function of (seed, epoch, segment).

Source: masks park2019.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator
from regard.data.config import EventsConfig
from regard.data.elements import LabeledRegions
from regard.data.formats.events import read_event_format
from regard.data.held_out import describe_held_out, join_files, last_part, split_data
from regard.data.number_store import NumberStore
from regard.data.sound.files import decode_sound, read_sample_rate
from regard.data.sound.recordings import Recordings, mix_scene
from regard.data.tables import as_text, read_rows_of_files
from regard.data.text.labels import Labels, normalize_label
from regard.errors import UserError
from regard.ops.copies import copy_to

_COLUMNS = ("onset", "duration", "label"), ("offset", "event_label")
"""Columns of a table, and more names that those of DCASE have."""
_MIN_INSIDE = 1 / 3
_MIN_SECONDS = 1e-5
_MAX_TEMPO, _MAX_SHIFT = 1.15, 0.1
_MASKS, _MAX_BANDS, _MAX_FRAMES = 2, 1 / 5, 1 / 20
"""Masks of a kind, and the largest part of the bands or frames that each hides."""
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


class LabeledSound(NamedTuple):
    """Sound of a file, or of a part of it, with its events."""

    name: str
    first: int
    """Index of its first sample in `SoundDataset.samples`."""
    count: int
    """Number of samples."""
    events: list[SoundEvent]


class EventSegment(NamedTuple):
    """Part of a sound, with the events in it."""

    sound: int
    start: int
    """First sample, from the start of the sound."""
    events: list[SoundEvent]


@dataclass(frozen=True)
class SoundDataset:
    """Sounds of files, of any length."""

    sounds: tuple[LabeledSound, ...]
    samples: NDArray[np.int16]
    """Samples of all files, one after the other."""
    origin: str
    config: EventsConfig
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sounds)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted({event.label for sound in self.sounds for event in sound.events}))

    @property
    def sizes(self) -> list[int]:
        """Number of segments of each sound."""
        length = segment_length(self.config)
        return [len(segment_starts(sound.count, length)) for sound in self.sounds]

    @cached_property
    def segments(self) -> list[EventSegment]:
        """Segments of all sounds, on which a model is trained."""
        length, rate, segments = segment_length(self.config), self.config.sample_rate, []
        for number, sound in enumerate(self.sounds):
            starts = segment_starts(sound.count, length)
            parts = _assign(sound.events, np.array(starts) / rate, self.config.seconds)
            for start, events in zip(starts, parts, strict=True):
                segments.append(EventSegment(number, start, events))
        return segments

    def name(self, index: int) -> str:
        return self.sounds[index].name

    def load(self, index: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        """Return the samples and the events of a sound."""
        _, first, count, events = self.sounds[index]
        return self.samples[first : first + count], events

    def load_segment(self, index: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        """Return the samples and the events of a segment, which silence fills."""
        number, start, events = self.segments[index]
        length = segment_length(self.config)
        part = self.load(number)[0][start : start + length]
        return np.pad(part, (0, length - len(part))), events

    def take(self, index: Sequence[int]) -> "SoundDataset":
        return replace(self, sounds=tuple(self.sounds[i] for i in index))

    def hold_out(self, *, seed: int) -> tuple["SoundDataset", "SoundDataset"]:
        """Return training and validation sounds: files at random, or the last part of one file."""
        share = self.config.val_share
        if len(self) > 1:
            labels = [[event.label for event in sound.events] for sound in self.sounds]
            return split_data(self, share, "sounds", seed=seed, labels=labels)
        count, rate, parts = self.sounds[0].count, self.config.sample_rate, []
        cut = last_part(count, share, origin=self.origin, noun="samples")
        for start, end in ((0, cut), (cut, count)):
            name, first, _, events = self.sounds[0]
            (inside,) = _assign(events, np.array([start / rate]), (end - start) / rate)
            name = f"{name}, from {start / rate:g} s"
            part = LabeledSound(name, first + start, end - start, inside)
            parts.append(replace(self, sounds=(part,)))
        train, val = parts
        missing = sorted(set(self.labels) - set(train.labels))
        if missing:
            problem = f"label {missing[0]!r} occurs only in the part held out for validation"
            raise UserError(f"{self.origin}: {problem}: use --data.val.")
        notice = describe_held_out(count - cut, count, share, origin=self.origin, noun="samples")
        return train, replace(val, notices=(notice,))


@dataclass(frozen=True)
class SoundScenes:
    """Scenes mixed from recordings, each of the length of a segment."""

    count: int
    load: Callable[[int], tuple[NDArray[np.int16], list[SoundEvent]]]
    """Function that returns the samples and the events of scene i."""
    labels: tuple[str, ...]
    origin: str
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    @property
    def sizes(self) -> list[int]:
        """Number of segments of each scene."""
        return [1] * self.count

    @property
    def segments(self) -> range:
        return range(self.count)

    def name(self, index: int) -> str:
        return f"sound {index}"

    def load_segment(self, index: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        return self.load(index)


Sounds = SoundDataset | SoundScenes
"""Sounds with events, by index."""


def make_sound_scenes(
    recordings: Recordings, split: str, count: int, config: EventsConfig
) -> SoundScenes:
    """Return scenes 0 .. count - 1 of a split, mixed from recordings."""
    if recordings.sample_rate != config.sample_rate:
        problem = f"expected --data.sample-rate {recordings.sample_rate}, got {config.sample_rate}"
        raise UserError(f"{recordings.origin}: {problem}.")
    length, rate = segment_length(config), config.sample_rate

    @lru_cache(maxsize=_CACHE_BYTES // (2 * length))
    def load(i: int) -> tuple[NDArray[np.int16], list[SoundEvent]]:
        samples, spans = mix_scene(recordings, split, i, length)
        events = []
        for first, last, label in spans:
            events.append(SoundEvent(first / rate, (last - first) / rate, label))
        return samples, events

    labels = tuple(sorted(set(recordings.labels)))
    return SoundScenes(count, load, labels, f"{recordings.origin}, {split} scenes 0 to {count - 1}")


def read_event_files(paths: Sequence[str], config: EventsConfig) -> SoundDataset:
    """Read the sounds and events of several tables, or labels."""
    parts = [read_events(Path(path), config) for path in paths]
    sounds, count = [], 0
    for part in parts:
        sounds += [sound._replace(first=sound.first + count) for sound in part.sounds]
        count += len(part.samples)
    samples = np.concatenate([part.samples for part in parts]) if len(parts) > 1 else None
    return join_files(parts, sounds=tuple(sounds), samples=samples)


def read_events(path: Path, config: EventsConfig) -> SoundDataset:
    """Read the sounds and events of a file or folder. Each sound is read once."""
    bad_rows, rate = BadRows(config.on_bad, "events"), config.sample_rate
    store = NumberStore(np.int16)
    sounds: list[LabeledSound] = []
    by_file, folder, is_table = _read_rows(path, config, bad_rows)
    for file, rows in by_file.items():
        found, units_per_second = [], 0
        with bad_rows.catch(rows[0][0]):
            # Samples are those of the file, before it is resampled.
            is_samples = config.unit == "samples" and is_table
            units_per_second = read_sample_rate(folder / file) if is_samples else 1
        if units_per_second == 0:  # the file cannot be read
            continue
        for where, row in rows:
            with bad_rows.catch(where):
                found.append((where, _parse_event(row, units_per_second) if row else None))
        if not found:
            continue
        first, is_read = len(store), False
        with bad_rows.catch(found[0][0]):
            for block in decode_sound(folder / file, rate, str(folder / file)):
                store.append(block)
            is_read = True
        if not is_read:  # what was stored of it belongs to no sound
            continue
        count = len(store) - first
        end = count / rate
        events: list[SoundEvent] = []
        for where, event in found:
            if event is None:
                continue
            if event.onset > end - _MIN_SECONDS:
                bad_rows.add(f"{where}: begins at {event.onset:g} s, after the end of {file}.")
            else:
                events.append(replace(event, duration=min(event.duration, end - event.onset)))
        sounds.append(LabeledSound(file, first, count, events))
    if not sounds:
        raise UserError(f"{path}: names no usable sound. {bad_rows.describe()}")
    notices, seconds = bad_rows.notices(path), config.seconds
    long = sum(event.duration > seconds for sound in sounds for event in sound.events)
    if long:
        parts = f"longer than --data.seconds {seconds:g}: their parts are detected and joined"
        notices = (*notices, f"{path}: {long:,} events are {parts}")
    return SoundDataset(tuple(sounds), store.array(), str(path), config, notices)


def list_sounds(path: Path, config: EventsConfig) -> list[str]:
    """Return the sound files of a table or of labels, in their order."""
    # Labels are not needed: those of Raven are in any column that each table has.
    config = replace(config, label_column="Selection")
    by_file, folder, _ = _read_rows(path, config, BadRows(config.on_bad, "events"))
    return [str(folder / file) for file in by_file]


def _read_rows(
    path: Path, config: EventsConfig, bad_rows: BadRows
) -> tuple[Mapping[str, Sequence[tuple[str, Any]]], Path, bool]:
    """Return the rows of each sound file, the folder of these, and True for a table."""
    found = read_event_format(path, config, bad_rows)
    if found is not None:
        return *found, False
    (columns, more), label = _COLUMNS, config.label_column
    if label:
        columns, more = (*columns[:2], label), more[:1]
    by_file = read_rows_of_files(path, columns, config, bad_rows, more=more)
    for rows in by_file.values():
        for _, row in rows:
            if label in row:
                row["label"] = row.pop(label)
    return by_file, path.parent, True


def segment_length(config: EventsConfig) -> int:
    """Return the number of samples of a segment."""
    return round(config.seconds * config.sample_rate)


def segment_starts(samples: int, length: int) -> list[int]:
    """Return the starts of segments that overlap by half; the last one ends with the sound."""
    if samples <= length:
        return [0]
    return [*range(0, samples - length, length // 2), samples - length]


@dataclass(frozen=True)
class MaskedSounds:
    """Sounds (rows, samples) in [-1, 1]; mask (rows, bands, frames): True = hidden."""

    samples: Tensor
    mask: Tensor

    def to(self, device: torch.device | str) -> "MaskedSounds":
        return MaskedSounds(copy_to(self.samples, device), copy_to(self.mask, device))


@dataclass(eq=False)
class EventBatches(BatchesByCount):
    """Batches of segments.

    augment: any of speed, shift, frequency-mask and time-mask.
    """

    data: Sounds
    labels: Labels
    config: EventsConfig
    augment: Collection[str] = field(default=(), kw_only=True)

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(self.data.segments))

    def collate(
        self, epoch: int, indices: Sequence[int]
    ) -> Batch[Tensor | MaskedSounds, LabeledRegions]:
        """Return sounds (rows, samples) in [-1, 1], with masks if there are any, and events: center
        and duration relative to the length."""
        seconds = self.config.seconds
        sounds, masks, classes, regions = [], [], [], []
        for i in indices:
            samples, events = self.data.load_segment(i)
            if self.augment:
                draw = generator(self.seed, epoch, i)
                samples, events = augment_sound(
                    samples, events, draw, names=self.augment, seconds=seconds
                )
                masks.append(draw_mask(self.augment, draw, self.config))
            sounds.append(samples)
            numbers, places = [], []
            for event in events:
                numbers.append(self.labels.names.index(event.label))
                center = (event.onset + event.duration / 2) / seconds
                places.append((center, event.duration / seconds))
            classes.append(np.array(numbers, np.int64))
            regions.append(np.array(places))
        source = torch.from_numpy(np.stack(sounds)).float() / 32768
        if masks:
            source = MaskedSounds(source, torch.from_numpy(np.stack(masks)))
        return Batch(source, LabeledRegions.from_rows(classes, regions, 1), tuple(indices))


def augment_sound(
    samples: NDArray[np.int16],
    events: Sequence[SoundEvent],
    draw: np.random.Generator,
    *,
    names: Collection[str],
    seconds: float,
) -> tuple[NDArray[np.int16], list[SoundEvent]]:
    """Stretch a segment by up to 15 % (speed) and move it by up to a tenth (shift), the gap filled
    with noise."""
    rate, shift = draw.uniform(1 / _MAX_TEMPO, _MAX_TEMPO), draw.uniform(-_MAX_SHIFT, _MAX_SHIFT)
    rate, shift = rate if "speed" in names else 1.0, shift if "shift" in names else 0.0
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


def draw_mask(
    names: Collection[str], draw: np.random.Generator, config: EventsConfig
) -> NDArray[np.bool_]:
    """Return a mask (bands, frames): two ranges of up to a fifth of the bands are hidden
    (frequency-mask), and two of up to a twentieth of the frames (time-mask)."""
    frames = segment_length(config) // round(config.hop * config.sample_rate)
    mask = np.zeros((config.bands, frames), bool)
    kinds = {"frequency-mask": (mask, _MAX_BANDS), "time-mask": (mask.T, _MAX_FRAMES)}
    for name, (view, most) in kinds.items():
        for _ in range(_MASKS if name in names else 0):
            width = int(draw.integers(int(most * len(view)) + 1))
            first = int(draw.integers(len(view) - width + 1))
            view[first : first + width] = True
    return mask


def _parse_event(row: Mapping[str, Any], units_per_second: int) -> SoundEvent:
    """Return the event with an onset, and a duration or, without one, an offset."""
    label = as_text(row.get("label", row.get("event_label"))).strip()
    try:
        start = float(row["onset"])
        length = float(row["duration"]) if "duration" in row else float(row["offset"]) - start
    except KeyError as error:
        raise UserError(f"has no {error}: expected onset, and duration or offset") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"onset and duration must be numbers ({error})") from error
    start, length = start / units_per_second, length / units_per_second
    if not (start >= 0 and _MIN_SECONDS <= length < float("inf") and label):
        got = ", ".join(map(str, row.values()))
        raise UserError(f"expected an onset >= 0, a duration > 0 and a label, got {got}")
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
