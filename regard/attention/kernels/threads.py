"""Threads for compiled loops: those of torch's own operators where they can be had, else Python's.

Between two operators torch's threads keep spinning for a while, ready for the next; other threads beside them would
share their cores. Torch's builds for Linux run on GNU OpenMP, whose entry point every compiled `omp parallel` calls.

Source: GCC's libgomp, "Implementing PARALLEL construct" (GOMP_parallel).
"""

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def side_by_side(work: Any, argument: int, threads: int) -> None:
    """Call `work(argument)`, a C function of one pointer, on each of so many threads, this one among them."""
    team = _openmp()
    if threads == 1:
        work(argument)
    elif team is not None:
        team(ctypes.cast(work, ctypes.c_void_p), argument, threads, 0)
    else:
        helpers = _helpers(os.getpid(), threads - 1)
        futures = [helpers.submit(work, argument) for _ in range(threads - 1)]
        work(argument)
        for future in futures:
            future.result()


@functools.cache
def _openmp() -> Callable[..., None] | None:
    """GOMP_parallel(function, its argument, number of threads, flags) of the library that torch has loaded."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another OpenMP, or another system
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


@functools.cache
def _helpers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that stay between calls; new ones after a fork, which copies none."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"regard-{process}")
