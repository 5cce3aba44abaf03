"""Private APIs of numba, checked with 0.62 to 0.68: code generation helpers and the classes of its file cache.

numba documents neither how a function's cache is keyed and stored nor how an intrinsic calls an LLVM function.
"""

from collections.abc import Callable
from typing import Any

from numba.core import cgutils, sigutils
from numba.core.caching import FunctionCache as FunctionCache
from numba.core.caching import IndexDataCacheFile as IndexDataCacheFile
from numba.core.caching import NullCache as NullCache
from numba.core.ccallback import CFunc as CFunc
from numba.core.dispatcher import Dispatcher as Dispatcher
from numba.core.serialize import dumps as dumps

VOID_POINTER = cgutils.voidptr_t


def declare_function(module: Any, signature: Any, name: str) -> Any:
    """Return the LLVM function of this name, declared in the module at the first call."""
    return cgutils.get_or_insert_function(module, signature, name)


def build_c_function(function: Callable, signature: Any, options: dict[str, Any]) -> CFunc:
    """Return a C function, not compiled yet: `numba.cfunc` compiles at once, before a cache can be attached."""
    return CFunc(function, sigutils.normalize_signature(signature), locals={}, options=options)


def set_cache(compiled: Any, cache: FunctionCache | NullCache) -> None:
    """Attach a cache to a function that is not compiled yet."""
    compiled._cache = cache


def cache_of(compiled: Any) -> Any:
    """Return the cache of a function."""
    return compiled._cache
