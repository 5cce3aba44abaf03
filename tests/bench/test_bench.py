"""`regard bench` as a whole, on tiny runs."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from regard.bench import bench, engines, inference, machine, profile
from regard.bench.inputs import with_validation_as_test
from regard.bench.report import format_report, hints
from regard.cli.main import main
from regard.recipes.run_folder import read_run

QUICK = ["--seconds", "0.02", "--batches", "2"]
SMALL = "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 16"
SHORT = "--train.steps 1 --train.tensorboard false"
RUNS = {
    "images": f"train images {SHORT} {SMALL} --patch 4 --augment none --batch 8",
    "language": f"train language {SHORT} {SMALL} --context 24 --batch 4 --sample.length 5",
    "tracks": f"train tracks {SHORT} {SMALL} --batch 32",
}


one_core = pytest.mark.parametrize("finished", ["transformer"], indirect=True)
"""Only one of the runs that are trained for all tests of this folder."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use matrices, memory and inputs that take no time."""
    monkeypatch.setattr(inference, "_ONE_BY_ONE", 2)
    monkeypatch.setattr(bench, "MANY", 2)
    monkeypatch.setattr(profile, "_PAIRS", 1)
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


def check_shares(where: list[dict[str, Any]]) -> None:
    assert sum(one["percent"] for one in where) == pytest.approx(100)
    assert where[-1]["group"] == "Python and waiting"


