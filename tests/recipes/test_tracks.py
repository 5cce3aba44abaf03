"""Trajectory forecasting: initial velocity, neighbors as a set, files to answers."""

import json

import numpy as np
import pytest
import torch

from regard.attention.masks import Padded
from regard.cli.main import main
from regard.errors import UserError
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_forecaster
from regard.models.config import EncoderConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.recipes.load import load
from regard.recipes.tracks.recipe import displacement_errors
from tests.helpers import close
from tests.recipes.capture_checks import check_capture, check_test_input

CORES = {
    "transformer": TransformerConfig(
        layers=2, width=12, heads=3, feedforward=17, positions=NoPositionsConfig()
    ),
    "recurrent": RecurrentConfig(width=12, hidden=14),
    "self-attentive": SelfAttentiveConfig(width=12, hidden=14, self_attention_hidden=5),
}


@pytest.mark.parametrize("core", CORES)
def test_initial_forecaster_predicts_constant_velocity(core):
    model = build_forecaster(EncoderConfig(core=CORES[core]), observed=4, predicted=3).eval()
    tracks = torch.randn(2, 5, 4, 2)
    out = model(Padded(tracks, torch.tensor([5, 2])))
    step = tracks[:, 0, 3] - tracks[:, 0, 2]
    close(out, torch.stack([step, 2 * step, 3 * step], 1))


def test_neighbors_are_a_set_and_padding_is_ignored():
    torch.manual_seed(1)
    model = (
        build_forecaster(EncoderConfig(core=CORES["transformer"]), observed=4, predicted=3)
        .double()
        .eval()
    )
    torch.nn.init.normal_(model.writer.output.weight)
    tracks = torch.randn(1, 5, 4, 2, dtype=torch.float64)
    out = model(Padded(tracks, torch.tensor([4])))
    close(model(Padded(tracks[:, [0, 3, 1, 2, 4]], torch.tensor([4]))), out)
    close(model(Padded(tracks[:, :4], torch.tensor([4]))), out)
    assert (model(Padded(tracks[:, [1, 0, 2, 3, 4]], torch.tensor([4]))) - out).abs().max() > 1e-3


