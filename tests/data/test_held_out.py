"""Validation data held out of the training data: one rule for all recipes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.config import EventsConfig, TracksConfig
from regard.data.held_out import hold_out, last_part
from regard.data.sound.events import LabeledSound, SoundDataset, SoundEvent
from regard.data.track_files import read_frames
from regard.data.tracks import extract_windows, read_training_windows
from regard.errors import UserError

NAMES = {"origin": "a.tsv", "noun": "pairs"}


@given(
    groups=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    share=st.floats(0.01, 0.6),
    seed=st.integers(0, 99),
    has_labels=st.booleans(),
)
def test_parts_are_disjoint_and_groups_are_whole(groups, share, seed, has_labels):
    labels = [(index % 3, index % 4) for index in range(len(groups))] if has_labels else None
    try:
        train, val = hold_out(len(groups), share, seed=seed, groups=groups, labels=labels, **NAMES)
    except UserError:
        assert has_labels or len(set(groups)) == 1
        return
    assert sorted([*train, *val]) == list(range(len(groups)))
    assert train == sorted(train)
    assert val == sorted(val)
    assert train
    assert not {groups[i] for i in train} & {groups[i] for i in val}
    if labels is not None:
        known = {label for i in train for label in labels[i]}
        assert {label for i in val for label in labels[i]} <= known


def test_sample_is_random_and_of_the_share():
    samples = [hold_out(1000, 0.1, seed=seed, **NAMES)[1] for seed in (0, 1, 1)]
    assert [len(sample) for sample in samples] == [100, 100, 100]
    assert samples[0] != samples[1] == samples[2]
    assert max(Counter(i // 100 for i in samples[0]).values()) < 30  # no contiguous part


def test_label_without_training_data():
    labels = [("a",), ("b",), ("c",), ("d",)]
    with pytest.raises(UserError, match=r"the label '[abcd]' occurs in none of the training pairs"):
        hold_out(4, 0.5, seed=1, labels=labels, **NAMES)


@pytest.mark.parametrize("sizes", [[300] + 40 * [1], [50, 60, 70, 80], [5, 5, 5, 100, 5]])
def test_large_group_is_held_out_only_if_there_is_no_smaller_one(sizes):
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    for seed in range(10):
        _, val = hold_out(len(groups), 0.1, seed=seed, groups=groups, **NAMES)
        assert len(val) <= max(0.2 * len(groups), min(sizes))


def test_group_that_would_double_the_share_is_not_added():
    groups = np.repeat(np.arange(7), [1, 1, 1, 1, 1, 30, 65]).tolist()
    for seed in range(5):
        _, val = hold_out(100, 0.1, seed=seed, groups=groups, **NAMES)
        assert len(val) == 5


def test_too_few_items():
    message = r"a.tsv: .* pairs are too few .* to hold out 0.1 of them: .*--data.val"
    with pytest.raises(UserError, match=message):
        hold_out(1, 0.1, seed=1, **NAMES)
    with pytest.raises(UserError, match=message):
        hold_out(5, 0.1, seed=1, groups=["same"] * 5, **NAMES)
    with pytest.raises(UserError, match=message):
        last_part(1, 0.1, **NAMES)
    assert last_part(20, 0.1, **NAMES) == 18


def test_windows_of_tracks_share_no_frame(tmp_path):
    rows = [f"{frame}\t{agent}\t{frame}.0\t{agent}.5" for frame in range(40) for agent in (1, 2)]
    paths = [tmp_path / "a.txt", tmp_path / "short.txt"]
    paths[0].write_text("\n".join(rows))
    paths[1].write_text("\n".join(rows[:16]))  # 8 frames: too short for two windows of 5
    config = TracksConfig(train=tuple(map(str, paths)), observed=2, predicted=3, val_share=0.3)
    train, val = read_training_windows(config)
    last_frame = train.positions[:, :, 0].max()
    assert (last_frame, val.positions[:, :, 0].min()) == (27, 28)
    whole = extract_windows(read_frames(paths[1])[0], 5, 2)
    assert len(train.offsets) - 1 == (28 - 4) + len(whole)
    assert len(val.offsets) - 1 == 12 - 4
    assert ": 8 of 36 windows are held out" in val.notices[0]
    with pytest.raises(UserError, match=r"short.txt: too short to hold out a window of 5 frames"):
        read_training_windows(TracksConfig(train=(str(paths[1]),), observed=2, predicted=3))


def sounds(counts: str) -> SoundDataset:
    """Return a file of so many seconds for each digit, with an event in each second."""
    config, found, first = EventsConfig(sample_rate=4, seconds=2, hop=0.5, val_share=0.3), [], 0
    for name, digit in enumerate(counts):
        events = [SoundEvent(i + 0.25, 0.5, "x") for i in range(int(digit))]
        found.append(LabeledSound(str(name), first, 4 * int(digit), events))
        first += found[-1].count
    return SoundDataset(tuple(found), np.arange(first).astype(np.int16), "a.csv", config)


def test_whole_sound_files_are_held_out():
    train, val = sounds("23124").hold_out(seed=1)
    names = [[sound.name for sound in part.sounds] for part in (train, val)]
    assert sorted(names[0] + names[1]) == [*"01234"]
    assert len(val) == 2
    assert "2 of 5 sounds are held out" in val.notices[0]


def test_last_part_of_a_single_sound_file_is_held_out():
    train, val = sounds("9").hold_out(seed=1)
    parts = [train.load(0), val.load(0)]
    assert np.concatenate([samples for samples, _ in parts]).tolist() == [*range(36)]
    assert [len(events) for _, events in parts] == [6, 3]
    assert parts[1][1][0] == SoundEvent(0.0, 0.5, "x")  # 25 of 36 samples are for training
    with pytest.raises(UserError, match="label 'x' occurs only in the part"):
        replace(sounds("9"), sounds=(LabeledSound("a", 0, 36, [SoundEvent(8, 1, "x")]),)).hold_out(
            seed=1
        )
