"""A hybrid of memories that are written and full attention: runs, maps, and refusals by name."""

from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.look.maps import GRADIENT, IMPLIED, STATE
from regard.look.measures import summaries
from regard.look.record import record
from regard.recipes.load import load
from tests.helpers import close
from tests.recipes.commands import command, failure, report

TEXT = "the cat sat on the mat and the dog sat on the log.\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    (folder / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    files = " ".join(f"--data.{name} {folder}/text.txt" for name in ("train", "val", "test"))
    sizes = "--model.core.layers 3 --model.core.width 24 --model.core.feedforward 24 --context 24"
    core = "--model.core transformer --model.core.heads 2 --model.core.pattern DFL"
    steps = "--train.steps 60 --train.warmup 5 --train.lr 1e-2 --batch 8"
    more = "--train.precision float32 --train.tensorboard false"
    command(f"train language --run {folder}/run {files} {sizes} {core} {steps} {more}")
    return folder / "run"


def test_it_learns_and_its_memories_do_not_grow(run):
    assert report(run)["nll"] < 1.0  # of a guess: 2.9
    core = load(run).model.core
    state, sizes = core.begin(None), []
    with torch.no_grad():
        for _ in range(3):
            _, state = core.steps(torch.randn(1, 20, 24), state)
            sizes.append([past.state.numel() for past in state.pasts[:2]])
            assert state.pasts[2].size == state.position
    assert sizes == [[2 * 12 * 12] * 2] * 3


def test_its_maps_are_implied_weights_and_states(run, tmp_path):
    trained = load(run, engine="torch")
    with record(trained) as capture:
        (text,) = trained.predict(["the cat sat"], length=5, temperature=0)
    plain = trained.predict(["the cat sat"], length=5, temperature=0)
    assert [text] == plain
    maps = capture[0].maps
    assert [own.measure for own in maps] == [IMPLIED, STATE, IMPLIED, STATE, "weight"]
    assert [own.layer for own in maps] == [1, 1, 2, 2, 3]
    assert [summaries(own) != {} for own in maps] == [False] * 4 + [True]
    assert maps[1].weights.shape == (2, 12, 12)
    assert capture.save(tmp_path / "page.html").stat().st_size > 100_000
    with pytest.raises(UserError, match="only of kind decoder self; FILE"):
        capture.plot(tmp_path / "maps.svg", kind="cross")


def test_steps_have_the_implied_weights_of_the_whole_pass(run):
    core, name = load(run).model.core, "decoder.0.attention.read"
    items = torch.randn(2, 7, 24)
    with record(core, gradients=True) as whole:
        whole.differentiate(core(items, core.begin(None, rows=2))[1, 6, 0])
    assert [own.measure for own in whole[1].maps].count(GRADIENT) == 3
    with record(core) as steps, torch.no_grad():
        state = core.begin(None, rows=2)
        for t in range(7):
            _, state = core.step(items[:, t] if t < 4 else items[[1, 0], t], state)
            state = state.select(torch.tensor([1, 0])) if t == 3 else state
    expected = whole.recording[name][0]
    for t, actual in enumerate(steps.recording[name]):
        rows = [0, 1] if t < 4 else [1, 0]
        close(actual[rows, ..., 0, :], expected[..., t, : t + 1])
    ends = (x.recording.calls[name][-1].state for x in (steps, whole))
    last, end = map(torch.from_numpy, ends)
    close(last[[1, 0]], end)


def test_compiled_code_predicts_the_texts_of_torch(run):
    texts = [
        load(run, engine=engine).predict(["the cat sat", "a dog"], length=60, temperature=0)
        for engine in ("torch", "compiled")
    ]
    assert texts[0] == texts[1]


def test_what_does_not_know_them_refuses_them_by_name(run, tmp_path, capsys):
    message = failure(capsys, f"export {run} --to onnx --out {tmp_path}/onnx")
    assert "memories that are written (pattern F and D) cannot be exported" in message
    message = failure(capsys, f"export {run} --to page --out {tmp_path}/page")
    assert "its written is one that the page does not compute" in message
    message = failure(capsys, f"export {run} --to transformers --out {tmp_path}/hf")
    assert "model.core.pattern=DFL has no place in GPT2LMHeadModel" in message
