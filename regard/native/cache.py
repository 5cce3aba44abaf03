"""Disk cache of compiled functions, shared by all processes; damaged files are recompiled.

numba's own cache key holds the pickled values of a closure. Compiled functions among them differ in
each process, so that its cache would never hit; here they are keyed by their code and their own
closures. numba also runs whatever machine code a file holds; here a file begins with a digest of
its key and content.

    FUNCTION.STAMP.KEY.nbc    beside the package, or in the user's cache folder if it is read-only

A cache miss compiles, which takes seconds: the logger of this module reports it beforehand, at
level INFO. Of several processes that miss the same function, one compiles it, and the others wait
for its file.

Source: lam2015 (numba).
"""

import contextlib
import hashlib
import inspect
import logging
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from filelock import FileLock, Timeout
from numba import config

from regard.compat.numba import (
    CFunc,
    Dispatcher,
    FunctionCache,
    IndexDataCacheFile,
    build_c_function,
    build_function,
    dumps,
    set_cache,
)
from regard.errors import UserError

if getattr(config, "DISABLE_JIT", False):  # set by numba from the environment
    raise UserError("NUMBA_DISABLE_JIT is set, but regard requires compilation: unset it")

_LOG = logging.getLogger(__name__)
_DIGEST = 32
_NAME_DIGITS = 12
_KEPT: list[CFunc] = []
"""C functions: their addresses are in tables of compiled code, and must outlive all of them."""
_PATIENCE = 120.0
"""Maximum wait in seconds for another process that compiles a function; it may be suspended."""


def compile_cached(function: Callable, *, stamp: str, **options: Any) -> Any:
    """Return a function compiled and cached at its first call; `stamp`: digest of callees' code."""
    compiled = build_function(function, options)
    _attach_cache(compiled, function, stamp)
    return compiled


def compile_cached_c(function: Callable, signature: Any, *, stamp: str, **options: Any) -> CFunc:
    """Compile a C function, called by address, and cache it; `stamp`: digest of callees' code."""
    compiled = build_c_function(function, signature, options)
    _attach_cache(compiled, function, stamp)
    compiled.compile()
    _KEPT.append(compiled)
    return compiled


def _attach_cache(compiled: Any, function: Callable, stamp: str) -> None:
    try:
        set_cache(compiled, _Cache(function, stamp))
    except RuntimeError:  # as numba found no folder; without a cache every process compiles
        _LOG.info(
            "compiling for this process alone: no folder can be written to",
            extra={"remedy": "set NUMBA_CACHE_DIR to a folder that can be written to"},
        )


class _Cache(FunctionCache):
    """numba's function cache with process-independent keys and checked files."""

    def __init__(self, function: Callable, stamp: str):
        super().__init__(function)
        self._key = (stamp, _describe(function))
        name = self._impl.filename_base
        self._files = self._cache_file = _Files(Path(self._cache_path), name, stamp)
        self._unlock: Callable[[], None] = lambda: None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached function, or None: numba then compiles and calls `save_overload`."""
        cached = super().load_overload(sig, target_context)
        if cached is None:
            _LOG.info("compiling %s for this machine, cached in %s", self._name, self.cache_path)
            self._unlock = self._files.lock(self._index_key(sig, target_context.codegen()))
            # Another process may have compiled it meanwhile.
            cached = super().load_overload(sig, target_context)
            if cached is not None:
                self._unlock()
        return cached

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled function."""
        try:
            super().save_overload(sig, data)
        finally:
            self._unlock()

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._key


class _Files(IndexDataCacheFile):
    """Cache files of one function, one for each key."""

    def __init__(self, folder: Path, name: str, stamp: str):
        self._folder, self._name = folder, name
        self._current = f"{name}.{stamp[:_NAME_DIGITS]}"

    def load(self, key: Any) -> Any:
        """Return the data saved under this key; None if there is none or it is damaged."""
        # numba may fail in any way on bad content; every failure means: recompile.
        try:
            content = self._path(key).read_bytes()
            if content[:_DIGEST] != _digest(key, content[_DIGEST:]):
                return None
            return pickle.loads(content[_DIGEST:])  # noqa: S301  # numba's own format, in a folder of the user's own
        except Exception:  # noqa: BLE001  # see above
            return None

    def save(self, key: Any, data: Any) -> None:
        """Save the data and remove files of earlier code; errors of the disk are ignored."""
        content, path = dumps(data), self._path(key)
        unfinished = path.with_name(f"{path.name}.tmp.{uuid.uuid4().hex[:16]}")
        try:
            unfinished.write_bytes(_digest(key, content) + content)
            unfinished.replace(path)
            for old in self._folder.glob(f"{self._name}.*"):
                if not old.name.startswith(f"{self._current}."):
                    old.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def lock(self, key: Any) -> Callable[[], None]:
        """Wait until no other process compiles this key; return a function to let the next one."""
        lock = FileLock(self._path(key).with_suffix(".lock"))
        try:
            lock.acquire(timeout=_PATIENCE)
        except (Timeout, OSError):
            _LOG.info("compiling without a lock: %s", lock.lock_file)
        return lock.release

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._current}.{_digest(key, b'').hex()[:_NAME_DIGITS]}.nbc"


def _describe(value: Any) -> Any:
    """Return a process-independent description of a function or of a value in its closure."""
    function = value.py_func if isinstance(value, Dispatcher) else value
    if not isinstance(function, FunctionType):
        return repr(value)
    function = inspect.unwrap(function)
    inner = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    code = hashlib.sha256(function.__code__.co_code).hexdigest()
    cells = tuple((name, _describe(cell.cell_contents)) for name, cell in inner)
    return function.__module__, function.__qualname__, code, cells


def _digest(key: Any, content: bytes) -> bytes:
    return hashlib.sha256(repr(key).encode() + content).digest()
