"""Kinds of targets, by the name of the setting `--data.target`."""

from regard.data.config import ImagesConfig, LabeledConfig
from regard.recipes.targets.base import Target
from regard.recipes.targets.labels import ClassTarget, LabelsTarget
from regard.recipes.targets.numbers import NumberTarget

_KINDS: dict[str, type[Target]] = {
    "class": ClassTarget,
    "labels": LabelsTarget,
    "number": NumberTarget,
}


def get_target_type(data: LabeledConfig | ImagesConfig) -> type[Target]:
    """Return the target class for the setting `data.target`."""
    return _KINDS[data.target]
