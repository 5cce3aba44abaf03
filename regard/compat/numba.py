"""Private APIs of numba, checked with 0.62 to 0.68: code generation and the file cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching, cgutils, sigutils
from numba.core.caching import IndexDataCacheFile as IndexDataCacheFile
from numba.core.ccallback import CFunc as CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher as Dispatcher
from numba.core.serialize import dumps as dumps

VOID_POINTER = cgutils.voidptr_t


class _ReadOnlyLocator(caching.UserProvidedCacheLocator):
    """The folder of NUMBA_CACHE_DIR if it has files of the module and cannot be written to."""

    def ensure_cache_path(self) -> None:
        if not Path(self.get_cache_path()).is_dir():
            raise FileNotFoundError(self.get_cache_path())


class _CacheFiles(caching.CompileResultCacheImpl):
    _first, *_others = caching.CompileResultCacheImpl._locator_classes
    _locator_classes = (_first, _ReadOnlyLocator, *_others)


class FunctionCache(caching.FunctionCache):
    """numba's file cache, also in a folder that was filled before and cannot be written to."""

    _impl_class = _CacheFiles


def declare_function(module: Any, signature: Any, name: str) -> Any:
    """Return the LLVM function of this name, declared in the module at the first call."""
    return cgutils.get_or_insert_function(module, signature, name)


class _EntryLibrary(JITCodeLibrary):
    """Machine code whose callees are its own.

    numba links the code of all callees into a function, as weak symbols. The dynamic linker
    resolves these to the first definition in the process: to callees that were compiled on their
    own, in the process that compiles, and to those of whichever function was loaded first, in
    others. As each copy was optimized in its own context, last bits depended on that. Internal
    symbols are resolved within the function.
    """

    def _finalize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._finalize_final_module()


class _EntryCompiler(Compiler):
    """numba's compiler, for functions that no other compiled function calls."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        library = self.state.targetctx.codegen().create_library("regard_entry")
        library.__class__ = _EntryLibrary
        library.enable_object_caching()
        self.state.library = library  # numba makes one only if there is none


def build_function(function: Callable, options: dict[str, Any]) -> Any:
    """Return a function that is compiled with copies of its callees, at its first call."""
    return njit(pipeline_class=_EntryCompiler, **options)(function)


def build_c_function(function: Callable, signature: Any, options: dict[str, Any]) -> CFunc:
    """Return a C function, not compiled yet; `numba.cfunc` compiles before a cache is attached."""
    signature = sigutils.normalize_signature(signature)
    return CFunc(function, signature, locals={}, options=options, pipeline_class=_EntryCompiler)


def set_cache(compiled: Any, cache: Any) -> None:
    """Attach a cache to a function that is not compiled yet."""
    compiled._cache = cache
