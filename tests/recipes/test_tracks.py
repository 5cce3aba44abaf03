"""Trajectory forecasting: initial velocity, neighbors as a set, files to answers."""

import numpy as np
import pytest
import torch

from benchmarks.cars import make_platoon, write_cars
from regard.attention.masks import Padded
from regard.errors import UserError
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_forecaster
from regard.models.config import ForecasterConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.readers.tracks import SceneTrackReader, TrackReader
from regard.recipes.load import load
from tests.helpers import close
from tests.recipes.capture_checks import check_capture, check_test_input
from tests.recipes.commands import command, failure, printed, report
from tests.recipes.toy_tracks import circles, train_circles, write_recording

CORES = {
    "transformer": TransformerConfig(
        layers=2, width=12, heads=3, feedforward=17, positions=NoPositionsConfig()
    ),
    "recurrent": RecurrentConfig(width=12, hidden=14),
    "self-attentive": SelfAttentiveConfig(width=12, hidden=14, self_attention_hidden=5),
}


@pytest.mark.parametrize("core", CORES)
def test_initial_forecaster_predicts_constant_velocity(core):
    model = build_forecaster(ForecasterConfig(core=CORES[core]), observed=4, predicted=3).eval()
    tracks = torch.randn(2, 5, 4, 2)
    out = model(Padded(tracks, torch.tensor([5, 2])))
    step = tracks[:, 0, 3] - tracks[:, 0, 2]
    close(out, torch.stack([step, 2 * step, 3 * step], 1))


def test_neighbors_are_a_set_and_padding_is_ignored():
    torch.manual_seed(1)
    config = ForecasterConfig(core=CORES["transformer"])
    model = build_forecaster(config, observed=4, predicted=3).double().eval()
    torch.nn.init.normal_(model.writer.output.weight)
    tracks = torch.randn(1, 5, 4, 2, dtype=torch.float64)
    out = model(Padded(tracks, torch.tensor([4])))
    close(model(Padded(tracks[:, [0, 3, 1, 2, 4]], torch.tensor([4]))), out)
    close(model(Padded(tracks[:, :4], torch.tensor([4]))), out)
    assert (model(Padded(tracks[:, [1, 0, 2, 3, 4]], torch.tensor([4]))) - out).abs().max() > 1e-3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracks")
    train_circles(folder, "", crowd=2)
    return folder / "run"


def test_learns_more_than_the_constant_velocity_baseline(run):
    test = report(run)
    assert test["examples"] == 16
    assert test["ade"] < 0.25 * test["ade_constant_velocity"]


def test_answers_for_the_last_frames_of_a_recording(run, capsys, tmp_path):
    trained, tracks, file = load(run), circles(3, 4), tmp_path / "now.txt"
    (paths,) = trained.predict([tracks[:, :6]])
    assert np.linalg.norm(paths - tracks[:, 6:], axis=-1).mean() < 0.4
    write_recording(file, tracks[:, :6])
    lines = printed(capsys, "predict", run, file).splitlines()
    rows = np.array([line.split("\t") for line in lines])
    assert rows[:, 0].tolist() == ["60", "60", "70", "70", "80", "80", "90", "90"]
    places = rows[:, 2:].astype(float).reshape(4, 2, 2).transpose(1, 0, 2)
    np.testing.assert_allclose(places, paths, atol=1e-3)
    command("look", run, file, "--out", tmp_path / "plane.svg")
    x, y = paths[0, -1]
    assert f"now.txt: 0 -&gt; ({x:.2f}, {y:.2f})" in (tmp_path / "plane.svg").read_text()
    np.testing.assert_allclose(trained.predict([file])[0], paths, atol=1e-3)
    first, second = check_capture(trained, [file])
    assert first.sample.axes["source"].labels == ("0 (self)", "1")
    assert second.sample.axes["source"].labels == ("1 (self)", "0")
    assert second.sample.axes["source"].places == ((1.0,), (0.0,))
    x, y = paths[1, -1]
    assert second.sample.title == f"now.txt: 1 -> ({x:.2f}, {y:.2f})"
    assert first.sample.pictures["plane"] is second.sample.pictures["plane"]


def test_people_attend_to_their_neighbors_nearest_first(run):
    """In a line of people the neighbors of each are ordered by distance."""
    trained, steps = load(run), 0.3 * np.arange(6)
    line = [np.stack((np.full(6, x), steps), -1) for x in (0.0, 1.0, 3.0, 7.0, 20.0)]
    tracks = np.stack(line)
    capture = check_capture(trained, [tracks])
    axes = [sample_maps.sample.axes["source"] for sample_maps in capture]
    orders = ["".join(f"{place[0]:g}" for place in axis.places) for axis in axes]
    assert orders == ["01234", "10234", "21034", "32104", "43210"]
    plane = capture[0].sample.pictures["plane"]
    assert np.allclose([track.history for track in plane.tracks], tracks)
    assert np.allclose([track.future for track in plane.tracks], trained.predict([tracks])[0])
    # The order of the list does not matter to the model: weights are permuted with it.
    other = [3, 0, 4, 1, 2]
    for sample_maps, person in zip(check_capture(trained, [tracks[other]]), other, strict=True):
        (*_, last), (*_, expected) = (
            maps.find("encoder self") for maps in (sample_maps, capture[person])
        )
        close(last.weights, expected.weights)


