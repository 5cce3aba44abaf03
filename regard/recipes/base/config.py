"""Settings that recipes share. (no torch)"""

from typing import Annotated

from regard.models.config import ModelConfig
from regard.models.cores.config import max_length_of
from regard.settings.ranges import Range
from regard.training.config import TrainConfig

NBest = Annotated[int, Range(1, 1_000)]

COSINE = TrainConfig(
    steps=1000, schedule="cosine", label_smoothing=0.0, precision="auto", average=0, patience=0
)
"""Training for a number of steps, whose last parameters are used."""


def limit_input_length(max_length: int, model: ModelConfig) -> int:
    """Return max_length, limited to the number of learned positions minus one for EOS."""
    limit = max_length_of(model.core)
    return max_length if limit is None else min(max_length, limit - 1)
