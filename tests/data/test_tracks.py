"""Trajectories: windows of recordings, and agent-centric frames, invariant to the scene's pose."""

import numpy as np
import pytest
import torch

from regard.data.config import TracksConfig
from regard.data.tracks import (
    TrackBatches,
    TrackWindows,
    extract_windows,
    make_tracks,
    read_windows,
    to_agent_frames,
)
from regard.errors import UserError


def test_windows_have_agents_present_in_all_frames_across_gaps():
    frames = {10.0 * t: {"1": (t, 0.0), "2": (0.0, t)} for t in (0, 1, 2, 5, 6)}
    frames[50.0]["3"] = (9.0, 9.0)
    del frames[60.0]["2"]
    windows = extract_windows(frames, 3, least=2)
    assert [window.shape for window in windows] == [(2, 3, 2), (2, 3, 2)]
    assert windows[1][:, :, 0].tolist() == [[1, 2, 5], [0, 0, 0]]
    assert [len(window) for window in extract_windows(frames, 3, least=1)] == [2, 2, 1]


def test_recordings_without_a_window_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("0 1 2 3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.txt: there is no window of 20 .* at least 2 agents"):
        read_windows([tmp_path / "a.txt"], TracksConfig())


def make_windows(seed: int = 1) -> TrackWindows:
    positions = np.random.default_rng(seed).normal(size=(5, 6, 2)).cumsum(1)
    return TrackWindows(positions, np.array([0, 3, 5]), "here")


def test_ego_track_ends_at_the_origin_and_moves_along_x():
    history, counts, _, _ = to_agent_frames(make_windows(), range(5), observed=4, neighbors=9)
    assert counts.tolist() == [3, 3, 3, 2, 2]
    np.testing.assert_allclose(history[:, 0, 3], 0, atol=1e-12)
    np.testing.assert_allclose(history[:, 0, 0, 1], 0, atol=1e-12)
    assert (history[:, 0, 0, 0] < 0).all()
    distance = np.linalg.norm(history[:, :, 3], axis=-1)
    assert (distance[:3, 1] <= distance[:3, 2]).all()


def test_agent_frames_are_invariant_and_invertible():
    original = make_windows()
    angle = 0.7
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = TrackWindows(original.positions @ rotation.T + (3, -8), original.offsets, "moved")
    sizes = {"observed": 4, "neighbors": 2}
    frames = [to_agent_frames(windows, range(5), **sizes) for windows in (original, moved)]
    for before, after in zip(frames[0][:3], frames[1][:3], strict=True):
        np.testing.assert_allclose(before, after, atol=1e-10)
    _, _, future, rotations = to_agent_frames(moved, range(5), **sizes)
    np.testing.assert_allclose(
        moved.positions[:, 3:4] + future @ rotations, moved.positions[:, 4:], atol=1e-10
    )


def test_fewer_neighbors_are_the_nearest_and_zero_is_the_ego_agent_alone():
    complete, _, _, _ = to_agent_frames(make_windows(), [0], observed=4, neighbors=9)
    nearest, counts, _, _ = to_agent_frames(make_windows(), [0], observed=4, neighbors=1)
    np.testing.assert_array_equal(nearest, complete[:, :2])
    assert counts.tolist() == [2]
    assert to_agent_frames(make_windows(), [0], observed=4, neighbors=0)[0].shape == (1, 1, 4, 2)


def test_batches_hold_every_agent_once_and_mirror_and_scale_consistently():
    config = TracksConfig(observed=4, predicted=2, neighbors=2)
    plain = TrackBatches(make_windows(), config, rows=2, seed=3, is_fixed=True)
    assert plain.plan(0) == [(0, 1), (2, 3), (4,)]
    augmented = TrackBatches(make_windows(), config, rows=2, seed=3)
    assert sorted(row for rows in augmented.plan(1) for row in rows) == list(range(5))
    is_mirrored = set()
    for epoch in range(8):
        batch, changed = plain.collate(epoch, (1,)), augmented.collate(epoch, (1,))
        ratio = changed.source.items[0, 1, 0] / batch.source.items[0, 1, 0]
        torch.testing.assert_close(changed.target[0], batch.target[0] * ratio)
        assert 0.8 <= float(ratio[0]) <= 1.3
        is_mirrored.add(bool(ratio[1] < 0))
    assert is_mirrored == {True, False}


def test_synthetic_crowds_repeat_and_differ_between_splits():
    config = TracksConfig()
    first, second = make_tracks("val", 1, config), make_tracks("val", 1, config)
    np.testing.assert_array_equal(first.positions, second.positions)
    assert first.positions.shape[1:] == (20, 2)
    assert not np.array_equal(make_tracks("test", 1, config).positions[:10], first.positions[:10])
