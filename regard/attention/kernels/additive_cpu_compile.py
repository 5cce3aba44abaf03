"""How the loops of additive attention on a CPU are compiled, and kept on disk.

Source: lam2015 (numba).
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

__all__ = ["OPTIONS", "STAMP", "compiled", "compiled_without_nan", "kept", "pasted"]

# Sums may be reordered and contracted; infinities and NaN stay what they are.
OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
_SOURCES = sorted(Path(__file__).parent.glob("additive_cpu*.py"))
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Names this code. numba looks at the one file of a function that it keeps, not at those of the functions it calls, so
a function that is kept closes over this name, which is part of what numba finds it by."""


def compiled(function: Callable) -> Callable:
    """Compile a function, for other compiled functions."""
    return _compile(function, nogil=True, **OPTIONS)


def pasted(function: Callable) -> Callable:
    """Write a function's body where it is called, which spares compiling it by itself."""
    return _compile(function, inline="always", **OPTIONS)


def compiled_without_nan(function: Callable) -> Callable:
    """A largest number is found in lanes only where the compiler may take it that none is NaN; sums keep NaN alive."""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


def kept(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function that Python calls, and keep it on disk with all that it calls: see `STAMP`."""
    try:
        return _compile(function, nogil=True, cache=True, **OPTIONS)
    except RuntimeError:  # there is no folder to write to
        return compiled(function)


def _compile(function: Callable, **options: Any) -> Callable:
    # Under a type checker that wraps functions, numba must see what is wrapped.
    return njit(**options)(inspect.unwrap(function))
