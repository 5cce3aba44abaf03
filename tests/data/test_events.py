"""Sounds with events: scenes follow their rule, any rate of WAV, bad data is reported."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from regard.data.config import EventsConfig
from regard.data.sound.events import (
    EventBatches,
    MaskedSounds,
    SoundEvent,
    augment_sound,
    draw_mask,
    list_sounds,
    make_sound_scenes,
    read_events,
    segment_starts,
)
from regard.data.sound.recordings import Recordings, make_sounds, mix_scene, read_recordings
from regard.data.text.labels import Labels
from regard.errors import UserError

RATE = 8000
CONFIG = EventsConfig(seconds=1.0, epoch_size=20, val_size=5, test_size=5)


@pytest.fixture
def recordings():
    """Return one recording per split: 100, 200 and 300 samples of a constant."""
    samples = np.repeat(np.array([50, -80, 20], np.int16), [100, 200, 300])
    offsets, index = np.array([0, 100, 300, 600]), np.array([0, 5, 10])
    return Recordings(samples, offsets, ("a", "b", "c"), index, RATE, "here")


def sha256_stream(key: str, count: int) -> bytes:
    return b"".join(hashlib.sha256(f"{key}/{i}".encode()).digest() for i in range(count))


def test_scene_follows_its_rule(recordings):
    samples, events = mix_scene(recordings, "train", 4, 8000)
    numbers = np.frombuffer(sha256_stream("fsdd-scene-v1/train/4", 9), ">u4").tolist()
    count, expected, sound = numbers.pop(0) % 7, [], np.zeros(8000, np.int64)
    for _ in range(count):
        numbers.pop(0)  # there is one recording to choose from
        start, loud = numbers.pop(0) % (8000 - 300 + 1), numbers.pop(0) % 7
        sound[start : start + 300] += 8192 * (64 + 32 * loud) // 256
        expected.append((start, start + 300, "c"))
    noise = np.frombuffer(sha256_stream("fsdd-scene-v1/train/4/noise", 250), np.uint8)
    sound += noise.astype(np.int64) - 128
    assert events == sorted(expected)
    np.testing.assert_array_equal(samples, np.clip(sound, -32768, 32767))
    assert count > 0


def test_splits_do_not_share_recordings(recordings):
    for number, split in enumerate(("test", "val", "train")):
        assert recordings.indices(split).tolist() == [number]
    events = [event for k in range(20) for event in mix_scene(recordings, "val", k, 4000)[1]]
    assert {label for *_, label in events} == {"b"}


def test_scenes_of_synthetic_sounds_have_all_labels():
    sounds = make_sound_scenes(make_sounds(RATE, 1), "train", 30, EventsConfig(seconds=2.0))
    segments = [sounds.load(i)[1] for i in range(30)]
    events = [event for segment in segments for event in segment]
    assert {event.label for event in events} == {"chirp", "high", "low", "noise"}
    assert all(event.onset >= 0 and event.offset <= 2 + 1e-9 for event in events)
    assert min(map(len, segments)) == 0


def test_invalid_recordings_are_refused(tmp_path, recordings):
    path = tmp_path / "r.npz"
    good = {
        "samples": recordings.samples,
        "offsets": recordings.offsets,
        "label": np.array([1, 2, 3]),
        "index": recordings.index,
        "sample_rate": RATE,
    }
    cases = [
        ({"offsets": np.array([0, 100, 300, 700])}, "offsets must increase"),
        ({"offsets": np.array([0, 300, 100, 600])}, "offsets must increase"),
        ({"label": np.array(["a", "b", None], object)}, "Object arrays cannot be loaded"),
        ({"samples": recordings.samples.astype(np.float32)}, "samples must be a row of int16"),
        ({"label": np.array([1, 2])}, "3 recordings, but 2 labels and 3 entries"),
        ({"index": np.array([0, 1, 10])}, "no recording has an index of the val split"),
    ]
    for changes, message in cases:
        np.savez(path, **(good | changes))
        with pytest.raises(UserError, match=message):
            read_recordings(path, 8000)
    np.savez(path, **good)
    assert read_recordings(path, 300).labels == ("1", "2", "3")
    with pytest.raises(UserError, match="300 samples, more than the 299"):
        read_recordings(path, 299)
    np.savez(path, samples=good["samples"])
    with pytest.raises(UserError, match=r"r.npz: expected arrays of NumPy .*offsets"):
        read_recordings(path, 8000)
    with pytest.raises(UserError, match=r"expected --data.sample-rate 8000, got 16000"):
        make_sound_scenes(recordings, "train", 3, EventsConfig(sample_rate=16000))


@pytest.fixture
def folder(tmp_path):
    time = np.arange(2 * 16000) / 16000
    tone = (20000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16)
    wavfile.write(tmp_path / "long.wav", 16000, np.stack((tone, tone), -1))
    wavfile.write(tmp_path / "short.wav", RATE, np.zeros(4000, np.float32))
    lines = "file,onset,duration,label\nlong.wav,0.2,0.5,a\nlong.wav,1.4,0.4,b\nshort.wav,,,\n"
    (tmp_path / "events.csv").write_text(lines, encoding="utf-8")
    return tmp_path


def test_long_files_are_divided_into_segments(folder):
    sounds = read_events(folder / "events.csv", CONFIG)
    assert [len(sounds), sounds.sizes] == [2, [3, 1]]
    segments = [sounds.load_segment(i) for i in range(4)]
    assert [len(samples) for samples, _ in segments] == [RATE] * 4
    rounded = []
    for _, events in segments:
        rounded.append([(round(e.onset, 6), round(e.duration, 6), e.label) for e in events])
    # Of the first event, 0.2 s of 0.5 s lie in the second segment, which is more than a third.
    assert rounded == [[(0.2, 0.5, "a")], [(0.0, 0.2, "a")], [(0.4, 0.4, "b")], []]
    assert segment_starts(8000, 8000) == [0]
    assert segment_starts(20000, 8000) == [0, 4000, 8000, 12000]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("long.wav,x,1,a", "onset and duration must be numbers"),
        ("long.wav,0.1,0,a", "expected an onset >= 0, a duration > 0"),
        ("long.wav,0.1,1,", "and a label, got 0.1, 1"),
        ("long.wav,2.5,1,a", "begins at 2.5 s, after the end of long.wav"),
        (",0.1,1,a", "expected the name of a file"),
        ("gone.wav,0.1,1,a", r"gone\.wav: no such file"),
        ("events.csv,0.1,1,a", r"events\.csv: not a readable sound file"),
    ],
)
def test_bad_events_are_reported_or_skipped(folder, row, message):
    head = "file,onset,duration,label\n"
    (folder / "bad.csv").write_text(f"{head}{row}\nlong.wav,0.1,1,a\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_events(folder / "bad.csv", CONFIG)
    sounds = read_events(folder / "bad.csv", EventsConfig(seconds=1.0, on_bad="skip"))
    assert len(sounds.notices) == 1
    assert [len(segment.events) for segment in sounds.segments] == [1, 1, 0]
    (folder / "bad.csv").write_text(head)
    with pytest.raises(UserError, match="names no usable sound"):
        read_events(folder / "bad.csv", CONFIG)


def test_events_longer_than_segments_are_in_all_of_them_and_end_with_their_file(folder):
    (folder / "events.csv").write_text("file,onset,duration,label\nlong.wav,0,9,a\nshort.wav,,,\n")
    sounds = read_events(folder / "events.csv", EventsConfig(seconds=0.5))
    expected = [[SoundEvent(0.0, 0.5, "a")]] * 7 + [[]]
    assert [segment.events for segment in sounds.segments] == expected
    assert sounds.load(0)[1] == [SoundEvent(0.0, 2.0, "a")]
    assert "1 events are longer than --data.seconds 0.5" in sounds.notices[0]


def test_names_of_columns_may_be_those_of_dcase(folder):
    table = "filename\tonset\toffset\tevent_label\nlong.wav\t0.25\t0.75\ta\nshort.wav\t\t\t\n"
    (folder / "dcase.tsv").write_text(table)
    sounds = read_events(folder / "dcase.tsv", CONFIG)
    assert sounds.load(0)[1] == [SoundEvent(0.25, 0.5, "a")]
    files = [str(folder / name) for name in ("long.wav", "short.wav")]
    assert list_sounds(folder / "dcase.tsv", CONFIG) == files


def test_samples_are_those_of_each_file_at_its_own_rate(folder):
    rows = "long.wav,16000,8000,a\nshort.wav,1000,2000,b\ngone.wav,1,2000,b\n"
    (folder / "samples.csv").write_text(f"file,onset,duration,label\n{rows}")
    config = replace(CONFIG, unit="samples", on_bad="skip")
    sounds = read_events(folder / "samples.csv", config)
    assert [len(sounds), len(sounds.notices)] == [2, 1]
    assert sounds.load(0)[1] == [SoundEvent(1.0, 0.5, "a")]
    assert sounds.load(1)[1] == [SoundEvent(1000 / RATE, 2000 / RATE, "b")]


@pytest.mark.parametrize("seconds", [0.3, 1.0, 7.0])
def test_events_of_segments_equal_those_of_a_direct_search(folder, seconds):
    draw = np.random.default_rng(4)
    columns = draw.uniform(0, 2, 40).tolist(), draw.exponential(0.4, 40).tolist()
    events = list(zip(*columns, strict=True))
    rows = "".join(f"long.wav,{onset!r},{duration!r},a\n" for onset, duration in events)
    (folder / "many.csv").write_text("file,onset,duration,label\n" + rows, encoding="utf-8")
    sounds = read_events(folder / "many.csv", EventsConfig(seconds=seconds))
    starts = segment_starts(2 * RATE, round(seconds * RATE))
    assert len(sounds.segments) == len(starts)
    for i, start in enumerate(starts):
        expected = []
        for onset, duration in events:
            end = min(onset + duration, 2.0)
            first, last = max(0.0, onset - start / RATE), min(seconds, end - start / RATE)
            if last > first and last - first >= min(seconds, end - onset) / 3:
                expected.append(pytest.approx((first, last - first), abs=1e-12))
        found = [(event.onset, event.duration) for event in sounds.segments[i].events]
        assert found == expected


def test_batches_hold_centers_and_durations(folder):
    sounds = read_events(folder / "events.csv", CONFIG)
    batch = EventBatches(sounds, Labels(("a", "b")), CONFIG, rows=2, seed=1).collate(0, (0, 3))
    assert batch.target.labels.tolist() == [[0], [-1]]
    torch.testing.assert_close(batch.target.regions[0, 0], torch.tensor([0.45, 0.5]))
    assert batch.source.shape == (2, RATE)
    assert batch.source.abs().max() <= 1


CHANGES = ("speed", "shift")


def test_events_follow_the_samples_of_an_augmented_sound():
    for seed in range(20):
        samples = np.zeros(8000, np.int16)
        samples[3000:4000] = 10000
        draw = np.random.default_rng(seed)
        event = SoundEvent(3 / 8, 1 / 8, "a")
        other, events = augment_sound(samples, [event], draw, names=CHANGES, seconds=1.0)
        (event,) = events
        loud = np.flatnonzero(other > 5000) / 8000
        assert event.onset == pytest.approx(loud[0], abs=2e-3)
        assert event.offset == pytest.approx(loud[-1], abs=2e-3)
        assert event.duration != 1 / 8
    found = []
    for seed in range(20):  # an event at the end is shifted out of the segment
        event, draw = SoundEvent(0.95, 0.05, "a"), np.random.default_rng(seed)
        found.append(augment_sound(samples, [event], draw, names=CHANGES, seconds=1.0)[1])
    assert [] in found


def test_augmented_sounds_depend_on_seed_epoch_and_place_only(folder):
    sounds, labels = read_events(folder / "events.csv", CONFIG), Labels(("a", "b"))
    names = (*CHANGES, "frequency-mask", "time-mask")

    def collate(epoch: int, rows: tuple[int, ...], seed: int = 1) -> MaskedSounds:
        batches = EventBatches(sounds, labels, CONFIG, rows=2, seed=seed, augment=names)
        return batches.collate(epoch, rows).source

    both, alone = collate(1, (0, 2)), collate(1, (2,))
    for other in (collate(2, (0, 2)), collate(1, (0, 2), seed=2)):
        assert (both.samples != other.samples).any()
        assert (both.mask != other.mask).any()
    assert (both.samples[1:] == alone.samples).all()
    assert (both.mask[1:] == alone.mask).all()


@pytest.mark.parametrize(
    ("names", "along", "most"), [(("frequency-mask",), 0, 40 // 5), (("time-mask",), 1, 100 // 20)]
)
def test_masks_are_two_ranges_of_whole_bands_or_frames(names, along, most):
    config = replace(CONFIG, bands=40, hop=0.01)
    widths = []
    for seed in range(600):
        mask = draw_mask(names, np.random.default_rng(seed), config)
        assert mask.shape == (40, 100)
        line = mask.all(1 - along)
        assert mask.sum() == line.sum() * mask.shape[1 - along]
        edges = np.flatnonzero(np.diff(np.r_[0, line, 0].astype(int)))
        assert len(edges) <= 4
        widths.append(line.sum())
    assert (min(widths), max(widths)) == (0, 2 * most)
