"""How the loops of the compiled engine are compiled, and kept on disk.

Source: lam2015 (numba).
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit
from numba.extending import intrinsic as numba_intrinsic

from regard.attention.kernels.compiled_cache import kept_c_function, kept_function

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Names this code: numba looks at the one file of a function that it keeps, not at those of the functions it calls."""

# Sums may be reordered and contracted; infinities and NaN stay what they are.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}

_FEATURES = binding.get_host_cpu_features()
_IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 16 if _IS_WIDE else 8
"""Numbers of float32 in a register."""
TILE_ROWS = 12 if _IS_WIDE else 6
"""Rows that a tile multiplies at once: two registers of sums each, and some to spare for what is multiplied."""
IS_MADE_FOR = _IS_WIDE or bool(_FEATURES.get("avx2") and _FEATURES.get("fma"))
"""Whether the processor has such registers, and multiplies and adds in one."""
HAS_BYTE_PRODUCTS = _IS_WIDE and bool(_FEATURES.get("avx512vnni"))
"""Whether the processor multiplies and adds four bytes at a time."""
PAIR_PRODUCT = "llvm.x86.avx512bf16.dpbf16ps.512"
_WRITTEN = f"declare <16 x float> @{PAIR_PRODUCT}(<16 x float>, <16 x i32>, <16 x i32>)"
# LLVM before 17 has words where those after it have bfloat.
HAS_PAIR_PRODUCTS = _IS_WIDE and bool(_FEATURES.get("avx512bf16")) and "bfloat" in str(binding.parse_assembly(_WRITTEN))
"""Whether the processor multiplies and adds two numbers of bfloat16 at a time, and the compiler says so."""


def compiled(function: Callable) -> Callable:
    """Compile a function, for other compiled functions."""
    return njit(**_OPTIONS)(inspect.unwrap(function))


def intrinsic(function: Callable) -> Callable:
    """A function that is called while code is compiled, and writes a part of it."""
    # What numba keeps on disk holds the function, and a type checker's wrapper cannot be kept.
    return numba_intrinsic(inspect.unwrap(function))


def entry(make: Callable[[str], Callable]) -> Callable[[], Any]:
    """Compile what `make(STAMP)` makes, a function that Python calls, when first asked for.

    It is kept on disk with all that it calls, see regard.attention.kernels.compiled_cache.
    """

    @functools.cache
    def once() -> Any:
        return kept_function(inspect.unwrap(make(STAMP)), stamp=STAMP, **_OPTIONS)

    return once


def called_by_address(make: Callable[[str], Callable], signature: Any) -> Callable[[], int]:
    """As `entry`, but what is made is called by compiled code, by the address that this gives."""

    @functools.cache
    def once() -> Any:
        options = {name: value for name, value in _OPTIONS.items() if name != "nogil"}
        return kept_c_function(inspect.unwrap(make(STAMP)), signature, stamp=STAMP, **options)

    return lambda: once().address
