"""Threads for compiled loops: those of torch's own operators where available, else Python's.

Between two operators torch's threads spin for a while, so other threads would compete with them for
the cores. Torch's Linux builds use GNU OpenMP, whose entry point every compiled `omp parallel`
calls.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from ctypes import Array
from typing import Any

import torch

from regard.compat.openmp import load_parallel


def run_on_threads(function: Any, table: Array, most: int) -> None:
    """Call a C function with a pointer to a table, on at most `most` of torch's threads."""
    threads, parallel = min(torch.get_num_threads(), most), load_parallel()
    if threads == 1:
        function(table)
    elif parallel is not None:
        parallel(function, table, threads, 0)
    else:
        pool = _thread_pool(os.getpid(), threads - 1)
        futures = [pool.submit(function, table) for _ in range(threads - 1)]
        function(table)
        wait(futures)


@functools.cache
def _thread_pool(process: int, count: int) -> ThreadPoolExecutor:
    """Return a pool of threads kept between calls; a new one after a fork, which copies none."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"regard-{process}")
