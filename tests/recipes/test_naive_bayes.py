"""Runs of `reviews` with and without naive-Bayes log-count ratios."""

from pathlib import Path

import pytest

from regard.recipes.load import load
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter
from tests.recipes.capture_checks import check_capture
from tests.recipes.commands import command, printed_json

SMALL = (
    "--model.core.width 8 --model.core.hidden 8 --tokenizer.min-count 1 "
    "--train.warmup 2 --train.tensorboard false"
)
WORDS = {"good": ["great", "lovely", "wonderful"], "bad": ["awful", "terrible", "dreadful"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for name, number in (("train", 9), ("val", 3)):
        rows = []
        for i in range(number):
            rows += [f"it was {words[i % 3]} {i % 4}\t{kind}\n" for kind, words in WORDS.items()]
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def run(files: Path, name: str, more: str) -> Path:
    data = f"--data.train {files}/train.tsv --data.val {files}/val.tsv"
    command(f"train reviews --run {files / name} {data} {SMALL} {more}")
    return files / name


def test_log_count_ratios_alone_classify_from_the_first_step(files, capsys):
    folder = run(files, "run", "--train.steps 1 --train.validate-every 1 --naive-bayes prefixes")
    trained = load(folder)
    assert isinstance(trained.model.writer, NaiveBayesWriter)
    assert trained.predict(["it was dreadful", "what a wonderful day"]) == ["bad", "good"]
    scores = printed_json(capsys, "evaluate", folder, "--data.test", files / "train.tsv")
    assert scores["accuracy"] == 100
    (sample_maps,) = check_capture(trained, ["it was awful"])
    assert sample_maps.sample.axes["source"].labels == ("it", "was", "awful")


def test_no_log_count_ratios_by_default(files):
    folder = run(files, "default", "--train.steps 1 --train.validate-every 1")
    assert not (folder / "naive_bayes.npz").exists()
    assert not isinstance(load(folder).model.writer, NaiveBayesWriter)
