"""Registry entries of recipes. (no torch)"""

from dataclasses import dataclass
from typing import Any, Literal

from regard.recipes.base.config import Evaluation, NoOptions


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of a recipe, for the command line, before the recipe is imported; defined in its config.py."""

    name: str
    summary: str
    """Description in one line, for lists."""
    config: type[Any]
    """Settings of a run."""
    options: type[Any] = NoOptions
    """Options of `predict`."""
    evaluation: type[Any] = Evaluation
    """Options of `evaluate`: `data`, a `regard.recipes.base.config.OtherData`, and others."""
    input: Literal["text", "image", "points", "sound", "tracks", "vector"] = "text"
    """Kind of input: a line of text or of numbers, or a file."""
    recipe: type[Any] | str
    """The recipe's class, or MODULE:CLASS, imported when it is used."""

    def input_of(self, config: Any) -> str:
        """Return the kind of input of a run: that of its data, if it has several kinds, else `input`."""
        return getattr(config.data, "input", self.input)
