"""Attention models in PyTorch: queries read a memory of key-value pairs.

This module is the public interface; its names are listed in `__init__.pyi`. Each is imported from
its module on first use, so that `import regard` is quick and the command line prints its help
without loading torch.
"""

import importlib
import re
from pathlib import Path

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {
    name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)
}
"""Module of each public name."""

__all__ = [*_MODULES, "__version__"]  # noqa: PLE0604  # names are str


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'regard' has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
