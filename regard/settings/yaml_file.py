"""YAML files of settings: nested mappings, whose scalars are text as on the command line."""

from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings. Raises UserError naming the file if it cannot be read."""
    try:
        # Loads text, lists and dicts only, and never guesses the type of a scalar.
        settings = yaml.load(path.read_text(encoding="utf-8-sig"), yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if settings and not isinstance(settings, dict):
        raise UserError(f"{path}: must hold settings by name, got {type(settings).__name__}")
    return settings or {}
