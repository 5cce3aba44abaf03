"""Every recipe trains, resumes, evaluates, answers and is looked at on a device, as on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.cli.main import main
from regard.recipes.load import load
from regard.recipes.registry import RECIPES
from tests.devices.pretended import pretended_cuda
from tests.recipes.tiny import quick_options

DETECTORS = ("boxes", "points", "events")


def options_on_cuda(recipe: str) -> list[str]:
    words = quick_options(recipe)
    words[words.index("--train.device") + 1] = "cuda"
    return [*words, "--train.precision", "float32", "--train.keep-finished", "checkpoints"]


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


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_does_all_on_a_device(tmp_path: Path, recipe: str) -> None:
    words = ["train", recipe, "--run", str(tmp_path), *options_on_cuda(recipe)]
    with pretended_cuda():
        assert main(words) == 0
        words[words.index("--train.steps") + 1] = "2"
        assert main(words) == 0
        run = load(tmp_path, device="cuda", notify=print)
        given = [run.test_input(0)]
        answers, scores = run.answer(given), run.evaluate()
        if recipe != "rebuild":  # it has no attention
            changes = {"threshold": 0.0} if recipe in DETECTORS else {}
            has_probability = recipe != "tracks"
            run.look(given, vectors=True, gradients=has_probability, **changes)
    assert json.loads((tmp_path / "report.json").read_text())["training"]["steps"] == 2
    run = load(tmp_path, notify=print, engine="torch" if run.recipe.decodes else "auto")
    same(answers, run.answer(given))
    same(scores, run.evaluate())
