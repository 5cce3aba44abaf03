"""Trajectories of all people of a scene: formula, permutations, padding, files to answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.attention.masks import Padded
from regard.data.batches import Batch, plan_by_sum
from regard.data.config import TracksConfig
from regard.data.tracks import SceneBatches, TrackWindows
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_forecaster
from regard.models.config import ForecasterConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.readers.tracks import AgentFrames
from regard.models.writers.tracks import SceneTrackWriter
from regard.recipes.load import load
from tests.helpers import close, without_gradient
from tests.recipes.capture_checks import check_capture, check_test_input
from tests.recipes.commands import command, failure, printed_json, report
from tests.recipes.toy_tracks import circles, train_circles, write_recording

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
    return build_forecaster(config, observed=OBSERVED, predicted=PREDICTED).double().eval()


def random_model():
    model = make_model()
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
        track, output = scenes.items[0, agent], model.writer.output
        angle = torch.atan2(*(track[-1] - track[0]).flip(0))
        turn = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
        change = (output.weight @ items[0, agent] + output.bias).view(PREDICTED, 2)
        ahead = torch.arange(1, PREDICTED + 1)[:, None] * (track[-1] - track[-2])
        close(out[0, agent], track[-1] + ahead + change @ turn.T)


@pytest.mark.parametrize("joint", [True, False])
def test_several_paths_of_equal_weights_are_the_only_path(joint):
    """Each path is in the frames of its agents, and padding has none."""
    config, models = ForecasterConfig(core=CORES["transformer"], joint=joint, dropout=0.0), []
    for paths in (1, 3):
        config = replace(config, paths=paths)
        torch.manual_seed(1)
        models.append(build_forecaster(config, observed=OBSERVED, predicted=PREDICTED).double())
    one, several = (model.eval() for model in models)
    torch.nn.init.normal_(one.writer.output.weight)
    tensors = one.state_dict()
    for name in ("writer.output.weight", "writer.output.bias"):
        logits = torch.randn(3, *tensors[name].shape[1:], dtype=torch.float64)
        tensors[name] = torch.cat((*[tensors[name]] * 3, logits))
    several.load_state_dict(tensors)
    out, (paths, probability) = one(make_scenes()), several(make_scenes())
    close(paths, out.unsqueeze(-3).expand_as(paths))
    close(probability.sum(-1), torch.ones_like(probability[..., 0]))
    assert (probability[..., :-1] >= probability[..., 1:]).all()


def test_another_order_of_the_agents_is_another_order_of_the_paths():
    model, scenes = random_model(), make_scenes()
    out, order = model(scenes), [3, 0, 4, 1, 2]
    close(model(Padded(scenes.items[:1, order], scenes.lengths[:1])), out[:1, order])
    moved = scenes.items.clone()
    moved[0, 4] += 1.0
    change = model(scenes._replace(items=moved))[0, 0] - out[0, 0]
    assert change.abs().max() > 1e-4  # agents attend to one another


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
    assert plan_by_sum([3, 4, 9, 1, 1, 5], 8) == [range(2), range(2, 3), range(3, 6)]
    assert plan_by_sum([], 8) == []
    positions = np.random.default_rng(1).normal(size=(9, 20, 2)) + 100
    windows = TrackWindows(positions, np.array([0, 4, 6, 9]), "windows")
    batches = SceneBatches(windows, TracksConfig(), rows=6, seed=0, is_fixed=True)
    assert batches.plan(0) == [(0, 1), (2,)]
    batch = batches.collate(0, (0, 1))
    assert batch.source.lengths.tolist() == [4, 2]
    scene = np.concatenate((batch.source.items[0].numpy(), batch.target.items[0].numpy()), 1)
    np.testing.assert_allclose(scene, positions[:4] - positions[:4, 7].mean(0), atol=1e-5)
    # Turned, mirrored and scaled: shapes are kept.
    augmented = SceneBatches(windows, TracksConfig(), rows=6, seed=0)
    turned = augmented.collate(0, (0,)).source.items[0].numpy()
    sides = [np.linalg.norm(np.diff(part, axis=1), axis=-1) for part in (turned, scene[:, :8])]
    ratio = sides[0] / sides[1]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    assert not np.allclose(turned, scene[:, :8])


@pytest.mark.usefixtures("no_shape_checks")
def test_other_sources_and_targets_are_refused():
    model, scenes = make_model(), make_scenes()
    paths = Padded(torch.zeros(2, 5, PREDICTED, 2), scenes.lengths)
    assert model.loss(Batch(scenes, paths)).total.isfinite()
    with pytest.raises(ValueError, match="the target of SceneTrackWriter must have the shape"):
        model.loss(Batch(scenes, paths._replace(items=paths.items[:, :1])))
    items = model.reader(make_scenes())
    with pytest.raises(ValueError, match=r"`source` must be tracks \(batch, agents, observed, 2\)"):
        SceneTrackWriter(12, 3).read(model.core, items, source=torch.zeros(2, 5))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    train_circles(folder, "--model.joint true", crowd=3)
    return folder / "run"


def test_all_people_are_predicted_better_than_by_constant_velocity(run):
    test = report(run)
    assert test["examples"] == 20
    assert test["ade"] < 0.3 * test["ade_constant_velocity"]
    assert "all people of a window at once" in test["signature"]


def test_a_scene_is_answered_as_a_whole(run, capsys, tmp_path):
    trained, tracks, file = load(run), circles(3, 4, 5), tmp_path / "now.txt"
    observed = tracks[:, :6]
    paths, pair = trained.predict([observed, observed[:2]])
    assert (paths.shape, pair.shape) == ((3, 4, 2), (2, 4, 2))
    assert np.linalg.norm(paths - tracks[:, 6:], axis=-1).mean() < 0.4
    other, far = trained.predict([observed[[2, 0, 1]], observed + 100])
    np.testing.assert_allclose(other, paths[[2, 0, 1]], atol=1e-5)
    np.testing.assert_allclose(far, paths + 100, atol=1e-4)
    write_recording(file, observed)
    answer = printed_json(capsys, "predict", run, file)
    assert answer["frames"] == [60, 70, 80, 90]
    assert [track["id"] for track in answer["tracks"]] == ["0", "1", "2"]
    np.testing.assert_allclose([track["positions"] for track in answer["tracks"]], paths, atol=1e-5)
    (maps,) = check_capture(trained, [file])
    assert maps.sample.axes["source"].labels == ("0", "1", "2")
    assert maps.sample.axes["source"].places == ((0.0,), (1.0,), (2.0,))
    futures = [track.future for track in maps.sample.pictures["plane"].tracks]
    assert np.allclose(futures, paths, atol=1e-5)
    assert maps.find("encoder self")[0].weights.shape[1:] == (3, 3)
    command("look", run, file, "--out", tmp_path / "plane.svg")
    check_test_input(trained)


def test_neighbors_are_refused_as_they_have_no_effect(tmp_path, capsys):
    words = f"train tracks --model.joint true --data.neighbors 3 --run {tmp_path}/no"
    assert "--data.neighbors must not be given with model.joint" in failure(capsys, words)
