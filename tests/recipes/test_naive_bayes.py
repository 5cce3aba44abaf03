"""Runs of `reviews` with and without naive-Bayes log-count ratios."""

import json
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.recipes.load import load
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter
from tests.recipes.capture_checks import check_capture

SMALL = (
    "--model.core.width 8 --model.core.hidden 8 --tokenizer.min-count 1 "
    "--train.warmup 2 --train.tensorboard false"
)
WORDS = {"good": ["great", "lovely", "wonderful"], "bad": ["awful", "terrible", "dreadful"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for name, number in (("train", 9), ("val", 3)):
        rows = [
            f"it was {WORDS[kind][i % 3]} {i % 4}\t{kind}\n"
            for i in range(number)
            for kind in WORDS
        ]
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def run(files: Path, name: str, more: str) -> Path:
    data = f"--data.train {files / 'train.tsv'} --data.val {files / 'val.tsv'}"
    assert main(f"train reviews --run {files / name} {data} {SMALL} {more}".split()) == 0
    return files / name


def test_log_count_ratios_alone_classify_from_the_first_step(files, capsys, tmp_path):
    folder = run(files, "run", "--train.steps 1 --train.validate-every 1 --naive-bayes prefixes")
    trained = load(folder)
    assert isinstance(trained.model.writer, NaiveBayesWriter)
    assert trained.predict(["it was dreadful", "what a wonderful day"]) == ["bad", "good"]
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--data.test", str(files / "train.tsv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100
    (sample_maps,) = check_capture(trained, ["it was awful"])
    assert sample_maps.sample.axes["source"].labels == ("it", "was", "awful")


def test_no_log_count_ratios_by_default(files):
    folder = run(files, "default", "--train.steps 1 --train.validate-every 1")
    assert not (folder / "naive_bayes.npz").exists()
    assert not isinstance(load(folder).model.writer, NaiveBayesWriter)
