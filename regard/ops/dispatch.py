"""Loading of compiled code: besides regard.engines.compiled, the only module that imports `regard.native`.

An operation gets a module of `regard.native` by name where the compiled code supports its inputs; otherwise it computes
with torch. The module, and with it numba or Triton, is imported at the first call.
"""

import functools
import importlib
from types import ModuleType
from typing import Literal

NativeName = Literal[
    "add_norm", "additive.cpu.call", "additive.gpu.call", "gru.cells", "gru.read", "rows", "token_loss"
]


@functools.cache
def native(name: NativeName) -> ModuleType:
    """Import a module of `regard.native`: `native("rows")` is `regard.native.rows`."""
    return importlib.import_module(f"regard.native.{name}")
