"""`regard bench` as a whole, on tiny runs."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.bench import bench, machine
from regard.bench.report import format_report
from regard.cli.main import main
from tests.recipes.tiny import quick_options

QUICK = ["--seconds", "0.02", "--batches", "2"]
RUNS = {"images": "answers", "language": "8 new tokens", "tracks": "answers"}
"""Mode of inference by recipe."""
one_core = pytest.mark.parametrize("finished_run", ["transformer"], indirect=True)
"""Only one of the runs that are trained for all tests of this folder."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use matrices, memory and inputs that take no time."""
    monkeypatch.setattr(bench, "MAX_SINGLE", 2)
    monkeypatch.setattr(bench, "MAX_BATCH", 3)
    monkeypatch.setattr(machine, "SIZE", 32)
    monkeypatch.setattr(machine, "COPIED_BYTES", 1 << 16)


def hashes(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def train(folder: Path, recipe: str) -> None:
    assert main(["train", recipe, *quick_options(recipe), "--run", str(folder)]) == 0


def run_bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["bench", *words, *QUICK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@one_core
def test_report_has_all_measurements(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hashes(finished_run)
    results = run_bench(capsys, str(finished_run), "--engine=torch,compiled")
    assert hashes(finished_run) == before
    training = results["training"]
    steps_per_second = 1e3 / training["ms_per_step"]
    assert training["gflops"] == pytest.approx(training["gflop_per_step"] * steps_per_second)
    assert training["targets_per_second"] > training["examples_per_second"] > 0
    modes = [(entry["engine"], entry["mode"]) for entry in results["inference"]]
    assert modes == [
        (engine, mode) for engine in ("torch", "compiled") for mode in ("greedy", "beam 3")
    ]
    for entry in results["inference"]:
        assert (entry["inputs"], entry["batch"]) == (2, 3)
        assert entry["answers_per_second"] == pytest.approx(1e3 / entry["ms_per_answer"])
    report = format_report(results)
    for line in (
        r"matrix products, bfloat16 +\S+ GFLOP/s",
        r"training in \w+, 2 of the \d+ steps of an epoch",
        r"targets +\S+ per second",
        r"beam 3, compiled +\S+ ms",
        r"where the time goes: training",
        r"[\d.]+ +\S+ +\d+ +Python and compiled loops",
    ):
        assert re.search(line, report), (line, report)


def test_measured_training_leaves_the_model_alone(tmp_path: Path) -> None:
    train(tmp_path / "run", "tracks")
    trained = bench.load(tmp_path / "run", engine="torch")
    before = {name: value.clone() for name, value in trained._model.state_dict().items()}
    cpu = torch.device("cpu")
    bench.measure_training(trained.recipe, trained._model, cpu, seconds=0.01, max_batches=1)
    for name, value in trained._model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("recipe", RUNS)
def test_every_kind_of_recipe_is_measured(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", recipe)
    results = run_bench(capsys, str(tmp_path / "run"))
    assert results["training"]["gflop_per_step"] > 0
    (mode,) = results["inference"]
    assert mode["mode"] == RUNS[recipe]


@one_core
def test_missing_data_is_reported_and_given_inputs_are_used(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = finished_run.parent
    hidden = [(path, path.with_suffix(".hidden")) for path in data.glob("*.tsv")]
    texts = tmp_path / "texts.txt"
    texts.write_text("ada bob sees dan\neve dan sees gus\n", encoding="utf-8")
    for path, other in hidden:
        path.rename(other)
    try:
        results = run_bench(capsys, str(finished_run))
        assert "train.tsv" in results["training"]["missing"]
        assert "test.tsv" in results["inference_missing"]
        assert "--input FILE gives other inputs" in format_report(results)
        assert run_bench(capsys, str(finished_run), "--input", str(texts))["inference"]
    finally:
        for path, other in hidden:
            other.rename(path)


BAD = {
    "bench": "RUN is missing",
    "bench nowhere": "nowhere is not a run folder",
    "bench {run} --seconds 0": "--seconds must be from 0.001 to 3,600, got 0",
    "bench {run} --engine torhc": "engine must be one of auto, torch, compiled, got 'torhc'",
    "bench {run} text": "'text' is an unexpected argument",
}


@one_core
@pytest.mark.parametrize("line", BAD)
def test_error_is_reported_in_one_line(
    line: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(line.format(run=finished_run).split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert BAD[line] in err
