"""Presets: models of papers by name, with their recipes (`--preset`). Imports no torch."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from regard.errors import UserError
from regard.settings.options import option_name
from regard.settings.tree import apply_changes


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Model of a paper, and the settings of a run that belong to it."""

    model: dict[str, Any]
    """Settings of the model, nested by name; others have the defaults of its class."""
    recipes: tuple[str, ...]
    """Names of the recipes that take it."""
    source: str
    """Key of the paper in docs/bibliography.bib, with the place."""
    sizes: str
    """Sizes of the model, and its number of parameters with the paper's vocabulary or classes."""
    settings: dict[str, Any] = {}
    """Other settings of the recipe, nested by name."""


@cache
def load_presets() -> dict[str, Preset]:
    """Return the presets of presets.yaml by name."""
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.load(text, yaml.BaseLoader), dict[str, Preset])


def apply_preset(name: str, recipe: str, config: Any) -> Any:
    """Return the config of a recipe with the model and the settings of a preset.

    Raises: UserError if there is no such preset, or the recipe does not take it.
    """
    presets = load_presets()
    if name not in presets:
        raise UserError(f"unknown preset {name!r}; the presets are {', '.join(presets)}")
    preset = presets[name]
    if recipe not in preset.recipes:
        raise UserError(f"preset {name} is for {' and '.join(preset.recipes)}, not {recipe}")
    model = apply_changes(type(config.model)(), preset.model, called=option_name)
    return apply_changes(replace(config, model=model), preset.settings, called=option_name)
