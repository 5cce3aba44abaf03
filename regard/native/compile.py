"""Compilation of all CPU loops by numba; entry points are cached on disk (regard.native.cache).

Called by other compiled functions:

    jit                 sums may be reordered and contracted; infinities and NaN are preserved
    jit_inline          the same, inlined at its call sites, which avoids compiling it separately
    jit_without_nan     assumes no NaN: maxima are vectorized only then
    jit_in_order        sums are not reordered, for values split into a large and a small part

Entry points, compiled at their first use and cached with all their callees:

    jit_entry           called from Python
    jit_worker          a C function of an address, of which each thread makes one call
    jit_callback        a C function, called by its address from compiled code

Results keep their last bits only with these flags, which differ on purpose.

A loop either sums or writes an array, never both. Otherwise LLVM compiles it twice, in vectors and
in order, and chooses by whether the arrays overlap in memory or might: the order of the sum, and
with it the last bit, would depend on the addresses of the arrays.

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


def _decorator(**options: Any) -> Callable[[Callable], Callable]:
    # Under a type checker that wraps functions, numba must compile the wrapped function.
    return lambda function: njit(**options)(inspect.unwrap(function))


jit = _decorator(nogil=True, **OPTIONS)
jit_inline = _decorator(inline="always", **OPTIONS)
jit_without_nan = _decorator(nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})
jit_in_order = _decorator(nogil=True, error_model="numpy", fastmath={"contract"})


def intrinsic(function: Callable) -> Callable:
    """Define a function that emits LLVM code at compile time."""
    # numba's disk cache holds the function, and a type checker's wrapper cannot be pickled.
    return numba_intrinsic(inspect.unwrap(function))


def emit(signature: Any) -> Callable[[Callable], Callable]:
    """Decorate a function (builder, *arguments) that emits the LLVM code of a compiled function."""

    def decorate(build: Callable) -> Callable:
        build = inspect.unwrap(build)

        def define(_typing, *_arguments):
            def generate(context, builder, _signature, arguments):
                result = build(builder, *arguments)
                return context.get_dummy_value() if result is None else result

            return signature, generate

        define = inspect.unwrap(define)
        define.__signature__ = inspect.signature(build)  # numba supports no variable arguments
        return numba_intrinsic(define)

    return decorate


def jit_entry(function: Callable) -> Callable[[], Any]:
    """Return a function that returns the compiled function."""

    @functools.cache
    def compile_once() -> Any:
        return compile_cached(inspect.unwrap(function), stamp=STAMP, nogil=True, **OPTIONS)

    return compile_once


def jit_worker(make: Callable[[type], Callable[[int], None]]) -> Callable[[torch.dtype], Any]:
    """Return a function of a dtype: the ctypes function that `make` returns.

    bfloat16 is passed as uint16.
    """

    @functools.cache
    def compile_once(dtype: torch.dtype) -> Any:
        function = inspect.unwrap(make(_KINDS[dtype]))
        return compile_cached_c(function, _RUN, stamp=STAMP, **OPTIONS).ctypes

    return compile_once


def jit_callback(function: Callable, signature: Any) -> Callable[[], int]:
    """Return a function that returns the address of the C function."""

    @functools.cache
    def compile_once() -> Any:
        return compile_cached_c(inspect.unwrap(function), signature, stamp=STAMP, **OPTIONS)

    return lambda: compile_once().address
