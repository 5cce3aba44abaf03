"""`regard bench` as a whole, on tiny runs."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from regard.bench import bench, inference, machine
from regard.bench.inference import with_validation_as_test
from regard.bench.report import format_report, hints
from regard.cli.main import main
from regard.recipes.run_folder import read_run
from regard.system.fingerprints import add_checksum

QUICK = ["--seconds", "0.02", "--batches", "2"]
SMALL = (
    "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 16"
)
SHORT = "--train.steps 1 --train.tensorboard false"
RUNS = {
    "images": f"train images {SHORT} {SMALL} --patch 4 --augment none --batch 8",
    "language": f"train language {SHORT} {SMALL} --context 24 --batch 4 --sample.length 5",
    "tracks": f"train tracks {SHORT} {SMALL} --batch 32",
}


one_core = pytest.mark.parametrize("finished_run", ["transformer"], indirect=True)
"""Only one of the runs that are trained for all tests of this folder."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use matrices, memory and inputs that take no time."""
    monkeypatch.setattr(inference, "_ONE_BY_ONE", 2)
    monkeypatch.setattr(bench, "MANY", 2)
    monkeypatch.setattr(machine, "SIZE", 32)
    monkeypatch.setattr(machine, "MEMORY_BYTES", 1 << 16)


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run_bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["bench", *words, *QUICK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def check_shares(profile: list[dict[str, Any]]) -> None:
    assert sum(entry["percent"] for entry in profile) == pytest.approx(100)
    assert profile[-1]["group"] == "Python and compiled loops"
    for entry in profile[:-1]:
        assert sum(operator["seconds"] for operator in entry["operators"]) == pytest.approx(
            entry["seconds"]
        )


@one_core
def test_table_of_a_run_has_all_measurements(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hashes(finished_run)
    assert main(["bench", str(finished_run), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert hashes(finished_run) == before
    assert "measuring training" in err
    for line in (
        r"matrix products, bfloat16 +\S+ GFLOP/s",
        r"training in \w+, on 2 of the \d+ steps of an epoch",
        r"targets per second +\S+",
        r"greedy +\S+ ms +\S+ ms",
        r"beam 3 +\S+ ms +\S+ ms",
        r"greedy +\S+ steps per answer +\S+ steps/s +parameters read at \S+ GB/s",
        r"where the time goes: training, mean of \d+ calls?",
        r"matrix products +\S+ +\S+ +\S+ +#* +\w+",  # then the largest of its operators
        r"where the time goes: greedy, one at a time, mean of \d+ calls?",
    ):
        assert re.search(line, out), (line, out)


@one_core
def test_json_has_the_same_measurements(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run_bench(capsys, str(finished_run))
    assert results["recipe"] == "translate"
    training = results["training"]
    assert training["gflops"] > 0
    assert training["percent_of_limit"] == pytest.approx(
        100 * training["gflops"] / training["limit_gflops"]
    )
    check_shares(training["profile"])
    groups = {entry["group"]: entry for entry in training["profile"]}
    assert {"matrix products", "loss", "optimizer", "batch construction"} <= set(groups)
    assert (
        0
        < groups["matrix products"]["flop"]
        <= training["profiled_calls"] * 2 * training["flop_per_step"]
    )
    inference = results["inference"]
    assert inference["input_source"] == "test data"
    assert [(entry["mode"], entry["beam"]) for entry in inference["modes"]] == [
        ("greedy", 1),
        ("beam 3", 3),
    ]
    for entry in inference["modes"]:
        assert entry["single"]["steps_per_answer"] >= 1
        assert entry["single"]["parameters_read_gb_s"] > 0
    check_shares(inference["profiles"][0]["profile"])


@pytest.mark.parametrize("recipe", RUNS)
def test_every_kind_of_recipe_is_measured(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUNS[recipe].split(), "--run", str(tmp_path / "run")]) == 0
    before = hashes(tmp_path)
    results = run_bench(capsys, str(tmp_path / "run"))
    assert hashes(tmp_path) == before
    assert results["training"]["flop_per_step"] > 0
    (mode,) = results["inference"]["modes"]
    assert mode["single"]["answers_per_second"] > 0
    assert ("steps_per_second" in mode["single"]) == (recipe == "language")
    check_shares(results["training"]["profile"])
    check_shares(results["inference"]["profiles"][0]["profile"])


@pytest.fixture
def moved_run(finished_run: Path, tmp_path: Path) -> Path:
    """Run whose data files are missing."""
    copy = tmp_path / "moved"
    shutil.copytree(finished_run, copy)
    text = (
        (copy / "run.json")
        .read_text(encoding="utf-8")
        .replace(str(finished_run.parent), str(tmp_path / "gone"))
    )
    content = {name: value for name, value in json.loads(text).items() if name != "checksum"}
    (copy / "run.json").write_text(json.dumps(add_checksum(content)), encoding="utf-8")
    return copy


@one_core
def test_missing_data_is_reported_and_the_rest_is_measured(
    moved_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(moved_run), *QUICK]) == 0
    out = capsys.readouterr().out
    assert re.search(r"training: not measured, because the data cannot be read: .*train.tsv", out)
    assert re.search(
        r"inference: not measured: .*test.tsv.* \(--input FILE gives other inputs\)", out
    )
    assert "matrix products, float32" in out


@one_core
def test_given_inputs_are_used(
    moved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("ada bob sees dan\n\neve dan sees gus\n", encoding="utf-8")
    results = run_bench(capsys, str(moved_run), "--input", str(texts))
    assert (results["inference"]["inputs"], results["inference"]["input_source"]) == (
        2,
        "given inputs",
    )
    assert "train.tsv" in results["training"]["missing"]


@one_core
def test_validation_data_is_used_without_test_data(finished_run: Path) -> None:
    run = read_run(finished_run)
    other: Any = with_validation_as_test(run)
    assert other.config.data.test == run.config.data.val
    assert other.config.model == run.config.model


@one_core
def test_plot_is_saved_and_replaces_no_file(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "where.svg"
    assert main(["bench", str(finished_run), *QUICK, "--out", str(picture)]) == 0
    content = picture.read_text(encoding="utf-8")
    assert "matrix products" in content
    assert "greedy, one at a time" in content
    capsys.readouterr()
    assert main(["bench", str(finished_run), *QUICK, "--out", str(picture)]) == 2
    assert "is replaced only with --force" in capsys.readouterr().err
    assert picture.read_text(encoding="utf-8") == content


BAD = {
    "bench": "RUN is missing",
    "bench nowhere": "nowhere does not exist",
    "bench {run} --seconds 0": "--seconds must be from 0.001 to 3,600, got 0",
    "bench {run} --batches 0": "--batches must be from 1 to 10,000, got 0",
    "bench {run} --input nowhere.txt": "nowhere.txt: no such file",
    "bench {run} --engine torhc": "engine must be one of auto, torch, compiled, ctranslate2, got "
    "'torhc'",
    "bench {run} --out where.jpg": "must end in one of .png, .svg, .pdf",
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
    assert err.count("\n") == 1


@one_core
def test_engines_are_measured_side_by_side(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run_bench(capsys, str(finished_run), "--engine=torch,compiled")
    modes = results["inference"]["modes"]
    names = [(entry["engine"], entry["mode"]) for entry in modes]
    assert names == [
        (engine, mode) for engine in ("torch", "compiled") for mode in ("greedy", "beam 3")
    ]
    assert modes[0]["single"]["steps_per_answer"] == modes[2]["single"]["steps_per_answer"]
    torch, compiled = results["inference"]["profiles"]
    assert (torch["engine"], compiled["engine"]) == ("torch", "compiled")
    # Compiled loops are one row; operators and their FLOPs are known of torch alone.
    assert "decoding engine" in {entry["group"] for entry in compiled["profile"]}
    assert "decoding engine" not in {entry["group"] for entry in torch["profile"]}
    assert sum(entry["flop"] for entry in torch["profile"]) > 0
    assert sum(entry["flop"] for entry in compiled["profile"]) == 0
    assert re.search(r"beam 3, compiled +\S+ ms", format_report(results))


def test_hints_follow_from_the_figures() -> None:
    results = {
        "machine": {
            "has_native_bfloat16": True,
            "products_gflops": {"float32": {"torch.mm": 100.0}, "bfloat16": {"torch.mm": 210.0}},
        },
        "training": {
            "precision": "float32",
            "profile": [{"group": "matrix products", "percent": 60.0}],
        },
        "inference": {
            "modes": [{"single": {"answers_per_second": 10}, "batched": {"answers_per_second": 45}}]
        },
    }
    text = " / ".join(hints(results))
    assert "2.1 times as fast" in text
    assert "4.5 times as fast" in text
    assert hints({**results, "training": {"missing": "x"}, "inference": {"missing": "x"}}) == []
