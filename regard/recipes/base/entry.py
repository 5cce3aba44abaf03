"""Registry entries of recipes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.recipes.base.config import OtherData


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of a recipe: its configuration, and the module that implements it."""

    name: str
    summary: str
    """Description in one line, for lists."""
    config: type[Any]
    module: str = ""
    """Module with `create_recipe(run, notify)`; imported when the recipe is used."""
    other: type = OtherData
    """Options of `evaluate` for data other than the run's test data."""
    reads_files: bool = False
    """True if an input is a file (an image, a sound, a recording) instead of a text."""
    answers_in_lines: bool = False
    """True if an answer has several lines, such as the boxes of an image."""
    recipe: Callable[..., Any] | None = None
    """The recipe's class (or a function that creates it), for recipes without a module: the user's own."""
