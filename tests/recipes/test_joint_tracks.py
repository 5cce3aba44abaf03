"""Trajectories of all people of a scene: formula, permutations, padding, files to answers."""

import json

import numpy as np
import pytest
import torch

from regard.attention.masks import Padded
from regard.cli.main import main
from regard.data.config import TracksConfig
from regard.data.tracks import SceneBatches, TrackWindows, plan_scenes
from regard.errors import UserError
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_forecaster
from regard.models.config import ForecasterConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.readers.tracks import AgentFrames
from regard.models.writers.tracks import SceneTrackWriter
from regard.recipes.load import load
from tests.helpers import close, without_gradient
from tests.recipes.capture_checks import check_capture, check_test_input

CORES = {
    "transformer": TransformerConfig(
        layers=2, width=12, heads=3, feedforward=17, positions=NoPositionsConfig()
    ),
    "recurrent": RecurrentConfig(width=12, hidden=14),
}
OBSERVED, PREDICTED = 4, 3


def make_model(core: str = "transformer"):
    torch.manual_seed(1)
    config = ForecasterConfig(core=CORES[core], joint=True, dropout=0.0)
    model = build_forecaster(config, observed=OBSERVED, predicted=PREDICTED).double().eval()
    return model


def random_model(core: str = "transformer"):
    model = make_model(core)
    torch.nn.init.normal_(model.writer.output.weight)
    return model


def make_scenes() -> Padded:
    torch.manual_seed(2)
    return Padded(torch.randn(2, 5, OBSERVED, 2, dtype=torch.float64), torch.tensor([5, 3]))


@pytest.mark.parametrize("core", CORES)
def test_initially_every_agent_keeps_its_velocity(core):
    scenes, out = make_scenes(), make_model(core)(make_scenes())
    step = scenes.items[:, :, -1] - scenes.items[:, :, -2]
    expected = scenes.items[:, :, -1:] + torch.stack([step, 2 * step, 3 * step], 2)
    expected[1, 3:] = 0  # padding is nobody
    close(out, expected)


def test_each_path_is_the_formula_of_its_own_item():
    """The change of each agent is turned by its own heading, computed with angles."""
    model, scenes = random_model(), make_scenes()
    items = model.core.encode(model.reader(scenes)).items
    out = model(scenes)
    for agent in range(5):
        track = scenes.items[0, agent]
        angle = torch.atan2(*(track[-1] - track[0]).flip(0))
        turn = torch.stack(
            (torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos())))
        )
        change = (model.writer.output.weight @ items[0, agent] + model.writer.output.bias).reshape(
            PREDICTED, 2
        )
        ahead = torch.arange(1, PREDICTED + 1)[:, None] * (track[-1] - track[-2])
        close(out[0, agent], track[-1] + ahead + change @ turn.T)


def test_another_order_of_the_agents_is_another_order_of_the_paths():
    model, scenes = random_model(), make_scenes()
    out, order = model(scenes), [3, 0, 4, 1, 2]
    close(model(Padded(scenes.items[:1, order], scenes.lengths[:1])), out[:1, order])
    moved = scenes.items.clone()
    moved[0, 4] += 1.0
    assert (
        model(scenes._replace(items=moved))[0, 0] - out[0, 0]
    ).abs().max() > 1e-4  # agents attend to one another


def test_padding_has_no_effect():
    model, scenes = random_model(), make_scenes()
    alone = model(Padded(scenes.items[1:, :3], torch.tensor([3])))
    close(model(scenes)[1:, :3], alone)
    other = scenes.items.clone()
    other[1, 3:] = 99.0
    close(model(scenes._replace(items=other)), model(scenes))


def test_loss_is_the_mean_distance_of_all_agents():
    model, scenes = random_model(), make_scenes()
    target = Padded(torch.randn(2, 5, PREDICTED, 2, dtype=torch.float64), scenes.lengths)
    batch = type("Scenes", (), {"source": scenes, "target": target})
    loss = model.loss(batch)
    assert loss.count == 8
    out = model(scenes)
    real = [(0, agent) for agent in range(5)] + [(1, agent) for agent in range(3)]
    expected = sum((out[where] - target.items[where]).norm(dim=-1).mean() for where in real)
    close(loss.total, expected)
    loss.total.backward()
    key_biases = {name for name, _ in model.named_parameters() if name.endswith(".key.bias")}
    assert without_gradient(model) == key_biases


def test_frames_lead_there_and_back():
    tracks = make_scenes().items
    tracks[0, 0] = tracks[0, 0, :1]  # somebody who stands
    frames = AgentFrames.of(tracks)
    close(frames.leave(frames.enter(tracks)), tracks)
    own = frames.enter(tracks)
    close(own[:, :, -1], torch.zeros(2, 5, 2, dtype=torch.float64))
    close(own[0, 1:, 0, 1], torch.zeros(4, dtype=torch.float64))  # the motion is along x
    assert (own[0, 1:, 0, 0] < 0).all()
    close(own[0, 0], torch.zeros(OBSERVED, 2, dtype=torch.float64))


