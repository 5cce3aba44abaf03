"""Sounds with events: mixed scenes follow their rule, WAV files have any rate, and unusable data is
reported."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.io import wavfile

import regard.data.sound.events as events_module
from regard.data.config import EventsConfig
from regard.data.sound.events import (
    EventBatches,
    SoundEvent,
    augment_sound,
    list_sounds,
    make_sound_scenes,
    read_events,
    segment_starts,
)
from regard.data.sound.files import read_sound
from regard.data.sound.recordings import Recordings, make_sounds, mix_scene, read_recordings
from regard.data.text.labels import Labels
from regard.errors import UserError

RATE = 8000
CONFIG = EventsConfig(seconds=1.0, epoch_size=20, val_size=5, test_size=5)


@pytest.fixture
def recordings():
    """Return one recording per split: 100, 200 and 300 samples of a constant."""
    samples = np.concatenate([np.full(100, 50), np.full(200, -80), np.full(300, 20)]).astype(
        np.int16
    )
    return Recordings(
        samples, np.array([0, 100, 300, 600]), ("a", "b", "c"), np.array([0, 5, 10]), RATE, "here"
    )


def test_scene_follows_its_rule(recordings):
    samples, events = mix_scene(recordings, "train", 4, 8000)
    stream = b"".join(
        hashlib.sha256(f"fsdd-scene-v1/train/4/{i}".encode()).digest() for i in range(9)
    )
    numbers = [int.from_bytes(stream[i : i + 4], "big") for i in range(0, len(stream), 4)]
    count, expected, sound = numbers.pop(0) % 7, [], np.zeros(8000, np.int64)
    for _ in range(count):
        assert numbers.pop(0) % 1 == 0  # there is one recording to choose from
        start, loud = numbers.pop(0) % (8000 - 300 + 1), numbers.pop(0) % 7
        sound[start : start + 300] += 8192 * (64 + 32 * loud) // 256
        expected.append((start, start + 300, "c"))
    noise = b"".join(
        hashlib.sha256(f"fsdd-scene-v1/train/4/noise/{i}".encode()).digest() for i in range(250)
    )
    sound += np.frombuffer(noise, np.uint8).astype(np.int64) - 128
    assert events == sorted(expected)
    np.testing.assert_array_equal(samples, np.clip(sound, -32768, 32767))
    assert count > 0


def test_splits_do_not_share_recordings(recordings):
    assert [recordings.indices(split).tolist() for split in ("test", "val", "train")] == [
        [0],
        [1],
        [2],
    ]
    assert {label for k in range(20) for *_, label in mix_scene(recordings, "val", k, 4000)[1]} == {
        "b"
    }


def test_scenes_of_synthetic_sounds_have_all_labels():
    sounds = make_sound_scenes(make_sounds(RATE, 1), "train", 30, EventsConfig(seconds=2.0))
    segments = [sounds.load(i)[1] for i in range(30)]
    assert {event.label for events in segments for event in events} == {
        "chirp",
        "high",
        "low",
        "noise",
    }
    assert all(
        event.onset >= 0 and event.offset <= 2 + 1e-9 for events in segments for event in events
    )
    assert min(map(len, segments)) == 0


def test_label_tracks_and_other_formats_are_answered_with_what_is_read(tmp_path):
    for name, message in (
        ("a.txt", r"expected a table .*file,onset,offset,label"),
        ("a.parquet", r"expected a table"),
    ):
        (tmp_path / name).write_text("0.5\t1.5\tbark\n")
        with pytest.raises(UserError, match=message):
            read_recordings(tmp_path / name, 8000)


def test_invalid_recordings_are_refused(tmp_path, recordings):
    good = {
        "samples": recordings.samples,
        "offsets": recordings.offsets,
        "label": np.array([1, 2, 3]),
        "index": recordings.index,
        "sample_rate": RATE,
    }
    cases = [
        ({"offsets": np.array([0, 100, 300, 700])}, "offsets must increase"),
        ({"offsets": np.array([1, 100, 300, 600])}, "offsets must increase from 0"),
        ({"offsets": np.array([0, 300, 100, 600])}, "offsets must increase"),
        ({"offsets": np.array([0, 2**63, 300, 600], np.uint64)}, "offsets must increase"),
        (
            {"offsets": np.array([0.0, 100, 300, 600])},
            "array offsets: expected a row of integers, got float64",
        ),
        (
            {"offsets": np.int64(3)},
            r"array offsets: expected a row of integers, got int64 of shape \(\)",
        ),
        ({"index": np.array(["a", "b", "c"])}, "array index: expected a row of integers"),
        (
            {"label": np.array(["a", "b", None], object)},
            "array label: expected numbers or strings, not pickled objects, got object",
        ),
        ({"label": np.array([b"a", b"b", b"\xe4"])}, "label 3: not UTF-8"),
        ({"label": np.array([1, 2, np.nan])}, "label 3: expected a string or a number, got 'nan'"),
        ({"sample_rate": np.array([8000, 8000])}, "array sample_rate: expected a number"),
        ({"sample_rate": 0}, "sample_rate must be an integer from 1 to 768,000, got 0"),
        ({"sample_rate": np.nan}, "sample_rate must be an integer from 1 to 768,000, got nan"),
        (
            {"samples": recordings.samples.astype(np.float32)},
            "array samples: expected a row of int16, got float32",
        ),
        ({"label": np.array([1, 2])}, "has 3 recordings, but 2 labels"),
        ({"index": np.array([0, 1, 10])}, "no recording has an index of the val split"),
    ]
    for changes, message in cases:
        np.savez(tmp_path / "r.npz", **(good | changes))
        with pytest.raises(UserError, match=message):
            read_recordings(tmp_path / "r.npz", 8000)
    np.savez(tmp_path / "r.npz", **good)
    assert read_recordings(tmp_path / "r.npz", 300).labels == ("1", "2", "3")
    with pytest.raises(
        UserError, match=r"a recording has 300 samples, more than the 299 of a scene"
    ):
        read_recordings(tmp_path / "r.npz", 299)
    np.savez(tmp_path / "r.npz", samples=good["samples"])
    with pytest.raises(UserError, match="expected an npz file with the arrays samples"):
        read_recordings(tmp_path / "r.npz", 8000)
    with pytest.raises(
        UserError, match=r"the sample rate must be --data.sample-rate \(16000\), got 8000"
    ):
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


def test_wav_of_another_rate_is_resampled(folder):
    samples, _ = read_sound(folder / "long.wav", RATE)
    assert len(samples) == 2 * RATE
    time = np.arange(2 * RATE) / RATE
    np.testing.assert_allclose(
        samples[200:-200], (20000 * np.sin(2 * np.pi * 440 * time))[200:-200], atol=150
    )


def test_long_files_are_divided_into_segments(folder):
    sounds = read_events(folder / "events.csv", CONFIG)
    assert len(sounds) == 4
    segments = [sounds.load(i) for i in range(4)]
    assert [len(samples) for samples, _ in segments] == [RATE] * 4
    rounded = [
        [(round(e.onset, 6), round(e.duration, 6), e.label) for e in events]
        for _, events in segments
    ]
    # Of the first event, 0.2 s of 0.5 s lie in the second segment, which is more than a third.
    assert rounded == [
        [(0.2, 0.5, "a")],
        [(0.0, 0.2, "a"), (0.9, 0.1, "b")][:1],
        [(0.4, 0.4, "b")],
        [],
    ]
    assert segment_starts(8000, 8000) == [0]
    assert segment_starts(20000, 8000) == [0, 4000, 8000, 12000]


def test_csv_of_a_spreadsheet_has_the_same_events(folder):
    plain = "file,onset,duration,label\nlong.wav,0.25,0.5,a\nshort.wav,,,\n"
    sheet = "File;Onset;Offset;Label\nlong.wav;0,25;0,75;a\n;;;\nshort.wav;;;\n;;;\n"
    events = []
    for name, content in (("plain.csv", plain), ("sheet.csv", sheet)):
        (folder / name).write_text(content)
        sounds = read_events(folder / name, CONFIG)
        events.append([sounds.load(i)[1] for i in range(len(sounds))])
    assert events[0] == events[1]
    (folder / "sheet.csv").write_text(sheet.replace("0,75", "0,2"))
    with pytest.raises(
        UserError, match=r"a duration above 0 and a label, got onset 0.25, offset 0.2, label 'a'"
    ):
        read_events(folder / "sheet.csv", CONFIG)


def test_bad_events_are_reported(folder):
    head = "file,onset,duration,label\n"
    cases = [
        ("file,onset\n", "line 1: expected a header"),
        (head + "long.wav,1\n", "line 2: expected 4 columns separated by ',', got 2"),
        (
            head + "long.wav,x,1,a\n",
            "line 2: expected onset and duration, two numbers, got 'x', '1'",
        ),
        (
            head + "long.wav,0.1,0,a\n",
            "line 2: expected an onset of at least 0, a duration above 0",
        ),
        (head + "long.wav,0.1,1,\n", "and a label, got onset 0.1, duration 1, label ''"),
        (
            head + "long.wav,2.5,1,a\n",
            "line 2: the event begins at 2.5 s, after the end of long.wav",
        ),
        (
            head + "long.wav,0.1,1e-320,a\n",
            "line 2: expected an onset of at least 0, a duration above 0",
        ),
        (
            head + "long.wav," + "9" * 400 + ",1,a\n",
            "line 2: expected onset and duration, two numbers",
        ),
        (head + "long.wav,0.1,1_0,a\n", "line 2: expected onset and duration, two numbers"),
        (head + ",0.1,1,a\n", "line 2: expected the name of a sound file, got none"),
        (
            head + "../../../../../../etc/passwd,0.1,1,a\n",
            r"bad\.csv, line 2: .*not a supported sound file",
        ),
        (head + "/dev/zero,0.1,1,a\n", r"bad\.csv, line 2: /dev/zero: is a device"),
        (head + "gone.wav,0.1,1,a\n", r"gone\.wav: no such file"),
        (head + "events.csv,0.1,1,a\n", r"events\.csv: not a supported sound file"),
        (head, "names no sound file"),
    ]
    for content, message in cases:
        (folder / "bad.csv").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_events(folder / "bad.csv", CONFIG)
    (folder / "bad.csv").write_text(head + "long.wav,0.1,0,a\nlong.wav,0.1,1,a\n", encoding="utf-8")
    sounds = read_events(folder / "bad.csv", EventsConfig(seconds=1.0, on_bad="skip"))
    assert len(sounds.skipped) == 1
    assert [len(sounds.load(i)[1]) for i in range(3)] == [1, 1, 0]


def test_events_longer_than_segments_are_in_all_of_them_and_end_with_their_file(folder):
    (folder / "events.csv").write_text("file,onset,duration,label\nlong.wav,0,9,a\nshort.wav,,,\n")
    sounds = read_events(folder / "events.csv", EventsConfig(seconds=0.5))
    assert [sounds.load(i)[1] for i in range(7)] == [[SoundEvent(0.0, 0.5, "a")]] * 7
    assert [sounds.name(i) for i in (0, 1, 7)] == [
        "long.wav, from 0 s",
        "long.wav, from 0.25 s",
        "short.wav, from 0 s",
    ]
    (note,) = sounds.notes
    assert note.endswith(
        "1 events end after their file, and are cut there; first: " + note.rpartition("first: ")[2]
    )
    assert "line 2: ends at 9 s, but long.wav at 2 s" in note


def test_names_of_columns_may_be_those_of_dcase(folder):
    table = "filename\tonset\toffset\tevent_label\nlong.wav\t0.25\t0.75\ta\nshort.wav\t\t\t\n"
    (folder / "dcase.tsv").write_text(table)
    sounds = read_events(folder / "dcase.tsv", CONFIG)
    assert sounds.load(0)[1] == [SoundEvent(0.25, 0.5, "a")]
    assert [*list_sounds(folder / "dcase.tsv", CONFIG)] == ["long.wav", "short.wav"]


def test_sounds_without_samples_are_left_out(folder):
    wavfile.write(folder / "zero.wav", RATE, np.zeros(0, np.int16))
    (folder / "events.csv").write_text("file,onset,duration,label\nzero.wav,,,\nlong.wav,0,1,a\n")
    with pytest.raises(
        UserError, match=r"zero.wav: contains no samples. With --data.on-bad skip, such events"
    ):
        read_events(folder / "events.csv", CONFIG)
    sounds = read_events(folder / "events.csv", EventsConfig(seconds=1.0, on_bad="skip"))
    assert (set(sounds.files), len(sounds.skipped)) == ({"long.wav"}, 1)


def test_truncated_and_clipped_files_are_summarized(folder):
    (folder / "cut.wav").write_bytes((folder / "long.wav").read_bytes()[:-40_000])
    for name in ("loud", "louder"):
        wavfile.write(folder / f"{name}.wav", RATE, np.array([0.5, 2.0, -1.0], np.float32))
    rows = "cut.wav,0.2,0.5,a\ncut.wav,1.9,0.1,b\nloud.wav,,,\nlouder.wav,,,\n"
    (folder / "bad.csv").write_text("file,onset,duration,label\n" + rows, encoding="utf-8")
    with pytest.raises(
        UserError,
        match=r"bad\.csv, line 2: .*cut\.wav: truncated: its header states 128,000 bytes .*skip",
    ):
        read_events(folder / "bad.csv", CONFIG)
    sounds = read_events(folder / "bad.csv", EventsConfig(seconds=1.0, on_bad="skip"))
    assert len(sounds.skipped) == 1
    assert "line 3: the event begins at 1.9 s, after the end of cut.wav" in sounds.skipped[0]
    cut_off, clipped = sounds.notes
    assert cut_off.startswith(
        f"{folder / 'bad.csv'}: 1 files are truncated or damaged and read up to there; first: "
    )
    assert clipped.startswith(f"{folder / 'bad.csv'}: 2 files are clipped; first: ")
    assert "loud.wav: 1 samples are outside [-1, 1], up to 2, and are clipped." in clipped


def test_each_file_is_decoded_once(folder, monkeypatch):
    names = []
    append = events_module.append_sound
    monkeypatch.setattr(
        events_module,
        "append_sound",
        lambda store, path, *rest: (names.append(path.name), append(store, path, *rest))[1],
    )
    sounds = read_events(folder / "events.csv", CONFIG)
    for i in (3, 0, 2, 1, 0):
        sounds.load(i)
    assert names == ["long.wav", "short.wav"]


@pytest.mark.parametrize("seconds", [0.3, 1.0, 7.0])
def test_events_of_segments_equal_those_of_a_direct_search(folder, seconds):
    draw = np.random.default_rng(4)
    events = [
        SoundEvent(float(a), float(b), "a")
        for a, b in zip(draw.uniform(0, 2, 40), draw.exponential(0.4, 40), strict=True)
    ]
    rows = "".join(f"long.wav,{event.onset!r},{event.duration!r},a\n" for event in events)
    (folder / "many.csv").write_text("file,onset,duration,label\n" + rows, encoding="utf-8")
    sounds = read_events(folder / "many.csv", EventsConfig(seconds=seconds))
    starts = segment_starts(2 * RATE, round(seconds * RATE))
    assert len(sounds) == len(starts)
    for i, start in enumerate(starts):
        spans = [
            (
                max(0.0, event.onset - start / RATE),
                min(seconds, min(event.offset, 2.0) - start / RATE),
                event,
            )
            for event in events
        ]
        expected = [
            (first, last - first)
            for first, last, event in spans
            if last > first
            and last - first >= min(seconds, min(event.offset, 2.0) - event.onset) / 3
        ]
        found = [(event.onset, event.duration) for event in sounds.load(i)[1]]
        assert found == [pytest.approx(pair, abs=1e-12) for pair in expected]


def test_batches_hold_centers_and_durations(folder):
    batches = EventBatches(
        read_events(folder / "events.csv", CONFIG), Labels(("a", "b")), CONFIG, rows=2, seed=1
    )
    batch = batches.collate(0, (0, 3))
    assert batch.target.labels.tolist() == [[0], [-1]]
    torch.testing.assert_close(batch.target.regions[0, 0], torch.tensor([0.45, 0.5]))
    assert batch.source.shape == (2, RATE)
    assert batch.source.abs().max() <= 1
    with pytest.raises(UserError, match=r"label 'b' does not occur in the training sounds \(a\)"):
        EventBatches(
            read_events(folder / "events.csv", CONFIG), Labels(("a",)), CONFIG, rows=2, seed=1
        )
    assert SoundEvent(0.5, 0.25, "a").offset == 0.75


def test_events_follow_the_samples_of_an_augmented_sound():
    for seed in range(20):
        samples = np.zeros(8000, np.int16)
        samples[3000:4000] = 10000
        draw = np.random.default_rng(seed)
        other, events = augment_sound(samples, [SoundEvent(3 / 8, 1 / 8, "a")], draw, seconds=1.0)
        (event,) = events
        loud = np.flatnonzero(other > 5000) / 8000
        assert event.onset == pytest.approx(loud[0], abs=2e-3)
        assert event.offset == pytest.approx(loud[-1], abs=2e-3)
        assert event.duration != 1 / 8
    short = np.full(8000, 5, np.int16)
    gone = [
        augment_sound(
            short, [SoundEvent(0.95, 0.05, "a")], np.random.default_rng(seed), seconds=1.0
        )[1]
        for seed in range(20)
    ]
    assert [] in gone


def test_augmentation_depends_on_the_epoch_only(folder):
    sounds, labels = read_events(folder / "events.csv", CONFIG), Labels(("a", "b"))
    first, second = (
        EventBatches(sounds, labels, CONFIG, rows=2, seed=1, augment=True) for _ in range(2)
    )
    assert (first.collate(1, (0, 2)).source == second.collate(1, (0, 2)).source).all()
    assert (first.collate(1, (0, 2)).source != first.collate(2, (0, 2)).source).any()