def test_a_crowd_shows_its_first_twenty_people(run):
    draw = np.random.default_rng(1)
    tracks = draw.normal(size=(23, 1, 2)) * 5 + 0.1 * np.arange(6)[:, None]
    capture = check_capture(load(run), [tracks, tracks[:2]])
    assert len(capture[0].sample.pictures["plane"].tracks) == 23
    titles = [sample_maps.sample.title.partition(":")[0] for sample_maps in capture]
    assert titles == ["tracks 1"] * 20 + ["tracks 2"] * 2
    with pytest.raises(UserError, match="answers of tracks have no probability"):
        load(run).look([tracks[:2]], gradients=True)


def test_a_window_of_the_test_data_is_an_input(run):
    trained = load(run)
    assert check_test_input(trained).shape == (2, 6, 2)
    (named, _) = trained.look([trained.test_input(3)], names=["window 3"])
    assert named.sample.title.startswith("window 3: 0 -> (")


def test_a_core_without_attention_is_refused_and_a_self_attentive_one_shown(run, tmp_path):
    data, limits = run.parent / "val.txt", "--train.steps 1 --train.tensorboard false"
    files = f"--data.train {data} --data.val {data} --data.test {data} --data.predicted 2"
    small = "--model.core.width 8 --model.core.hidden 8"
    for core in ("recurrent", "self-attentive"):
        words = f"--model.core {core} {files} {small} {limits}"
        command(f"train tracks --run {tmp_path}/{core} {words}")
    tracks = np.random.default_rng(1).normal(size=(3, 8, 2))
    with pytest.raises(UserError, match="no attention"):
        load(tmp_path / "recurrent").look([tracks])
    for sample_maps in check_capture(load(tmp_path / "self-attentive"), [tracks]):
        assert {attention_map.kind for attention_map in sample_maps.maps} == {"chain"}
        queries = {attention_map.queries for attention_map in sample_maps.maps}
        assert queries == {"source", "reversed source"}


def test_recording_that_is_too_short_is_named(run, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("0 1 2 3\n", encoding="utf-8")
    message = failure(capsys, "predict", run, tmp_path / "short.txt")
    assert "no person is present in all of the last 6 frames" in message
    for bad, message in [
        (np.zeros((1, 3, 2)), r"tracks must be .* \(people, 6 observed, 2\), got \(1, 3, 2\)"),
        (np.zeros((0, 6, 2)), r"got \(0, 6, 2\)"),
        ([[["a", "b"]]], r"input 1: tracks must be finite .*: could not convert"),
        (np.full((1, 6, 2), np.nan), "tracks must be finite"),
        (np.full((1, 6, 2), 1e30), r"tracks must be finite numbers up to 1e\+09"),
    ]:
        with pytest.raises(UserError, match=message):
            load(run).predict([bad])


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--model.changes true --train.steps 800"])
def test_cars_that_brake_behind_the_car_ahead_are_learned(tmp_path, options):
    """Most cars keep their velocity; changes of the steps as inputs show the others sooner."""
    for seed, (split, platoons) in enumerate((("train", 400), ("val", 60), ("test", 100))):
        write_cars(tmp_path / f"{split}.txt", platoons, seed)
    files = " ".join(f"--data.{name} {tmp_path}/{name}.txt" for name in ("train", "val", "test"))
    command(f"train tracks --run {tmp_path}/run {files} {options} --train.tensorboard false")
    test = report(tmp_path / "run")
    assert test["ade"] < 0.95 * test["ade_constant_velocity"]


@pytest.mark.parametrize("kind", [TrackReader, SceneTrackReader])
def test_changes_of_the_steps_are_inputs(kind):
    seen = []
    reader = kind(3, 8, changes=True)
    reader.embed.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    reader(Padded(torch.tensor([[[[-4.0, 0], [-3, 0], [0, 0]]]]), torch.tensor([1])))
    positions, steps, changes = [-4, 0, -3, 0, 0, 0], [3, 0, 9, 0], [20, 0]
    close(seen[0][0, 0, :12], torch.tensor([*positions, *steps, *changes], dtype=torch.float32))


def test_made_up_cars_brake_after_the_car_ahead():
    draw = np.random.default_rng(1)
    speeds = [np.linalg.norm(np.diff(make_platoon(draw), axis=1), axis=-1) for _ in range(40)]
    gaps = 0
    for speed in speeds:
        brakes = speed < 0.99 * speed[:, :1]
        starts = np.where(brakes.any(1), brakes.argmax(1), 20)
        assert (np.diff(starts[starts < 20]) > 0).all()  # one after the other
        assert (np.diff((starts < 20).astype(int)) <= 0).all()  # none behind one that keeps on
        gaps += len(starts) > (starts < 20).sum() > 0
    assert 0 < gaps < 20
