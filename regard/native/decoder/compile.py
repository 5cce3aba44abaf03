"""Compilation of the loops of the compiled engine with numba, cached on disk.

Source: lam2015 (numba).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba import njit
from numba.extending import intrinsic as numba_intrinsic

from regard.native.cache import compile_cached, compile_cached_c
from regard.native.compile import STAMP

# Sums may be reordered and contracted; infinities and NaN are preserved.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}

_FEATURES = binding.get_host_cpu_features()
_IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 16 if _IS_WIDE else 8
"""Number of float32 in a vector register."""
TILE_ROWS = 12 if _IS_WIDE else 6
"""Rows of a tile: two registers of sums per row, with some left for the operands."""
IS_SUPPORTED_CPU = _IS_WIDE or bool(_FEATURES.get("avx2") and _FEATURES.get("fma"))
"""True if the processor has these registers and fused multiply-add."""
HAS_BYTE_PRODUCTS = _IS_WIDE and bool(_FEATURES.get("avx512vnni"))
"""True if the processor multiplies and adds four bytes at a time."""
PAIR_PRODUCT = "llvm.x86.avx512bf16.dpbf16ps.512"
_DECLARATION = f"declare <16 x float> @{PAIR_PRODUCT}(<16 x float>, <16 x i32>, <16 x i32>)"
# LLVM before 17 uses i32 where later versions use bfloat.
HAS_PAIR_PRODUCTS = (
    _IS_WIDE and bool(_FEATURES.get("avx512bf16")) and "bfloat" in str(binding.parse_assembly(_DECLARATION))
)
"""True if processor and compiler support products of pairs of bfloat16."""


def jit(function: Callable) -> Callable:
    """Compile a function that is called by other compiled functions."""
    return njit(**_OPTIONS)(inspect.unwrap(function))


def intrinsic(function: Callable) -> Callable:
    """Define a function that emits LLVM code at compile time."""
    # numba's disk cache holds the function, and a type checker's wrapper cannot be pickled.
    return numba_intrinsic(inspect.unwrap(function))


def jit_entry(make: Callable[[str], Callable]) -> Callable[[], Any]:
    """Compile the function that `make(STAMP)` returns, for calls from Python, on first use.

    The compiled code is cached on disk with all its callees, see regard.native.cache. The function must refer to the
    stamp, which numba then includes in the key of the cache.
    """

    @functools.cache
    def compile_once() -> Any:
        return compile_cached(inspect.unwrap(make(STAMP)), stamp=STAMP, **_OPTIONS)

    return compile_once


def jit_callback(make: Callable[[str], Callable], signature: Any) -> Callable[[], int]:
    """Compile the function that `make(STAMP)` returns, for calls by address from compiled code; return the address."""

    @functools.cache
    def compile_once() -> Any:
        options = {name: value for name, value in _OPTIONS.items() if name != "nogil"}
        return compile_cached_c(inspect.unwrap(make(STAMP)), signature, stamp=STAMP, **options)

    return lambda: compile_once().address