def test_scenes_are_batched_by_their_agents():
    assert plan_scenes([3, 4, 9, 1, 1, 5], 8) == [range(2), range(2, 3), range(3, 6)]
    assert plan_scenes([], 8) == []
    positions = np.random.default_rng(1).normal(size=(9, 20, 2)) + 100
    windows = TrackWindows(positions, np.array([0, 4, 6, 9]), "windows")
    batches = SceneBatches(windows, TracksConfig(), rows=6, seed=0)
    assert batches.plan(0) == [(0, 1), (2,)]
    batch = batches.collate(0, (0, 1))
    assert batch.source.lengths.tolist() == [4, 2]
    scene = np.concatenate((batch.source.items[0].numpy(), batch.target.items[0].numpy()), 1)
    np.testing.assert_allclose(scene, positions[:4] - positions[:4, 7].mean(0), atol=1e-5)
    turned = (
        SceneBatches(windows, TracksConfig(), rows=6, seed=0, augment=True)
        .collate(0, (0,))
        .source.items[0]
    )
    sides = [
        np.linalg.norm(np.diff(part, axis=1), axis=-1) for part in (turned.numpy(), scene[:, :8])
    ]
    ratio = sides[0] / sides[1]
    np.testing.assert_allclose(
        ratio, ratio[0, 0], rtol=1e-4
    )  # turned, mirrored and scaled: shapes are kept
    assert not np.allclose(turned, scene[:, :8])


@pytest.mark.usefixtures("no_shape_checks")
def test_other_sources_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match=r"`source` must be tracks \(batch, agents, observed, 2\)"):
        SceneTrackWriter(12, 3).read(
            model.core, model.reader(make_scenes()), source=torch.zeros(2, 5)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train on pairs of people who walk in circles, which constant velocity does not predict."""
    folder, draw = tmp_path_factory.mktemp("scenes"), np.random.default_rng(1)
    for name, pairs in (("train", 40), ("val", 8), ("test", 8)):
        lines = []
        for pair in range(pairs):
            phase, speed = draw.uniform(0, 6), draw.uniform(0.25, 0.35)
            for t in range(10):
                for person in range(2 + pair % 2):
                    angle = phase + speed * t
                    x, y = (3 + person) * np.cos(angle), (3 + person) * np.sin(angle)
                    lines.append(f"{1000 * pair + 10 * t}\t{3 * pair + person}\t{x:.4f}\t{y:.4f}\n")
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
    assert (
        main(
            (
                f"train tracks --model.joint true --run {folder / 'run'} {files} {small} {limits}"
            ).split()
        )
        == 0
    )
    return folder


def test_all_people_are_predicted_better_than_by_constant_velocity(run):
    test = json.loads((run / "run" / "report.json").read_text())["test"]
    assert test["examples"] == 20
    assert test["ade"] < 0.3 * test["ade_constant_velocity"]
    assert "all people of a window at once" in test["signature"]


def test_a_scene_is_answered_as_a_whole(run, capsys, tmp_path):
    trained, angles = load(run / "run"), 0.3 * np.arange(10)
    tracks = np.stack([np.stack((r * np.cos(angles), r * np.sin(angles)), -1) for r in (3, 4, 5)])
    paths, pair = trained.predict([tracks[:, :6], tracks[:2, :6]])
    assert paths.shape == (3, 4, 2)
    assert pair.shape == (2, 4, 2)
    assert np.linalg.norm(paths - tracks[:, 6:], axis=-1).mean() < 0.4
    (other,) = trained.predict([tracks[[2, 0, 1], :6]])
    np.testing.assert_allclose(other, paths[[2, 0, 1]], atol=1e-5)
    (far,) = trained.predict([tracks[:, :6] + 100])
    np.testing.assert_allclose(far, paths + 100, atol=1e-4)
    rows = [
        f"{10 * t} {person} {x} {y}\n"
        for t in range(6)
        for person, (x, y) in enumerate(tracks[:, t])
    ]
    (tmp_path / "now.txt").write_text("".join(rows), encoding="utf-8")
    assert main(["predict", str(run / "run"), str(tmp_path / "now.txt"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["frames"] == [60, 70, 80, 90]
    assert [track["id"] for track in answer["tracks"]] == ["0", "1", "2"]
    np.testing.assert_allclose([track["positions"] for track in answer["tracks"]], paths, atol=1e-5)
    (maps,) = check_capture(trained, [tmp_path / "now.txt"])
    assert maps.sample.axes["source"].labels == ("0", "1", "2")
    assert maps.sample.axes["source"].places == ((0.0,), (1.0,), (2.0,))
    assert np.allclose(
        [track.future for track in maps.sample.pictures["plane"].tracks], paths, atol=1e-5
    )
    assert maps.find("encoder self")[0].weights.shape[1:] == (3, 3)
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
    check_test_input(trained)


def test_neighbors_are_refused_as_they_have_no_effect(run, capsys):
    arguments = f"train tracks --model.joint true --data.neighbors 3 --run {run / 'no'}"
    assert main(arguments.split()) == 2
    assert "--data.neighbors must not be given with --model.joint" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"data.neighbors"):
        load(run / "run").config.__class__(
            data=TracksConfig(neighbors=3), model=ForecasterConfig(joint=True)
        )
