"""`regard predict --out` writes tables that the recipe of the run reads as data."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from regard.cli.main import main
from regard.data.track_files import read_frames
from regard.recipes.load import load
from regard.system import table_writer
from tests.recipes.tiny import folder, quick_options

TABLES = {
    "translate": "id,source,target\n7,a b,b a\n8,b,b\n",
    "reviews": 'Ticket,text,label\nT1,"good, a",yes\nT2,bad b,no\n',
    "images": "file,patient\nimages/a/0.png,p1\nimages/b/1.png,p2\n",
}
"""Inputs with columns besides those that are read."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a run of a recipe, which has its training data beside it."""
    root = tmp_path_factory.mktemp("tables")
    shutil.copytree(folder(), root, dirs_exist_ok=True)
    for name, content in TABLES.items():
        (root / f"{name}.csv").write_text(content, encoding="utf-8")
    (root / "out").mkdir()

    def train(recipe: str) -> Path:
        run = root / f"run-{recipe}"
        if not run.exists():
            assert (
                main(["--quiet", "train", recipe, "--run", str(run), *quick_options(recipe)]) == 0
            )
        return run

    return train


def predict(run: Path, given: str, out: str, *options: str) -> list[dict[str, Any]]:
    """Write the table `out` of the predictions for `given`, and return its rows."""
    path = run.parent / out
    words = ["predict", str(run), str(run.parent / given), "--out", str(path), "--force", *options]
    assert main(words) == 0
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def read_back(run: Path, out: str, **options: str) -> Any:
    """Return a table of predictions as the recipe reads test data."""
    values = {"test": str(run.parent / out), **options}
    recipe = load(run).recipe.change(values, for_test=True)
    return recipe.read_encoded(recipe.read("test"))


@pytest.mark.parametrize("suffix", table_writer.SUFFIXES)
@pytest.mark.parametrize("recipe", ["translate", "reviews"])
def test_texts_and_their_answers_are_read_back(
    runs: Callable[[str], Path], recipe: str, suffix: str
) -> None:
    run, out = runs(recipe), f"out/texts{suffix}"
    rows = predict(run, f"{recipe}.csv", out)
    expected = load(run).answer([row.get("source") or row["text"] for row in rows])
    if recipe == "translate":
        assert list(rows[0]) == ["id", "source", "input_target", "target", "score"]
        assert [row["input_target"] for row in rows] == ["b a", "b"]
        answers = [(one["outputs"][0]["text"], one["outputs"][0]["score"]) for one in expected]
    else:
        assert list(rows[0]) == ["Ticket", "text", "input_label", "label", "probability"]
        assert [row["Ticket"] for row in rows] == ["T1", "T2"]
        answers = [(one["label"], one["probability"]) for one in expected]
    names = list(rows[0])[-2:]
    assert [row[names[0]] for row in rows] == [text for text, _ in answers]
    scores = [float(row[names[1]]) for row in rows]
    assert scores == pytest.approx([score for _, score in answers], rel=1e-6)
    assert scores == [float(f"{score:.7g}") for score in scores]
    data = read_back(run, out, header="yes")
    assert list(data.references) == [text for text, _ in answers]
    assert list(data.inputs) == [row.get("source") or row["text"] for row in rows]


def test_several_answers_have_ranks_and_inputs_without_header_numbers(
    runs: Callable[[str], Path],
) -> None:
    run = runs("translate")
    options = ("--decode.beam", "2", "--decode.n-best", "2")
    rows = predict(run, "pairs.tsv", "out/ranked.csv", *options)
    names = ["source", "2", "input", "rank", "target", "score"]
    assert [list(row) for row in rows] == [names] * 12
    assert [(row["input"], row["rank"]) for row in rows[:3]] == [("1", "1"), ("1", "2"), ("2", "1")]
    assert (rows[3]["source"], rows[3]["2"]) == ("c", "c")


def test_names_of_files_are_relative_to_the_table(runs: Callable[[str], Path], monkeypatch) -> None:
    run = runs("images")
    monkeypatch.chdir(run.parent)
    (expected,) = load(run).predict(["images/a/0.png"])
    rows = predict(Path(run.name), "images.csv", "out/images.csv")
    assert [row["file"] for row in rows] == ["../images/a/0.png", "../images/b/1.png"]
    assert [row["patient"] for row in rows] == ["p1", "p2"]
    assert rows[0]["label"] == expected
    assert read_back(run, "out/images.csv").references[0] == expected


