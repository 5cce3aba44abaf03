"""Every recipe trains, resumes, evaluates, answers and is looked at on a device, as on the CPU."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from regard.cli.main import main
from regard.engines.buffers import StepBuffers
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from regard.recipes.registry import RECIPES
from regard.training import loop
from tests.devices.pretended import Device, pretended_cuda
from tests.recipes.tiny import quick_options

DETECTORS = ("boxes", "points", "events")
SETS = "models/writers/matching.py:class_wise_nms", "models/writers/sets.py:loss"
READS_OF_A_STEP = dict.fromkeys(DETECTORS, SETS)
"""Functions in which the loss of a batch is read from the device."""


def training(recipe: str, run: Path, *, device: str = "cuda", steps: int = 1) -> list[str]:
    """Return the words of a command that trains a quick run."""
    words = quick_options(recipe)
    words[words.index("--train.device") + 1] = device
    words[words.index("--train.steps") + 1] = str(steps)
    words += ["--train.keep-finished", "checkpoints"]
    return ["train", recipe, "--run", str(run), *words]


SCORED, WITHOUT_VECTORS = ("dates", "language", "translate"), ("rebuild", "tracks")
COVERED = "translate", "caption"
"""Recipes made of the parts of others."""
_RULES = "--decode.min-length 3 --decode.no-repeat-ngram-size 2 --decode.repetition-penalty 1.2"
_RECURRENT = "--model.core recurrent --model.core.width 8 --model.core.hidden 8"
VARIANTS = [
    ("tracks", "--model.joint true --model.paths 4 --model.changes true"),
    ("boxes", "--model.queries learned"),
    ("reviews", "--naive-bayes words"),
    *[("reviews", f"--model.pool {pool}") for pool in ("last", "mean", "first")],
    ("reviews", f"{_RECURRENT} --model.core.cell lstm"),
    ("dates", f"{_RECURRENT} --train.ema 0.9 {_RULES}"),
    ("tags", "--train.optimizer muon"),
    ("images", "--mixup 0.2 --augment randaugment color --model.core.window 3"),
    ("language", "--model.core.window 4 --sample.context slide --model.core.positions rotary"),
]


def make_scored(recipe: str, given: list[str]) -> list[Any]:
    """Return texts whose probability is computed: pairs of two texts that the run knows."""
    return given if recipe == "language" else [(text, "2003" * 2) for text in given]


@contextmanager
def count_reads(device: Device) -> Iterator[list[Counter[str]]]:
    """Give the number of reads from the device by place, for the gradient of each step."""
    counts, compute = [], loop.add_gradients

    def counted(*args: Any, **options: Any) -> Any:
        before = len(device.reads)
        result = compute(*args, **options)
        counts.append(Counter(place for _, place in device.reads[before:]))
        return result

    with patch.object(loop, "add_gradients", counted):
        yield counts


def load_on_cpu(folder: Path, run: TrainedRun) -> TrainedRun:
    """Return a run of a folder that torch computes; run: the same on a device."""
    return load(folder, notify=print, engine="torch" if run.recipe.decodes else "auto")


def same(one: Any, other: Any) -> None:
    """Fail unless two answers as JSON are equal up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for part, another in zip(one, other, strict=True):
            same(part, another)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    else:
        assert one == other


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=pytest.mark.slow if name in COVERED else ()) for name in RECIPES],
)
def test_a_recipe_does_all_on_a_device(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepBuffers, "run", StepBuffers._step)  # there is nothing to capture
    with pretended_cuda() as device:
        with count_reads(device) as counts:
            assert main(training(recipe, tmp_path)) == 0
        assert main(training(recipe, tmp_path, steps=2)) == 0
        run = load(tmp_path, device="cuda", notify=print)
        given = [run.test_input(0)]
        answers, scores = run.answer(given), run.evaluate()
        vectors = None if recipe in WITHOUT_VECTORS else run.embed(given)
        log_probs = run.score(make_scored(recipe, given)) if recipe in SCORED else None
        assert counts[-1] == Counter(READS_OF_A_STEP.get(recipe, ()))
        assert not device.indices()
        if recipe != "rebuild":  # it has no attention
            changes = {"threshold": 0.0} if recipe in DETECTORS else {}
            has_probability = recipe != "tracks"
            run.look(given, vectors=True, gradients=has_probability, **changes)
    assert json.loads((tmp_path / "report.json").read_text())["training"]["steps"] == 2
    run = load_on_cpu(tmp_path, run)
    same(answers, run.answer(given))
    same(scores, run.evaluate())
    if vectors is not None:
        np.testing.assert_allclose(vectors, run.embed(given), rtol=1e-4, atol=1e-5)
    if log_probs is not None:
        same([*log_probs[0]], [*run.score(make_scored(recipe, given))[0]])


