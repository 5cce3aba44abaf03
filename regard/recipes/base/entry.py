"""Registry entries of recipes. (no torch)"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard.errors import UserError
from regard.recipes.base.config import Evaluation, NoOptions, Reading
from regard.settings.options import option_name
from regard.settings.tree import Group

NO_DECODER = {
    "model.core.decoder_layers": "its model has no decoder",
    "model.core.window": "its model has no decoder",
    "model.core.attention": "its model has no decoder",
}
"""Settings of cores that models without a decoder do not use."""
BATCHES_BY_COUNT = {"train.batch_tokens": "its batches have the size --batch"}
"""Settings of training that recipes with batches of a number of examples do not use."""
NO_SMOOTHING = {"train.label_smoothing": "its loss has no smoothed labels"}
"""Settings of training that recipes without label smoothing do not use."""

NO_CLASS_WEIGHTS = {"data.class_weights": "its model is no classifier"}
"""Settings of images that recipes without a classifier do not use."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of a recipe, for the command line, before the recipe is imported; defined in
    its config.py."""

    name: str
    summary: str
    """Description in one line, for lists."""
    config: type[Any]
    """Settings of a run."""
    options: type[Any] = NoOptions
    """Options of `predict`."""
    evaluation: type[Any] = Evaluation
    """Options of `evaluate`: `data`, a `regard.recipes.base.config.OtherData`, and others."""
    reading: type[Reading] = Reading
    """Options of `predict` and `look` for files of inputs; `data` of the options of `evaluate` has
    them, too."""
    input: Literal["text", "image", "points", "sound", "tracks", "vector"] = "text"
    """Kind of input: a line of text or of numbers, or a file."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Settings that the recipe shares with others but does not use, by path, with the reason."""
    needs_data: bool = False
    """True if there is no built-in or synthetic data, so that --data.train must be given."""
    recipe: type[Any] | str
    """The recipe's class, or MODULE:CLASS, imported when it is used."""

    def load_class(self) -> type[Any]:
        """Return the recipe's class, imported if `recipe` names it."""
        if not isinstance(self.recipe, str):
            return self.recipe
        module, _, name = self.recipe.partition(":")
        return getattr(importlib.import_module(module), name)

    def input_of(self, config: Any) -> str:
        """Return the kind of input of a run: that of its data, if it has several kinds, else
        `input`."""
        return getattr(config.data, "input", self.input)

    def check(self, config: Any) -> None:
        """Raise UserError for a setting that the recipe does not use, but that was set, or without
        training data."""
        if self.needs_data and config.data.train is None:
            raise UserError(
                "no training data: --data.train must be a file, a folder or a data set (hf:NAME)"
            )
        default = self.config()
        for path, reason in self.unused.items():
            *above, name = path.split(".")
            own, given = default, config
            for part in above:
                own, given = getattr(own, part, None), getattr(given, part, None)
            if not hasattr(given, name):
                continue
            allowed = [
                getattr(source, name) for source in (own, type(given)()) if hasattr(source, name)
            ]
            if getattr(given, name) not in allowed:
                raise UserError(
                    f"{option_name(path)} has no effect in {self.name}, since {reason}: leave it "
                    f"out"
                )

    def hide_unused(self, groups: Sequence[Group]) -> list[Group]:
        """Return groups of settings without those that the recipe does not use, for help."""
        return [
            replace(
                group,
                settings=tuple(
                    setting for setting in group.settings if setting.path not in self.unused
                ),
            )
            for group in groups
        ]
