"""Compare the settings that decided a checkpoint's weights with those of the present run."""

import json
from collections.abc import Mapping
from typing import Any

from regard.train.checkpoint import CheckpointError, Saved


def check_settings(saved: Saved, settings: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint whose settings decided other weights; the error names each that
    differs."""
    now = _flat(json.loads(json.dumps(settings)))
    then = _flat(saved.settings)
    names = [*then, *(name for name in now if name not in then)]
    changes = [
        f"{name} was {then.get(name, 'absent')!r}, is {now.get(name, 'absent')!r}"
        for name in names
        if name not in then or name not in now or then[name] != now[name]
    ]
    if changes:
        raise CheckpointError(
            f"{saved.folder} is of a run with other settings: {'; '.join(changes)}. "
            "Give the same settings to go on with it, or another folder to begin anew."
        )


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat = {}
    for name, value in values.items():
        at = f"{path}.{name}" if path else name
        flat |= _flat(value, at) if isinstance(value, dict) and value else {at: value}
    return flat