@one_core
def test_table_of_a_run_has_all_measurements(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = hashes(finished)
    assert main(["bench", str(finished), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert hashes(finished) == before
    assert "measuring training" in err
    for line in (
        r"matrix products, bfloat16 +\S+ GFLOP/s",
        r"training in \w+, on 2 of the \d+ steps of an epoch",
        r"targets per second +\S+",
        r"greedy +\S+ ms +\S+ ms",
        r"beam 3 +\S+ ms +\S+ ms",
        r"greedy +\S+ steps per answer +\S+ steps/s +parameters read at \S+ GB/s",
        r"where the time goes, %: training",
        r"where the time goes, %: greedy, one at a time",
    ):
        assert re.search(line, out), (line, out)


@one_core
def test_json_holds_the_same(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = run_bench(capsys, str(finished))
    assert results["recipe"] == "translate"
    training = results["training"]
    assert training["gflops"] > 0
    assert training["percent_of_limit"] == pytest.approx(100 * training["gflops"] / training["limit_gflops"])
    check_shares(training["where"])
    assert {"matrix products", "output layer and loss", "optimizer"} <= {one["group"] for one in training["where"]}
    inference = results["using"]
    assert inference["inputs_from"] == "test data"
    assert [(one["way"], one["beam"]) for one in inference["ways"]] == [("greedy", 1), ("beam 3", 3)]
    for one in inference["ways"]:
        assert one["one_by_one"]["steps_an_answer"] >= 1
        assert one["one_by_one"]["weights_read_gb_s"] > 0
    check_shares(inference["where"][0]["where"])


@pytest.mark.parametrize("recipe", RUNS)
def test_every_kind_of_recipe_is_measured(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUNS[recipe].split(), "--run", str(tmp_path / "run")]) == 0
    before = hashes(tmp_path)
    results = run_bench(capsys, str(tmp_path / "run"))
    assert hashes(tmp_path) == before
    assert results["training"]["flop_a_step"] > 0
    (way,) = results["using"]["ways"]
    assert way["one_by_one"]["answers_per_second"] > 0
    assert ("steps_per_second" in way["one_by_one"]) == (recipe == "language")
    check_shares(results["training"]["where"])
    check_shares(results["using"]["where"][0]["where"])


@pytest.fixture
def moved_run(finished: Path, tmp_path: Path) -> Path:
    """Run whose data files are missing."""
    copy = tmp_path / "moved"
    shutil.copytree(finished, copy)
    text = (copy / "run.json").read_text(encoding="utf-8").replace(str(finished.parent), str(tmp_path / "gone"))
    content = {name: value for name, value in json.loads(text).items() if name != "checksum"}
    (copy / "run.json").write_text(json.dumps(content), encoding="utf-8")
    return copy


@one_core
def test_missing_data_is_reported_and_the_rest_is_measured(moved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(moved_run), *QUICK]) == 0
    out = capsys.readouterr().out
    assert re.search(r"training: not measured, because the data cannot be read: .*train.tsv", out)
    assert re.search(r"inference: not measured: .*test.tsv.* \(--input FILE gives other inputs\)", out)
    assert "matrix products, float32" in out


@one_core
def test_given_inputs_are_used(moved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("ada bob sees dan\n\neve dan sees gus\n", encoding="utf-8")
    results = run_bench(capsys, str(moved_run), "--input", str(texts))
    assert (results["using"]["inputs"], results["using"]["inputs_from"]) == (2, "given inputs")
    assert "train.tsv" in results["training"]["missing"]


@one_core
def test_validation_data_serve_where_there_are_no_test_data(finished: Path) -> None:
    run = read_run(finished)
    other: Any = with_validation_as_test(run)
    assert other.config.data.test == run.config.data.val
    assert other.config.model == run.config.model


@one_core
def test_picture_is_drawn_and_never_over_another_file(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "where.svg"
    assert main(["bench", str(finished), *QUICK, "--out", str(picture)]) == 0
    drawn = picture.read_text(encoding="utf-8")
    assert "matrix products" in drawn
    assert "greedy, one at a time" in drawn
    capsys.readouterr()
    assert main(["bench", str(finished), *QUICK, "--out", str(picture)]) == 2
    assert "is replaced only with --force" in capsys.readouterr().err
    assert picture.read_text(encoding="utf-8") == drawn


BAD = {
    "bench": "RUN is missing",
    "bench nowhere": "nowhere does not exist",
    "bench {run} --seconds 0": "--seconds must be from 0.001 to 3,600, got 0",
    "bench {run} --batches 0": "--batches must be from 1 to 10,000, got 0",
    "bench {run} --input nowhere.txt": "nowhere.txt: no such file",
    "bench {run} --engine torhc": "unknown engine 'torhc'; did you mean torch?",
    "bench {run} --out where.jpg": "must end in one of .png, .svg, .pdf",
    "bench {run} text": "'text' is one argument too many",
}


@one_core
@pytest.mark.parametrize("line", BAD)
def test_mistake_is_reported_in_one_line(line: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(line.format(run=finished).split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert BAD[line] in err
    assert err.count("\n") == 1


@one_core
def test_engines_are_measured_side_by_side(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines.ENGINES, "twin", engines.ENGINES["torch"])
    results = run_bench(capsys, str(finished), "--engine=torch,twin")
    names = [(one["engine"], one["way"]) for one in results["using"]["ways"]]
    assert names == [(engine, way) for engine in ("torch", "twin") for way in ("greedy", "beam 3")]
    assert [one["engine"] for one in results["using"]["where"]] == ["torch", "twin"]
    assert re.search(r"beam 3, twin +\S+ ms", format_report(results))


def test_hints_follow_from_the_figures() -> None:
    results = {
        "machine": {
            "has_native_bfloat16": True,
            "products_gflops": {"float32": {"torch.mm": 100.0}, "bfloat16": {"torch.mm": 210.0}},
        },
        "training": {"precision": "float32", "where": [{"group": "matrix products", "percent": 60.0}]},
        "using": {"ways": [{"one_by_one": {"answers_per_second": 10}, "at_once": {"answers_per_second": 45}}]},
    }
    text = " / ".join(hints(results))
    assert "2.1 times as fast" in text
    assert "4.5 times as fast" in text
    assert hints({**results, "training": {"missing": "x"}, "using": {"missing": "x"}}) == []
