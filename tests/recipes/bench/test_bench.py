"""`regard bench` as a whole, on tiny runs."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from regard.cli.bench_words import hints, in_words
from regard.cli.main import main
from regard.recipes.bench import bench, engines, machine, using, watch
from regard.recipes.bench.inputs import with_validation_as_test
from regard.recipes.folder import read_run

QUICK = ["--seconds", "0.02", "--batches", "2"]
SMALL = "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 16"
SHORT = "--train.steps 1 --train.tensorboard false"
RUNS = {
    "images": f"train images {SHORT} {SMALL} --patch 4 --augment none --batch 8",
    "language": f"train language {SHORT} {SMALL} --context 24 --batch 4 --sample.length 5",
    "tracks": f"train tracks {SHORT} {SMALL} --batch 32",
}


one_core = pytest.mark.parametrize("finished", ["transformer"], indirect=True)
"""Of the runs that are trained for all tests of this folder."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices, memory and inputs that take no time."""
    monkeypatch.setattr(using, "_ONE_BY_ONE", 2)
    monkeypatch.setattr(bench, "MANY", 2)
    monkeypatch.setattr(watch, "_PAIRS", 1)
    monkeypatch.setattr(machine, "SIZE", 32)
    monkeypatch.setattr(machine, "MEMORY_BYTES", 1 << 16)


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["bench", *words, *QUICK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def check_shares(where: list[dict[str, Any]]) -> None:
    assert sum(one["percent"] for one in where) == pytest.approx(100)
    assert where[-1]["group"] == "Python and waiting"


@one_core
def test_table_of_a_run_says_what_was_measured(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = hashes(finished)
    assert main(["bench", str(finished), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert hashes(finished) == before
    assert "measuring training" in err
    for line in (
        r"matrix products, bfloat16 +\S+ GFLOP/s",
        r"training in \w+, on 2 of the \d+ steps of an epoch",
        r"targets a second +\S+",
        r"greedy +\S+ ms +\S+ ms",
        r"beam 3 +\S+ ms +\S+ ms",
        r"greedy +\S+ steps an answer +\S+ steps/s +weights read at \S+ GB/s",
        r"where the time goes, %: training",
        r"where the time goes, %: greedy, one at a time",
    ):
        assert re.search(line, out), (line, out)


@one_core
def test_json_holds_the_same(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, str(finished))
    assert found["recipe"] == "translate"
    training = found["training"]
    assert training["gflops"] > 0
    assert training["percent_of_limit"] == pytest.approx(100 * training["gflops"] / training["limit_gflops"])
    check_shares(training["where"])
    assert {"matrix products", "output layer and loss", "optimizer"} <= {one["group"] for one in training["where"]}
    using = found["using"]
    assert using["inputs_from"] == "test data"
    assert [(one["way"], one["beam"]) for one in using["ways"]] == [("greedy", 1), ("beam 3", 3)]
    for one in using["ways"]:
        assert one["one_by_one"]["steps_an_answer"] >= 1
        assert one["one_by_one"]["weights_read_gb_s"] > 0
    check_shares(using["where"][0]["where"])


@pytest.mark.parametrize("recipe", RUNS)
def test_every_kind_of_recipe_is_measured(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUNS[recipe].split(), "--run", str(tmp_path / "run")]) == 0
    before = hashes(tmp_path)
    found = measured(capsys, str(tmp_path / "run"))
    assert hashes(tmp_path) == before
    assert found["training"]["flop_a_step"] > 0
    (way,) = found["using"]["ways"]
    assert way["one_by_one"]["answers_per_second"] > 0
    assert ("steps_per_second" in way["one_by_one"]) == (recipe == "language")
    check_shares(found["training"]["where"])
    check_shares(found["using"]["where"][0]["where"])


@pytest.fixture
def moved(finished: Path, tmp_path: Path) -> Path:
    """A run whose data files are gone."""
    copy = tmp_path / "moved"
    shutil.copytree(finished, copy)
    text = (copy / "run.json").read_text(encoding="utf-8").replace(str(finished.parent), str(tmp_path / "gone"))
    content = {name: value for name, value in json.loads(text).items() if name != "checksum"}
    (copy / "run.json").write_text(json.dumps(content), encoding="utf-8")
    return copy


@one_core
def test_missing_data_is_said_and_the_rest_is_measured(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(moved), *QUICK]) == 0
    out = capsys.readouterr().out
    assert re.search(r"training: not measured, for the data cannot be read: .*train.tsv", out)
    assert re.search(r"using: not measured: .*test.tsv.* \(--input FILE gives others\)", out)
    assert "matrix products, float32" in out


@one_core
def test_given_inputs_are_asked(moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("ada bob sees dan\n\neve dan sees gus\n", encoding="utf-8")
    found = measured(capsys, str(moved), "--input", str(texts))
    assert (found["using"]["inputs"], found["using"]["inputs_from"]) == (2, "given inputs")
    assert "train.tsv" in found["training"]["missing"]


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
    "bench": "which run?",
    "bench nowhere": "nowhere does not exist",
    "bench {run} --seconds 0": "--seconds must be from 0.001 to 3,600, but is 0",
    "bench {run} --batches 0": "--batches must be from 1 to 10,000, but is 0",
    "bench {run} --input nowhere.txt": "nowhere.txt: there is no such file",
    "bench {run} --engine torhc": "unknown engine 'torhc'; did you mean torch?",
    "bench {run} --out where.jpg": "must end in one of .png, .svg, .pdf",
    "bench {run} text": "'text' is one argument too many",
}


@one_core
@pytest.mark.parametrize("line", BAD)
def test_mistake_is_told_in_one_line(line: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    found = measured(capsys, str(finished), "--engine=torch,twin")
    names = [(one["engine"], one["way"]) for one in found["using"]["ways"]]
    assert names == [(engine, way) for engine in ("torch", "twin") for way in ("greedy", "beam 3")]
    assert [one["engine"] for one in found["using"]["where"]] == ["torch", "twin"]
    assert re.search(r"beam 3, twin +\S+ ms", in_words(found))


def test_hints_follow_from_the_figures() -> None:
    found = {
        "machine": {
            "has_native_bfloat16": True,
            "products_gflops": {"float32": {"torch.mm": 100.0}, "bfloat16": {"torch.mm": 210.0}},
        },
        "training": {"precision": "float32", "where": [{"group": "matrix products", "percent": 60.0}]},
        "using": {"ways": [{"one_by_one": {"answers_per_second": 10}, "at_once": {"answers_per_second": 45}}]},
    }
    told = " / ".join(hints(found))
    assert "2.1 times as fast" in told
    assert "4.5 times as fast" in told
    assert hints({**found, "training": {"missing": "x"}, "using": {"missing": "x"}}) == []
