"""`regard sweep` with tiny runs of reviews."""

import csv
import json
import re
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.training.config import TrainConfig
from regard.training.progress import Progress

OPTIONS = (
    "--model.core.width 16 --train.steps 8 --train.validate-every 2 --train.warmup 1 "
    "--train.schedule cosine --train.precision float32 --train.tensorboard false --train.average 0"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    rows = [f"a {'good' if i % 2 else 'bad'} film {i}\t{i % 2}\n" for i in range(40)]
    (folder / "data.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def words_of(folder: Path) -> list[str]:
    return [
        *OPTIONS.split(),
        *(f"--data.{name}={folder / 'data.tsv'}" for name in ("train", "val")),
    ]


def read_curve(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
        line.pop("reviews_per_s", None)
    return [line for line in lines if line["kind"] != "train"]


def test_halving_finishes_the_best_as_training_in_one_go_does(folder, capsys) -> None:
    grid = ["--over", "train.lr", "1e-9", "1e-2", "--seeds", "2", "--halving", "--json"]
    words = ["sweep", "reviews", *words_of(folder), *grid, "--run", str(folder / "runs")]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    best, other = found["combinations"]
    assert best["values"] == {"train.lr": "1e-2"}
    assert [one["step"] for one in (*best["runs"], *other["runs"])] == [8, 8, 4, 4]
    assert (best["finished"], other["finished"]) == (True, False)
    scores = [one["accuracy"] for one in best["runs"]]
    assert best["mean"] == sum(scores) / 2 > other["mean"]
    assert best["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)

    alone = ["train", "reviews", *words_of(folder), "--train.lr", "1e-2", "--seed", "2"]
    assert main([*alone, "--run", str(folder / "alone")]) == 0
    same = folder / "runs" / "train.lr=1e-2_seed=2"
    weights = [path / "model.safetensors" for path in (same, folder / "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert read_curve(same) == read_curve(folder / "alone")

    rows = [*csv.DictReader((folder / "runs" / "sweep.csv").read_text().splitlines())]
    assert [(row["train.lr"], row["seed"]) for row in rows[1:3]] == [("1e-2", "2"), ("1e-9", "1")]
    assert (folder / "runs" / "curves.png").stat().st_size > 1000

    changed = weights[0].stat().st_mtime_ns
    capsys.readouterr()
    assert main(words) == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out) == found
    assert weights[0].stat().st_mtime_ns == changed


def test_errors_are_those_of_train_and_come_before_training(folder, capsys) -> None:
    words = ["sweep", "reviews", *words_of(folder), "--run", str(folder / "none")]
    for grid, message in (
        ("--over train.lrr 1 2", "unknown option --train.lrr; did you mean --train.lr?"),
        ("--over train.lr 1e-3 200", "--train.lr must be"),
        ("--over train.lr", "--over needs a setting and its values"),
        ("--over train.lr 1e-3 1e-3", "two runs are named train.lr=1e-3_seed=1"),
        (
            "--over train.lr 1 2 --halving --train.steps none --train.schedule constant",
            "--halving needs the end of a run",
        ),
    ):
        assert main([*words, *grid.split()]) == 2
        assert message in capsys.readouterr().err
    grid = ["--over", "tokenizer.kind", "char", "bpe", "--run", str(folder / "none")]
    assert main(["sweep", "language", *grid]) == 2
    assert "nll per token of one tokenizer" in capsys.readouterr().err
    assert not (folder / "none").exists()


def test_several_processes_are_refused(monkeypatch, capsys) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["sweep", "reviews", "--over", "train.lr", "1e-3", "3e-3"]) == 2
    assert "sweep trains in one process: torchrun is for regard train" in capsys.readouterr().err


def test_commands_of_the_page_are_read(folder, capsys) -> None:
    text = (Path(__file__).parents[2] / "docs" / "howto" / "compare.md").read_text()
    lines = re.findall(r"^    regard (sweep .*)$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert main([*line.split(), "--print-config"]) == 0
    assert "batch_tokens" in capsys.readouterr().out


def test_a_pause_is_after_a_validation_from_a_fraction_of_the_limit_on() -> None:
    config, progress = TrainConfig(epochs=4), Progress(step=10, epoch=2, last_validation=10)
    assert progress.is_pause_due(config, 0.5)
    assert not progress.is_pause_due(config, 0.75)
    assert not Progress(step=11, epoch=2, last_validation=10).is_pause_due(config, 0.5)
    assert not Progress(step=10, epoch=4, last_validation=10).is_pause_due(config, 1.0)
