"""Settings that recipes share. (no torch)"""

from typing import Annotated

from regard.errors import UserError
from regard.models.config import ModelConfig
from regard.models.cores.config import CoreConfig, max_length_of
from regard.settings.ranges import Fraction, Range
from regard.training.config import TrainConfig

NBest = Annotated[int, Range(1, 1_000)]
Threshold = Fraction | None

COSINE = TrainConfig(
    steps=1000, schedule="cosine", label_smoothing=0.0, precision="auto", average=0, patience=0
)
"""Training for a number of steps, whose last parameters are used."""


def check_positions(core: CoreConfig, least: int, name: str) -> None:
    """Raise UserError if a core has less than `least` learned positions; `name` says why."""
    limit = max_length_of(core)
    if limit is not None and limit < least:
        raise UserError(f"model.core.positions.max_length must be at least {name}, got {limit}")


def limit_input_length(max_length: int, model: ModelConfig) -> int:
    """Return max_length, limited to the number of learned positions minus one for EOS."""
    limit = max_length_of(model.core)
    return max_length if limit is None else min(max_length, limit - 1)
