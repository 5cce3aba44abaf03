"""`regard new`: the file runs, supports every command, and is imported by nothing else."""

import importlib
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import regard
from regard.cli.main import main
from regard.recipes.registry import RECIPES
from tests.recipes.commands import run_file

ROOT = Path(__file__).parents[2]


def run_program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "mine.py", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which `regard new mine` was run and its recipe trained."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["new", "mine"]) == 0
        train = "train --run runs/mine --train.tensorboard false --train.steps 300"
        with redirect_stdout(StringIO()) as out:
            assert run_file(Path("mine.py"), train) == 0
    assert "try  python mine.py predict runs/mine INPUT" in out.getvalue()
    return folder


def test_written_recipe_trains_and_predicts(folder, capsys, monkeypatch):
    report = json.loads((folder / "runs/mine/report.json").read_text())
    assert report["recipe"] == "mine"
    assert report["test"]["mae"] < 1.3  # the mean of the answers is off by more: they spread by 2
    result = run_program(folder, "predict", "runs/mine", "1 9 2")
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) > 5
    monkeypatch.chdir(folder)
    file = folder / "mine.py"
    assert run_file(file, "look runs/mine --out a.svg", "1 9 2") == 0
    capsys.readouterr()
    assert run_file(file, "look runs/mine --test 0 --out a.html --open false") == 0
    assert " -> " in capsys.readouterr().out  # the line's numbers, and the answer
    (folder / "other.tsv").write_text("1 2\t2\n1 x\t3\n")
    assert run_file(file, "evaluate runs/mine --data.test other.tsv") == 2
    assert "other.tsv, line 2: expected numbers, a tab, a number" in capsys.readouterr().err


def test_run_is_continued_with_its_settings_through_the_file(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert run_file(folder / "mine.py", "train --run runs/mine") == 0
    assert "runs/mine is finished: it stopped by steps" in capsys.readouterr().out


def test_entry_is_passed_in_python(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    try:
        entry = importlib.import_module("mine").ENTRY
        run = regard.load(folder / "runs/mine", recipe=entry)
    finally:
        sys.modules.pop("mine", None)
    assert entry.name not in RECIPES
    assert float(run.predict(["1 9 2"])[0]) > 5


def test_run_folder_imports_nothing(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["predict", "runs/mine", "1 2"]) == 2
    error = capsys.readouterr().err
    assert "a recipe of your own needs its Entry" in error
    assert "regard.load(folder, recipe=ENTRY)" in error
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine"], "mine.py exists; it is never replaced"),
        (["dates"], "a recipe 'dates' exists already"),
        (["../mine"], "must be letters, digits and _, first a letter"),
        (["__init__"], "must be letters, digits and _, first a letter"),
        (["class"], "must be letters, digits and _, first a letter"),
        ([], "NAME is missing"),
    ],
)
def test_other_names_are_refused(folder, words, message, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = (folder / "mine.py").read_bytes()
    assert main(["new", *words]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "mine.py").read_bytes() == before