@pytest.mark.parametrize(
    ("recipe", "given"),
    [("boxes", "boxes.csv"), ("points", "clouds.csv"), ("events", "events.csv")],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_objects_are_rows_that_are_read_back(
    runs: Callable[[str], Path], monkeypatch, recipe: str, given: str, suffix: str
) -> None:
    run, out = runs(recipe), f"out/{recipe}{suffix}"
    monkeypatch.chdir(run.parent)
    for threshold in ("0.001", "1"):
        rows = predict(Path(run.name), given, out, "--threshold", threshold)
        name = "image" if recipe == "boxes" else "file"
        assert rows[0][name].startswith("../")
        data = read_back(run, out)
        assert len(data) == len({row[name] for row in rows})
        for i, found in enumerate(data.references):
            own = [row for row in rows if row[name] == data.names[i] and row["label"]]
            assert [one["label"] for one in found] == [row["label"] for row in own]
            for key in found[0].keys() - {"label", "duration"} if found else ():
                numbers = [float(row[key]) for row in own]
                assert [one[key] for one in found] == pytest.approx(numbers)
            assert bool(found) <= (threshold == "0.001")


def test_positions_are_read_back(runs: Callable[[str], Path]) -> None:
    run = runs("tracks")
    predict(run, "tracks.txt", "out/tracks.csv")
    (answer,) = load(run).answer([str(run.parent / "tracks.txt")])
    frames, _ = read_frames(run.parent / "out/tracks.csv")
    for t, frame in enumerate(answer["frames"]):
        found = {person["id"]: tuple(person["positions"][t]) for person in answer["tracks"]}
        assert frames[frame] == {name: pytest.approx(place) for name, place in found.items()}


@pytest.mark.parametrize("suffix", table_writer.SUFFIXES)
def test_an_error_leaves_no_table_and_skipped_inputs_have_empty_answers(
    runs: Callable[[str], Path], suffix: str, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(table_writer, "_GROUP_ROWS", 2)
    run, out = runs("reviews"), f"out/bad{suffix}"
    rows = [("good " * 999, "x"), ("", "x"), ("good " * 999, "x"), ("good a", "yes")]
    (run.parent / "bad.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    words = ["predict", str(run), str(run.parent / "bad.tsv"), "--out", str(run.parent / out)]
    assert main(words) == 2
    assert [
        path.name for path in (run.parent / "out").iterdir() if f"bad{suffix}" in path.name
    ] == []
    found = predict(run, "bad.tsv", out, "--on-bad", "skip")
    assert [row["probability"] in ("", None) for row in found] == [True] * 3 + [False]
    assert [row["2"] for row in found] == ["x", "x", "x", "yes"]
    assert main(words) == 2
    assert f"bad{suffix} exists; it is replaced only with --force" in capsys.readouterr().err


def test_a_bad_first_row_keeps_the_columns_and_a_column_by_position_is_named(
    runs: Callable[[str], Path], capsys
) -> None:
    run = runs("reviews")
    (run.parent / "bad.csv").write_text("note,time\ngood a\nbad b,2.25\n", encoding="utf-8")
    rows = predict(run, "bad.csv", "out/first.csv", "--on-bad", "skip")
    assert [(row["note"], row["time"]) for row in rows] == [("", ""), ("bad b", "2.25")]
    assert "bad.csv: without a column text, 'note' is read" in capsys.readouterr().err
    predict(run, "reviews.csv", "out/first.csv")
    assert "is read" not in capsys.readouterr().err


def test_what_is_no_table_is_refused(runs: Callable[[str], Path], capsys) -> None:
    run = runs("reviews")
    for words, message in {
        ("--out", "a.csv", "--json"): "--json writes JSON, and a.csv is a table",
        ("--out", "a.xlsx"): "a.xlsx: is not written here: name one of .csv, .tsv",
        ("--out", "a.csv.gz"): "a.csv.gz: tables are not compressed here: name a.csv",
    }.items():
        assert main(["predict", str(run), "good a", *words]) == 2
        assert message in capsys.readouterr().err
