"""Engines by name; compiled code is imported when it is first used."""

import importlib
import warnings
from typing import Any

import torch

from regard.engines.config import ENGINES, EngineConfig
from regard.engines.engine import Engine, on_device
from regard.engines.lowering import UnsupportedModelError, lower
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.models.cores.transformer import Transformer
from regard.models.readers.tokens import TokenReader
from regard.ops import dispatch


def prepare(
    name: str,
    model: Any,
    *,
    compute_type: str | None = None,
    threads: int = 1,
    workers: int | None = None,
) -> Engine:
    """Return an engine for a trained model in eval mode.

    Engines are snapshots, which later changes of the model do not affect; only the torch engine
    runs the model itself.

    name: one of `regard.engines.config.ENGINES`, or auto: compiled if it supports the model, else
          torch, with a warning if compiled usually supports models of this kind.
    threads:   total number of threads.
    workers:   number of batches decoded in parallel; one per thread by default.
    Raises: UserError if there is no such engine, or if it does not support this model or the
            compute type.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(f"engine must be one of auto, {', '.join(ENGINES)}, got {name!r}")
    EngineConfig(workers=workers)  # checks the number
    is_auto = name == "auto"
    if name == "torch" or (is_auto and not _prefers_compiled(model)):
        return TorchEngine(model, compute_type=compute_type, workers=workers)
    try:
        if (reason := dispatch.unsupported_reason()) is not None:
            raise UnsupportedModelError(f"it needs compiled code, but {reason}")
        with on_device(torch.device("cpu")):
            form = lower(model)
            compiled = importlib.import_module("regard.engines.compiled.engine")
            return compiled.CompiledEngine(
                form, compute_type=compute_type, workers=workers or threads
            )
    except UnsupportedModelError as error:
        reason = f"engine 'compiled' does not support this model: {error}"
        if not is_auto:
            raise UserError(f"{reason}. Use engine 'torch'.") from error
        warnings.warn(f"engine 'torch' is used, which is slower: {reason}", stacklevel=3)
        return TorchEngine(model, compute_type=compute_type, workers=workers)


def _prefers_compiled(model: Any) -> bool:
    """Return True for text Transformers on a CPU for which the compiled engine is optimized."""
    core, reader = getattr(model, "core", None), getattr(model, "reader", None)
    if not isinstance(reader, TokenReader | None) or not isinstance(core, Transformer):
        return False
    if any(weight.device.type != "cpu" for weight in core.parameters()):
        return False
    if dispatch.unsupported_reason() is not None:
        return True  # for the warning
    return importlib.import_module("regard.engines.compiled.engine").is_optimized_cpu()
