"""Compilation of all CPU loops by numba; entry points are cached on disk (regard.native.cache).

Called by other compiled functions:

    jit                 sums may be reordered and contracted; infinities and NaN are preserved
    jit_inline          the same, inlined at its call sites, which avoids compiling it separately
    jit_without_nan     assumes no NaN: maxima are vectorized only then
    jit_in_order        sums are not reordered, for values split into a large and a small part

Entry points, compiled at their first use and cached with all their callees. Each is given as a
function that returns it from a stamp, to which it must refer: numba then includes the stamp in the
key of the cache.

    jit_entry           called from Python
    jit_worker          a C function of an address, of which each thread makes one call
    jit_callback        a C function, called by its address from compiled code

Results keep their last bits only with these flags, which differ on purpose.

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
from numba.extending import intrinsic as numba_intrinsic

from regard.native.cache import compile_cached, compile_cached_c

OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
_SOURCES = sorted(Path(__file__).parent.rglob("*.py"))
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Digest of the sources: numba checks only the file of a cached function, not of its callees."""

_RUN = types.void(types.voidptr)
_KINDS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}


def jit(function: Callable) -> Callable:
    """Compile a function that is called by other compiled functions."""
    return _compile(function, nogil=True, **OPTIONS)


def jit_inline(function: Callable) -> Callable:
    """Compile a function that is inlined at its call sites."""
    return _compile(function, inline="always", **OPTIONS)


def jit_without_nan(function: Callable) -> Callable:
    """Compile a function assuming no NaN. (Sums elsewhere preserve NaN.)"""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


def jit_in_order(function: Callable) -> Callable:
    """Compile a function without reordering sums."""
    return _compile(function, nogil=True, error_model="numpy", fastmath={"contract"})


def intrinsic(function: Callable) -> Callable:
    """Define a function that emits LLVM code at compile time."""
    # numba's disk cache holds the function, and a type checker's wrapper cannot be pickled.
    return numba_intrinsic(inspect.unwrap(function))


def jit_entry(make: Callable[[str], Callable]) -> Callable[[], Any]:
    """Return a function that returns the compiled function that `make(STAMP)` returns."""

    @functools.cache
    def compile_once() -> Any:
        return compile_cached(inspect.unwrap(make(STAMP)), stamp=STAMP, nogil=True, **OPTIONS)

    return compile_once


def jit_worker(make: Callable[[type, str], Callable[[int], None]]) -> Callable[[torch.dtype], Any]:
    """Return a function of a dtype: the ctypes function that `make(dtype, STAMP)` returns.

    bfloat16 is passed as uint16.
    """

    @functools.cache
    def compile_once(dtype: torch.dtype) -> Any:
        function = inspect.unwrap(make(_KINDS[dtype], STAMP))
        return compile_cached_c(function, _RUN, stamp=STAMP, **OPTIONS).ctypes

    return compile_once


def jit_callback(make: Callable[[str], Callable], signature: Any) -> Callable[[], int]:
    """Return a function that returns the address of the C function that `make(STAMP)` returns."""

    @functools.cache
    def compile_once() -> Any:
        return compile_cached_c(inspect.unwrap(make(STAMP)), signature, stamp=STAMP, **OPTIONS)

    return lambda: compile_once().address


def _compile(function: Callable, **options: Any) -> Callable:
    # Under a type checker that wraps functions, numba must compile the wrapped function.
    return njit(**options)(inspect.unwrap(function))
