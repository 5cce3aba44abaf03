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

__all__ = ["side_by_side"]

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def side_by_side(work: Callable[[], None], threads: int) -> None:
    """Call `work` once on each of so many threads, this one among them; raises what one of them raised."""
    team = _openmp()
    if team is None:
        helpers = _helpers(os.getpid(), threads - 1)
        futures = [helpers.submit(work) for _ in range(threads - 1)]
        work()
        for future in futures:
            future.result()
        return
    errors: list[BaseException] = []

    def guarded(_: object) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # nothing may pass through C
            errors.append(error)

    team(_Work(guarded), None, threads, 0)
    if errors:
        raise errors[0]


@functools.cache
def _openmp() -> Callable[..., None] | None:
    """GOMP_parallel(function, its argument, number of threads, flags) of the library that torch has loaded."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another OpenMP, or another system
        return None
    parallel.argtypes = (_Work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


@functools.cache
def _helpers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that stay between calls; new ones after a fork, which copies none."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"regard-{process}")