@pytest.mark.parametrize(("recipe", "options"), VARIANTS)
def test_variants_of_recipes(tmp_path: Path, recipe: str, options: str) -> None:
    words = training(recipe, tmp_path)
    replaced = ["--model.pool-heads"] if "pool " in options else []
    if _RECURRENT in options:
        replaced += [word for word in words if word.startswith("--model.core")]
    for word in replaced:
        place = words.index(word)
        del words[place : place + 2]
    with pretended_cuda() as device:
        with count_reads(device) as counts:
            assert main([*words, *options.split()]) == 0
        reads = READS_OF_A_STEP.get(recipe, ())
        assert counts[-1] == Counter(SETS[1:] if "queries learned" in options else reads)
        run = load(tmp_path, device="cuda", notify=print)
        given = [run.test_input(0)]
        answers = run.answer(given)
        assert not device.indices()
        run.look(given)
    same(answers, load_on_cpu(tmp_path, run).answer(given))


def test_a_run_of_tf32_goes_on_without_tf32_on_a_cpu(tmp_path: Path, capsys: Any) -> None:
    words = "--train.precision", "tf32"
    with pretended_cuda():
        assert main([*training("tags", tmp_path), *words]) == 0
    assert "float32" not in capsys.readouterr().err
    assert main([*training("tags", tmp_path, device="cpu", steps=2), *words]) == 0
    assert "Products are of float32, since a cpu has no tf32" in capsys.readouterr().err
    assert main([*training("tags", tmp_path / "new", device="cpu"), *words]) == 2
    assert not (tmp_path / "new").exists()


def test_a_run_goes_on_and_starts_another_on_another_device(tmp_path: Path, capsys: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(training("tags", first, device="cpu")) == 0
    with pretended_cuda():
        assert main(training("tags", first, steps=2)) == 0
        assert "The run was on cpu so far; on cuda rounding" in capsys.readouterr().err
        assert main([*training("tags", second), "--init", str(first)]) == 0
    assert main(training("tags", first, device="cpu", steps=3)) == 0
    assert "The run was on cuda so far; on cpu rounding" in capsys.readouterr().err
    assert main(training("tags", first, device="cpu", steps=4)) == 0
    assert "so far" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "option"), [("tags", "--train.batch-tokens"), ("images", "--batch")]
)
def test_a_step_without_memory_is_one_line_and_the_checkpoint_stays(
    tmp_path: Path, capsys: Any, recipe: str, option: str
) -> None:
    assert main(training(recipe, tmp_path, device="cpu")) == 0
    before = {path: path.read_bytes() for path in tmp_path.glob("checkpoints/*/*")}
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    capsys.readouterr()
    with patch("regard.training.loop.add_gradients", side_effect=error):
        assert main([*training(recipe, tmp_path, device="cpu", steps=2), "-q"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for part in (
        "not enough memory on cpu: CUDA out",
        option,
        "--train.accumulate",
        "step-00000001",
    ):
        assert part in message
    assert {path: path.read_bytes() for path in tmp_path.glob("checkpoints/*/*")} == before
    assert main(training(recipe, tmp_path, device="cpu", steps=2)) == 0


def test_emulated_half_precision_is_reported(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = training("tags", tmp_path, device="cpu")
    words[words.index("--train.precision") + 1] = "bfloat16"
    monkeypatch.setattr("regard.training.precision.has_native_bfloat16", lambda _: False)
    assert main(words) == 0
    assert "cpu has no bfloat16 instructions and emulates them" in capsys.readouterr().err
