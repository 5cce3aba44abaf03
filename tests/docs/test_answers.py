"""docs/answers.md: the form of each recipe's answer is the one that its method `json` declares,
with these keys."""

import importlib
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from regard.recipes.base import answers
from regard.recipes.registry import RECIPES
from regard.recipes.targets.kinds import get_target_type

PAGE = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+) \| `(\w+Answer)` \| (.+) \|$", PAGE, re.MULTILINE)
TARGETS = {"one class": "class", "several labels": "labels", "numbers": "number"}


def test_every_form_and_every_recipe_has_its_row() -> None:
    forms = {name for name in vars(answers) if name.endswith("Answer")}
    assert {form for _, form, _ in ROWS} == forms
    assert {name for names, _, _ in ROWS for name in names.partition(":")[0].split(", ")} == set(
        RECIPES
    )


@pytest.mark.parametrize(("names", "form", "keys"), ROWS)
def test_recipe_declares_the_form_of_its_row(names: str, form: str, keys: str) -> None:
    declared = getattr(answers, form)
    recipes, _, kind = names.partition(": ")
    for name in recipes.split(", "):
        module, _, kind_name = str(RECIPES[name].recipe).partition(":")
        method = getattr(importlib.import_module(module), kind_name).json
        if kind:
            config = RECIPES[name].config().data
            object.__setattr__(config, "target", TARGETS[kind])
            method = get_target_type(config).to_json
        assert get_type_hints(method)["return"] is declared
    for key in declared.__annotations__:
        assert f"`{key}`" in keys
