"""Tracks: files, windows, and views that do not change when the world is moved, turned or shuffled."""

import numpy as np
import pytest
import torch

from regard.data.config import TracksConfig
from regard.data.tracks import TrackBatches, Windows, made_tracks, read_windows, views, windows_of
from regard.errors import UserError


def test_windows_hold_whoever_is_there_all_the_time_and_gaps_in_the_frames_do_not_matter():
    frames = {10.0 * t: {"1": (t, 0.0), "2": (0.0, t)} for t in (0, 1, 2, 5, 6)}
    frames[50.0]["3"] = (9.0, 9.0)
    del frames[60.0]["2"]
    found = windows_of(frames, 3, least=2)
    assert [window.shape for window in found] == [(2, 3, 2), (2, 3, 2)]
    assert found[1][:, :, 0].tolist() == [[1, 2, 5], [0, 0, 0]]
    assert [len(window) for window in windows_of(frames, 3, least=1)] == [2, 2, 1]


def test_recordings_without_a_window_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("0 1 2 3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.txt: nowhere are 2 people there in 20 frames in a row"):
        read_windows([tmp_path / "a.txt"], TracksConfig())


def world(seed: int = 1) -> Windows:
    positions = np.random.default_rng(seed).normal(size=(5, 6, 2)).cumsum(1)
    return Windows(positions, np.array([0, 3, 5]), "here")


def test_own_track_ends_at_the_origin_and_came_along_x():
    seen, counts, _, _ = views(world(), range(5), observed=4, neighbors=9)
    assert counts.tolist() == [3, 3, 3, 2, 2]
    np.testing.assert_allclose(seen[:, 0, 3], 0, atol=1e-12)
    np.testing.assert_allclose(seen[:, 0, 0, 1], 0, atol=1e-12)
    assert (seen[:, 0, 0, 0] < 0).all()
    distance = np.linalg.norm(seen[:, :, 3], axis=-1)
    assert (distance[:3, 1] <= distance[:3, 2]).all()


def test_views_do_not_change_with_the_world_and_lead_back():
    here = world()
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    there = Windows(here.positions @ turn.T + (3, -8), here.offsets, "there")
    sizes = {"observed": 4, "neighbors": 2}
    for one, other in zip(views(here, range(5), **sizes)[:3], views(there, range(5), **sizes)[:3], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    _, _, future, turns = views(there, range(5), **sizes)
    np.testing.assert_allclose(there.positions[:, 3:4] + future @ turns, there.positions[:, 4:], atol=1e-10)


def test_fewer_neighbors_are_the_nearest_and_none_is_oneself_alone():
    everybody, _, _, _ = views(world(), [0], observed=4, neighbors=9)
    one, counts, _, _ = views(world(), [0], observed=4, neighbors=1)
    np.testing.assert_array_equal(one, everybody[:, :2])
    assert counts.tolist() == [2]
    assert views(world(), [0], observed=4, neighbors=0)[0].shape == (1, 1, 4, 2)


def test_batches_hold_everybody_once_and_mirror_and_scale_alike():
    config = TracksConfig(observed=4, predicted=2, neighbors=2)
    plain = TrackBatches(world(), config, rows=2, seed=3)
    assert plain.plan(0) == [(0, 1), (2, 3), (4,)]
    changing = TrackBatches(world(), config, rows=2, seed=3, augment=True)
    assert sorted(row for rows in changing.plan(1) for row in rows) == list(range(5))
    seen = set()
    for epoch in range(8):
        one, other = plain.collate(epoch, (1,)), changing.collate(epoch, (1,))
        ratio = other.source.items[0, 1, 0] / one.source.items[0, 1, 0]
        torch.testing.assert_close(other.target[0], one.target[0] * ratio)
        assert 0.8 <= float(ratio[0]) <= 1.3
        seen.add(bool(ratio[1] < 0))
    assert seen == {True, False}


def test_made_up_crowds_repeat_and_keep_apart():
    config = TracksConfig()
    one, other = made_tracks("val", 1, config), made_tracks("val", 1, config)
    np.testing.assert_array_equal(one.positions, other.positions)
    assert one.positions.shape[1:] == (20, 2)
    assert not np.array_equal(made_tracks("test", 1, config).positions[:10], one.positions[:10])
