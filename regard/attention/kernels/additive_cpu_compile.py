"""How the loops of additive attention on a CPU are compiled, and kept on disk.

Source: lam2015 (numba).
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit, types

from regard.attention.kernels.compiled_cache import kept_c_function

# Sums may be reordered and contracted; infinities and NaN stay what they are.
OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
_SOURCES = sorted(Path(__file__).parent.glob("additive_cpu*.py"))
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Names this code: numba looks at the one file of a function that it keeps, not at those of the functions it calls."""

_RUN = types.void(types.voidptr)
_KINDS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}


def compiled(function: Callable) -> Callable:
    """Compile a function, for other compiled functions."""
    return _compile(function, nogil=True, **OPTIONS)


def pasted(function: Callable) -> Callable:
    """Write a function's body where it is called, which spares compiling it by itself."""
    return _compile(function, inline="always", **OPTIONS)


def compiled_without_nan(function: Callable) -> Callable:
    """A largest number is found in lanes only where the compiler may take it that none is NaN; sums keep NaN alive."""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


def compiled_in_order(function: Callable) -> Callable:
    """Sums are taken as they are written: for what is split into a large and a small part."""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"contract"})


def worker(make: Callable[[type, str], Callable[[int], None]], stamp: str = STAMP) -> Callable[[torch.dtype], Any]:
    """Compile what `make(dtype, stamp)` makes, a function of an address, when first asked for, as one that C may call.

    It is kept on disk with all that it calls, see regard.attention.kernels.compiled_cache. The result is what ctypes
    calls. bfloat16 comes as the 16 bits that it is.
    """

    @functools.cache
    def worker_for(dtype: torch.dtype) -> Any:
        function = inspect.unwrap(make(_KINDS[dtype], stamp))
        return kept_c_function(function, _RUN, stamp=stamp, **OPTIONS).ctypes

    return worker_for


def _compile(function: Callable, **options: Any) -> Callable:
    # Under a type checker that wraps functions, numba must see what is wrapped.
    return njit(**options)(inspect.unwrap(function))
