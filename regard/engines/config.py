"""Names and settings of engines. Imports no torch, so that the command line shows its help quickly.

docs/engines.md describes the engines, whose outputs are equal up to rounding.
"""

from typing import Literal

from regard.settings.declare import settings
from regard.settings.ranges import Threads

ENGINES = ("torch", "compiled")


@settings
class EngineConfig:
    """Engine for decoding, with its precision and parallelism."""

    engine: Literal["auto", "torch", "compiled"] = "auto"
    """Engine that decodes with a trained model: torch, the reference; compiled, loops over packed
    weights with the same outputs. auto: compiled if it supports the model, else torch."""
    compute_type: str | None = None
    """Data type of the computation, such as float32 (default), bfloat16 or int8; engines differ in
    types."""
    workers: Threads | None = None
    """Number of batches decoded in parallel, which share the threads; by default the engine's."""
