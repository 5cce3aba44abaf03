"""Settings that a recipe does not use are not offered, and are refused."""

import re
from pathlib import Path

import pytest

import regard
from regard.cli.main import main
from regard.errors import UserError
from regard.recipes.registry import RECIPES
from regard.settings.tree import apply_changes

CASES = {
    "images --train.batch-tokens 7": "its batches have the size --batch",
    "images --model.core.decoder-layers 5": "its model has no decoder",
    "reviews --model.core transformer --model.core.window 3": "its model has no decoder",
    "tags --model.core recurrent --model.core.attention none": "its model has no decoder",
    "language --model.core recurrent --model.core.attention none": "there is no source to attend "
    "to",
    "boxes --train.label-smoothing 0.3": "its loss has no smoothed labels",
}


@pytest.mark.parametrize("words", CASES)
def test_an_option_without_effect_is_refused(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split(), "--run", str(tmp_path / "run")]) == 2
    option = words.split()[-2]
    assert (
        f"{option} has no effect in {words.split(maxsplit=1)[0]}, since {CASES[words]}"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_it_is_refused_in_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("--train.batch-tokens has no effect in images")):
        regard.train("images", tmp_path / "run", train={"batch_tokens": 7})


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
