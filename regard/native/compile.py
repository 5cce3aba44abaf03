"""Compilation of the CPU loops with numba, cached on disk (regard.native.cache).

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

from regard.native.cache import compile_cached_c

# Sums may be reordered and contracted; infinities and NaN are preserved.
OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
_SOURCES = sorted(Path(__file__).parent.rglob("*.py"))
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Digest of the sources: numba only checks the file of the cached function, not the files of its callees."""

_RUN = types.void(types.voidptr)
_KINDS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}


def jit(function: Callable) -> Callable:
    """Compile a function that is called by other compiled functions."""
    return _compile(function, nogil=True, **OPTIONS)


def jit_inline(function: Callable) -> Callable:
    """Compile a function that is inlined at its call sites, which avoids compiling it separately."""
    return _compile(function, inline="always", **OPTIONS)


def jit_without_nan(function: Callable) -> Callable:
    """Compile a function assuming no NaN: maxima are vectorized only then. (Sums elsewhere preserve NaN.)"""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


def jit_in_order(function: Callable) -> Callable:
    """Compile a function without reordering sums, for values split into a large and a small part."""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"contract"})


def jit_worker(make: Callable[[type, str], Callable[[int], None]], stamp: str = STAMP) -> Callable[[torch.dtype], Any]:
    """Compile the function of an address that `make(dtype, stamp)` returns as a C function, on first use.

    The compiled code is cached on disk with all its callees, see regard.native.cache. The function must refer to
    `stamp`, which numba then includes in the key of the cache. The result is a ctypes function for each dtype. bfloat16
    is passed as uint16.
    """

    @functools.cache
    def jit_for(dtype: torch.dtype) -> Any:
        function = inspect.unwrap(make(_KINDS[dtype], stamp))
        return compile_cached_c(function, _RUN, stamp=stamp, **OPTIONS).ctypes

    return jit_for


def _compile(function: Callable, **options: Any) -> Callable:
    # Under a type checker that wraps functions, numba must compile the wrapped function.
    return njit(**options)(inspect.unwrap(function))
