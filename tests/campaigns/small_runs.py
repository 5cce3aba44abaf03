"""Runs of a few steps on little data, one for each kind of run folder.

They are trained once, in a folder that is removed with the process that imported this module;
forked workers share them.
"""

import atexit
import fcntl
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba.core.registry import cpu_target
from PIL import Image

from tests.campaigns.child import command
from tests.recipes.toy import SOURCES, write_pairs

__all__ = ["RECIPES", "SmallRun", "home", "small_run"]

# Loaded before any child is forked, so that children need not load them.
for _name in (
    "torch._dynamo",
    "regard.engines.compiled.engine",
    *(
        f"regard.native.{name}"
        for name in (
            "additive.cpu.call",
            "dropout.autograd",
            "gru.autograd",
            "softmax",
            "token_loss",
        )
    ),
    *(
        f"regard.recipes.{name}.recipe"
        for name in ("draw", "images", "language", "reviews", "translate")
    ),
    *(f"regard.cli.{name}" for name in ("evaluate", "look", "predict", "train")),
):
    importlib.import_module(_name)
cpu_target.target_context.refresh()

_HOME = Path(tempfile.mkdtemp(prefix="regard-small-runs-"))
_OWNER = os.getpid()
_CORE = (
    "--model.core.width 8 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 8 "
    "--model.dropout 0.1"
)
_TRAIN = (
    "--train.warmup 1 --train.log-every 1 --train.validate-every 1 --train.average 2 "
    "--train.device cpu --train.precision float32 "
    "--train.keep-finished checkpoints --train.checkpoint-minutes 0"
)
_BATCH_TOKENS = {"translate": "60", "reviews": "60", "draw": "400"}


@dataclass(frozen=True)
class SmallRun:
    """Command lines that train and use a run."""

    recipe: str
    words: tuple[str, ...]
    """Training options, except the folder and the number of steps."""
    inputs: tuple[str, ...]
    """Inputs of `predict`."""

    def train(self, folder: Path, steps: int, *more: str) -> list[str]:
        """Return the training command."""
        return [
            "train",
            self.recipe,
            "--run",
            str(folder),
            "--train.steps",
            str(steps),
            *self.words,
            *more,
        ]

    def predict(self, folder: Path, work: Path) -> list[str]:
        """Return the prediction command; images are written to the folder `work`."""
        more = ["--out", str(work / "drawn.png"), "--force"] if self.recipe == "draw" else []
        return ["predict", str(folder), *self.inputs, *more]

    def evaluate(self, folder: Path) -> list[str]:
        """Return the evaluation command."""
        return ["evaluate", str(folder), "--json"]


@atexit.register
def _end() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(_HOME, ignore_errors=True)


def home() -> Path:
    """Return the folder of all runs and their data."""
    return _HOME


def small_run(recipe: str, *, steps: int = 2) -> tuple[SmallRun, Path]:
    """Return a run of this number of steps, trained if necessary; do not change the folder."""
    folder = _HOME / f"{recipe}-{steps}"
    with (_HOME / f"{recipe}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = _make(recipe)
        if not (folder / "report.json").exists():
            result = command(run.train(folder, steps), seconds=300.0)
            assert result.code == 0, result.err
    return run, folder


def _make(recipe: str) -> SmallRun:
    data = _HOME / f"{recipe}-data"
    if not data.exists():
        data.mkdir()
        RECIPES[recipe][0](data)
    words, inputs = RECIPES[recipe][1:]
    fill = {"data": str(data)}
    batch = f"--train.batch-tokens {_BATCH_TOKENS[recipe]}" if recipe in _BATCH_TOKENS else ""
    every = " ".join((words, _TRAIN, batch, _CORE))
    return SmallRun(
        recipe, tuple(every.format(**fill).split()), tuple(text.format(**fill) for text in inputs)
    )


def _pairs(data: Path) -> None:
    for split, part in (("train", slice(0, 9)), ("val", slice(0, 4)), ("test", slice(3, 7))):
        write_pairs(data / f"{split}.tsv", SOURCES[part])


def _reviews(data: Path) -> None:
    for split, number in (("train", 8), ("val", 3), ("test", 3)):
        rows = [
            {"text": f"it was {word} {i % 4}", "label": label}
            for i in range(number)
            for word, label in (("great", "good"), ("awful", "bad"))
        ]
        (data / f"{split}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )


def _images(data: Path) -> None:
    draw = np.random.default_rng(1)
    for split, number in (("train", 8), ("val", 4), ("test", 4)):
        (data / split).mkdir()
        rows = []
        for i in range(number):
            Image.fromarray(draw.integers(0, 255, (8, 8)).astype(np.uint8)).save(
                data / split / f"{i}.png"
            )
            rows.append(f"{data}/{split}/{i}.png\t{draw.normal():.3f},{draw.normal():.3f}\n")
        (data / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")


def _language(data: Path) -> None:
    for split, number in (("train", 12), ("val", 3), ("test", 3)):
        (data / f"{split}.txt").write_text("the cat sat on the mat.\n" * number, encoding="utf-8")


def _write_nothing(data: Path) -> None:
    """Write nothing: the recipe has embedded digits."""


_FILES = "--data.train {data}/train.X --data.val {data}/val.X --data.test {data}/test.X"
RECIPES: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "translate": (
        _pairs,
        f"{_FILES.replace('X', 'tsv')} --tokenizer.kind bpe --tokenizer.joint false --model.tie "
        f"target "
        "--data.max-length 40 --bleu.tokenize none --decode.beam 2 --train.ema 0.5",
        ("ada bob sees cleo",),
    ),
    "reviews": (
        _reviews,
        f"{_FILES.replace('X', 'jsonl')} --tokenizer.min-count 1 --naive-bayes bigrams "
        f"--model.core transformer",
        ("it was great 1",),
    ),
    "images": (
        _images,
        f"{_FILES.replace('X', 'tsv')} --data.target number --augment shift --batch 4 --data.size "
        f"8",
        ("{data}/test/1.png",),
    ),
    "language": (
        _language,
        f"{_FILES.replace('X', 'txt')} --context 16 --batch 2 --train.tensorboard false",
        ("the cat",),
    ),
    "draw": (
        _write_nothing,
        "--autoencoder.channels 4 --autoencoder.codebook-size 8 --autoencoder.code-dim 4 "
        "--autoencoder-steps 2 --classifier-steps 2 --data.epoch-size 12 --data.test-size 3 "
        "--train.tensorboard false",
        ("a three",),
    ),
}
"""For each recipe: the function that writes its data, the options, the inputs of `predict`."""
