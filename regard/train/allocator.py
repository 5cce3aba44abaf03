"""Keep freed memory in the process, so that on Linux a training step need not ask the kernel for it again.

glibc returns every large block to the kernel when it is freed, and the kernel zeroes the pages of the next
one: a fifth to a third of a small model's step goes there.
"""

import ctypes
import platform
import sys

# From glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for this process; whether that was done (False where there is no
    glibc).

    The process then holds on to the most memory that it ever used. Call it before the first tensors are made.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    settings = [(_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 2**28)]
    return sum(mallopt(name, value) for name, value in settings) == len(settings)
