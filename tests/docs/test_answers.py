"""docs/answers.md: each recipe has a row, whose keys are those of the types of answers."""

import re
from collections import defaultdict
from pathlib import Path

from regard.recipes.registry import RECIPES
from regard.settings.schemas import type_schemas
from regard.settings.tree import apply_changes

PAGE = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([a-z, ]+)(?:: .+)? \| (`.+) \|$", PAGE.partition("\n## JSON\n")[2], re.MULTILINE
)
VARIANTS = {
    "reviews": [{"data": {"target": kind}} for kind in ("class", "labels", "number")],
    "images": [{"data": {"target": kind}} for kind in ("class", "labels", "number")],
    "tracks": [{"model": {"paths": count}} for count in (1, 4)],
    "rebuild": [{"model": {"kind": kind}} for kind in ("dense", "quantized")],
}
"""Settings of runs whose answers have different types."""
NO_KEYS = {"value", "source"}
"""Words of the table that are a name of a number, and a key of the input."""


def keys_of(recipe: str) -> set[str]:
    """Return the keys of all answers of a recipe."""
    entry, keys = RECIPES[recipe], set()
    for changes in VARIANTS.get(recipe, [{}]):
        config = apply_changes(entry.config(), changes, called=str)
        for schema in type_schemas(entry.answer_of(config)).values():
            keys |= schema["properties"].keys()
    return keys


def test_every_recipe_has_its_row() -> None:
    assert {name for row, _ in ROWS for name in row.split(", ")} == set(RECIPES)


def test_keys_of_the_table_are_those_of_the_types() -> None:
    documented = defaultdict(set)
    for names, keys in ROWS:
        documented[names] |= set(re.findall(r"`(\w+)`", keys)) - NO_KEYS
    for names, keys in documented.items():
        assert keys == set.union(*map(keys_of, names.split(", "))), names
