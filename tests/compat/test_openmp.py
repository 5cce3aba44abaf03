"""Private API of GNU OpenMP: the threads of the library that torch loaded run a C function."""

import ctypes
import threading

import pytest

from regard.compat.openmp import load_parallel


def test_each_thread_calls_the_function_with_its_argument():
    run = load_parallel()
    if run is None:
        pytest.skip("torch was built without GNU OpenMP")
    lock, arguments, threads = threading.Lock(), [], set()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(argument):
        with lock:
            arguments.append(argument)
            threads.add(threading.get_ident())

    run(function, 1234, 2, 0)
    assert arguments == [1234, 1234]
    assert len(threads) == 2
