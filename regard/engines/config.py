"""Which engines there are; holds no tensors, so that the command line can explain it quickly.

torch         the model as it is, step by step: runs everything, and tells what it reads to those who look on
compiled      Transformers that write texts, and language models: the whole search in compiled loops over packed weights
ctranslate2   the model converted to CTranslate2, a decoder in C++ (pip install "regard[ctranslate2]")
auto          compiled for the models that it runs, on the processors that it is made for; else torch
"""

from dataclasses import dataclass
from typing import Literal

from regard.ranges import Threads, check_ranges

ENGINES = {
    "torch": "regard.engines.reference",
    "compiled": "regard.engines.compiled.engine",
    "ctranslate2": "regard.engines.ctranslate2",
}
"""By name, the module with what `regard.engines.registry.Maker` says; imported when the engine is asked for."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What decodes, and how it is laid out on the machine.

    Raises: ValueError if a value is out of range, with its name.
    """

    engine: Literal["auto", "torch", "compiled", "ctranslate2"] = "auto"
    """What decodes a trained model: torch, the reference; compiled, loops over packed weights; ctranslate2, a converted
    copy in C++; all with the same outputs. auto: compiled where it runs the model, else torch."""
    compute_type: str | None = None
    """Numbers that the engine computes in, such as float32 or int8; float32 if not given. Which there are depends on
    the engine and the machine."""
    workers: Threads | None = None
    """Batches that are decoded side by side, sharing the threads out among them; the engine's choice if not given."""

    def __post_init__(self) -> None:
        check_ranges(self)
