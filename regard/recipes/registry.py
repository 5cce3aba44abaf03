"""Registry of recipes by name. The modules of their classes are not imported here.

A recipe is a folder of this package, whose config.py defines `ENTRY`, and its name in `NAMES`.
"""

import importlib

from regard.errors import UserError
from regard.recipes.base.entry import Entry

NAMES = (
    *("dates", "translate", "reviews", "tags", "images", "language", "tracks"),
    *("rebuild", "boxes", "caption", "points", "events", "draw"),
)
"""Folders of the recipes, in the order in which they are listed."""

RECIPES: dict[str, Entry] = {
    name: importlib.import_module(f"regard.recipes.{name}.config").ENTRY for name in NAMES
}


def get_entry(name: str | Entry) -> Entry:
    """Return the entry of a recipe, by its name or as it is.

    Raises: UserError with similar names, or all names, and for an own entry with the name of
            another recipe.
    """
    if isinstance(name, Entry):
        if RECIPES.get(name.name, name) is not name:
            raise UserError(f"a recipe named {name.name!r} exists already; choose another name")
        return name
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; the recipes are {', '.join(RECIPES)}")
    return RECIPES[name]
