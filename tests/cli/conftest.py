"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from regard.cli.main import main

TOY = "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 24"


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny finished run that spells words backwards."""
    folder = tmp_path_factory.mktemp("cli")
    words = ["stop", "pots", "lever", "drawer", "live", "noon", "snap", "loops"]
    rows = [f"{word}\t{word[::-1]}\n" for word in words]
    for name in ("train", "val", "test"):
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    data = " ".join(f"--data.{name} {folder / name}.tsv" for name in ("train", "val", "test"))
    options = (
        f"--run {folder / 'run'} {data} --data.max-length 9 --tokenizer.kind char --train.steps 3 "
        f"--train.batch-tokens 80 --train.precision float32 --train.tensorboard false "
        f"--decode.beam 2 {TOY}"
    )
    assert main(["train", "translate", *options.split()]) == 0
    return folder / "run"
