"""Threads for compiled loops: those of torch's own operators where available, else Python's.

Between two operators torch's threads spin for a while, so other threads would compete with them for
the cores. Torch's Linux builds use GNU OpenMP, whose entry point every compiled `omp parallel`
calls.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from regard.compat.openmp import load_parallel


def run_on_threads(function: Any, argument: int, threads: int) -> None:
    """Call `function(argument)`, a C function of one pointer, on `threads` threads, including this
    one."""
    parallel = load_parallel()
    if threads == 1:
        function(argument)
    elif parallel is not None:
        parallel(function, argument, threads)
    else:
        pool = _thread_pool(os.getpid(), threads - 1)
        futures = [pool.submit(function, argument) for _ in range(threads - 1)]
        function(argument)
        for future in futures:
            future.result()


@functools.cache
def _thread_pool(process: int, count: int) -> ThreadPoolExecutor:
    """Return a pool of threads that is kept between calls; a new one after a fork, which copies no
    threads."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"regard-{process}")
