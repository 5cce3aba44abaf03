"""Settings that a recipe does not use are not offered, and are refused."""

import re
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.errors import UserError
from regard.recipes.registry import RECIPES
from regard.settings.tree import apply_changes

CASES = [
    "images --train.batch-tokens 7",
    "images --model.core.decoder-layers 5",
    "reviews --model.core transformer --model.core.decoder-layers 3",
    "language --model.core recurrent --model.core.attention none",
    "language --model.core transformer --model.core.inducing-points 3",
    "reviews --model.regression-loss absolute",
    "boxes --train.label-smoothing 0.3",
    "boxes --model.core transformer --model.core.window 3",
    "points --model.core transformer --model.core.pattern LN",
]


@pytest.mark.parametrize("words", CASES)
def test_an_option_without_effect_is_refused(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split(), "--run", str(tmp_path / "run")]) == 2
    assert f"{words.split()[-2]} has no effect in" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_is_not_in_the_help_and_the_defaults_pass(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = RECIPES[recipe]
    assert main(["train", recipe, "--help"]) == 0
    options = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    assert options.isdisjoint("--" + path.replace("_", "-") for path in entry.unused)
    config = entry.config()
    if entry.needs_data:
        with pytest.raises(UserError, match="no training data: --data"):
            entry.check(config)
        config = apply_changes(config, {"data": {"train": "train.tsv"}}, called=str)
    entry.check(config)
