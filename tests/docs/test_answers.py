"""docs/answers.md: each recipe has a row (its keys: see tests/recipes/capture_checks.py)."""

import re
from pathlib import Path

from regard.recipes.registry import RECIPES

PAGE = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z, ]+)(?:: .+)? \| `.+ \|$", PAGE, re.MULTILINE)


def test_every_recipe_has_its_row() -> None:
    assert {name for row in ROWS for name in row.split(", ")} == set(RECIPES)