def test_errors_by_hand():
    target = torch.zeros(2, 2, 2)
    paths = torch.tensor([[[3.0, 4], [0, 2]], [[0, 0], [6, 8]]])
    assert displacement_errors(paths, target) == (
        pytest.approx((5 + 2 + 0 + 10) / 4),
        pytest.approx((2 + 10) / 2),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train on pairs of people who walk in circles, which constant velocity does not predict."""
    folder, draw = tmp_path_factory.mktemp("tracks"), np.random.default_rng(1)
    for name, pairs in (("train", 40), ("val", 8), ("test", 8)):
        lines = []
        for pair in range(pairs):
            phase, speed = draw.uniform(0, 6), draw.uniform(0.25, 0.35)
            for t in range(10):
                for person in (0, 1):
                    angle = phase + speed * t
                    x, y = (3 + person) * np.cos(angle), (3 + person) * np.sin(angle)
                    lines.append(f"{1000 * pair + 10 * t}\t{2 * pair + person}\t{x:.4f}\t{y:.4f}\n")
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.txt" for name in ("train", "val", "test"))
    small = (
        "--data.observed 6 --data.predicted 4 --model.core.width 24 "
        "--model.core.layers 1 --model.dropout 0"
    )
    limits = (
        "--train.steps 200 --train.lr 5e-3 --train.warmup 10 "
        "--train.validate-every 100 --train.tensorboard false"
    )
    assert main(f"train tracks --run {folder / 'run'} {files} {small} {limits}".split()) == 0
    return folder


def test_learns_more_than_the_constant_velocity_baseline(run):
    test = json.loads((run / "run" / "report.json").read_text())["test"]
    assert test["examples"] == 16
    assert test["ade"] < 0.25 * test["ade_constant_velocity"]


def test_answers_for_the_last_frames_of_a_recording(run, capsys, tmp_path):
    angles = 0.3 * np.arange(10)
    tracks = np.stack([np.stack((r * np.cos(angles), r * np.sin(angles)), -1) for r in (3, 4)])
    (paths,) = load(run / "run").predict([tracks[:, :6]])
    assert np.linalg.norm(paths - tracks[:, 6:], axis=-1).mean() < 0.4
    rows = [
        f"{10 * t} {person} {x} {y}\n"
        for t in range(6)
        for person, (x, y) in enumerate(tracks[:, t])
    ]
    (tmp_path / "now.txt").write_text("".join(rows), encoding="utf-8")
    assert main(["predict", str(run / "run"), str(tmp_path / "now.txt")]) == 0
    rows_out = np.array(
        [
            [float(word) for word in line.split("\t")]
            for line in capsys.readouterr().out.splitlines()
        ]
    )
    assert rows_out[:, 0].tolist() == [60, 60, 70, 70, 80, 80, 90, 90]
    np.testing.assert_allclose(
        rows_out[:, 2:].reshape(4, 2, 2).transpose(1, 0, 2), paths, atol=1e-3
    )
    assert (
        main(
            [
                "look",
                str(run / "run"),
                str(tmp_path / "now.txt"),
                "--out",
                str(tmp_path / "plane.svg"),
            ]
        )
        == 0
    )
    assert (
        f"now.txt: 0 -&gt; ({paths[0, -1, 0]:.2f}, {paths[0, -1, 1]:.2f})"
        in (tmp_path / "plane.svg").read_text()
    )
    assert np.array_equal(
        load(run / "run").predict([tmp_path / "now.txt"])[0].round(3), paths.round(3)
    )
    (first, second) = check_capture(load(run / "run"), [tmp_path / "now.txt"])
    assert first.sample.axes["source"].labels == ("0 (self)", "1")
    assert second.sample.axes["source"].labels == ("1 (self)", "0")
    assert second.sample.axes["source"].places == ((1.0,), (0.0,))
    x, y = paths[1, -1]
    assert second.sample.title == f"now.txt: 1 -> ({x:.2f}, {y:.2f})"
    assert first.sample.pictures["plane"] is second.sample.pictures["plane"]


def test_people_attend_to_their_neighbors_nearest_first(run):
    """In a line of people the neighbors of each are ordered by distance, and weights are permuted
    with them."""
    trained, observed = load(run / "run"), 6
    steps = 0.3 * np.arange(observed)
    tracks = np.stack(
        [np.stack((np.full(observed, x), steps), -1) for x in (0.0, 1.0, 3.0, 7.0, 20.0)]
    )
    capture = check_capture(trained, [tracks])
    orders = [
        [int(position[0]) for position in sample_maps.sample.axes["source"].places]
        for sample_maps in capture
    ]
    assert orders == [
        [0, 1, 2, 3, 4],
        [1, 0, 2, 3, 4],
        [2, 1, 0, 3, 4],
        [3, 2, 1, 0, 4],
        [4, 3, 2, 1, 0],
    ]
    plane = capture[0].sample.pictures["plane"]
    assert np.allclose([track.history for track in plane.tracks], tracks)
    assert np.allclose([track.future for track in plane.tracks], trained.predict([tracks])[0])
    # The order of the list does not matter to the model: weights are permuted with it.
    other = [3, 0, 4, 1, 2]
    for sample_maps, person in zip(check_capture(trained, [tracks[other]]), other, strict=True):
        same_person = capture[person].find("encoder self")[-1].weights
        torch.testing.assert_close(
            sample_maps.find("encoder self")[-1].weights, same_person, atol=1e-5, rtol=0
        )


def test_a_crowd_shows_its_first_twenty_people(run):
    draw = np.random.default_rng(1)
    tracks = draw.normal(size=(23, 1, 2)) * 5 + 0.1 * np.arange(6)[:, None]
    capture = check_capture(load(run / "run"), [tracks, tracks[:2]])
    assert len(capture) == 22
    assert len(capture[0].sample.pictures["plane"].tracks) == 23
    titles = [sample_maps.sample.title.partition(":")[0] for sample_maps in capture]
    assert titles == ["tracks 1"] * 20 + ["tracks 2"] * 2


def test_positions_have_no_probability(run):
    with pytest.raises(UserError, match="this run predicts positions, which have no probability"):
        load(run / "run").look([np.zeros((3, 6, 2))], gradients=True)


def test_a_window_of_the_test_data_is_an_input(run):
    test_input = check_test_input(load(run / "run"))
    assert test_input.shape == (2, 6, 2)
    trained = load(run / "run")
    assert trained.look([trained.test_input(3)], names=["window 3"])[0].sample.title.startswith(
        "window 3: 0 -> ("
    )


def test_a_core_without_attention_is_refused_and_a_self_attentive_one_shown(tmp_path):
    for core in ("recurrent", "self-attentive"):
        small = (
            f"--model.core {core} --model.core.width 8 --model.core.hidden "
            f"8 --train.tensorboard false"
        )
        assert main(f"train tracks --run {tmp_path / core} {small} --train.steps 1".split()) == 0
    tracks = np.random.default_rng(1).normal(size=(3, 8, 2))
    with pytest.raises(UserError, match="the model has no attention layers"):
        load(tmp_path / "recurrent").look([tracks])
    for sample_maps in check_capture(load(tmp_path / "self-attentive"), [tracks]):
        assert {attention_map.kind for attention_map in sample_maps.maps} == {"chain"}
        assert {attention_map.queries for attention_map in sample_maps.maps} == {
            "source",
            "reversed source",
        }


def test_recording_that_is_too_short_is_named(run, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("0 1 2 3\n", encoding="utf-8")
    assert main(["predict", str(run / "run"), str(tmp_path / "short.txt")]) == 2
    assert "no person is present in all of the last 6 frames" in capsys.readouterr().err
    for bad, message in [
        (
            np.zeros((1, 3, 2)),
            r"input 1: tracks must be \(people, 6 observed, 2\), got \(1, 3, 2\)",
        ),
        (np.zeros((0, 6, 2)), r"got \(0, 6, 2\)"),
        ([[["a", "b"]]], r"input 1: tracks must be \(people, 6 observed, 2\): could not convert"),
        ({}, r"input 1: tracks must be \(people, 6 observed, 2\): float"),
        (np.full((1, 6, 2), np.nan), "tracks must be finite"),
    ]:
        with pytest.raises(UserError, match=message):
            load(run / "run").predict([bad])
