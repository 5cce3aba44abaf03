"""Comparison of the settings of a checkpoint with those of the current run."""

import json
from collections.abc import Mapping
from typing import Any

from regard.train.checkpoint import Checkpoint, CheckpointError


def check_settings(saved: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Check that a checkpoint was written with the same settings.

    Raises: CheckpointError with each setting that differs.
    """
    current = _flatten(json.loads(json.dumps(settings)))
    previous = _flatten(saved.settings)
    names = [*previous, *(name for name in current if name not in previous)]
    changes = [
        f"{name} was {previous.get(name, 'absent')!r}, is {current.get(name, 'absent')!r}"
        for name in names
        if name not in previous or name not in current or previous[name] != current[name]
    ]
    if changes:
        raise CheckpointError(
            f"{saved.folder} belongs to a run with other settings: {'; '.join(changes)}. "
            "Use the same settings to resume it, or another folder to start a new run."
        )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dictionary with dotted names."""
    flat = {}
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else name
        flat |= _flatten(value, path) if isinstance(value, dict) and value else {path: value}
    return flat
