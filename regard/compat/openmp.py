"""Private API of GNU OpenMP: the entry point that every compiled `omp parallel` calls.

Source: GCC's libgomp, "Implementing PARALLEL construct" (GOMP_parallel).
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def load_parallel() -> Callable[[Any, Any, int, int], None] | None:
    """Return a function (function, pointer, threads, 0) that runs `function(pointer)` on threads of
    torch's OpenMP.

    None: torch was built with another OpenMP, or for another system.
    """
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel
