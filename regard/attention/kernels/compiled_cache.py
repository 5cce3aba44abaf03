"""Compiled loops on disk: found again by every process, and compiled anew where a file is damaged.

numba finds what it kept by the pickled values that a function closes over. A compiled function among them is another
one in each process, so that nothing would ever be found; here it counts as its code and what it closes over in turn.
numba also runs whatever machine code a file holds; here a file begins with a digest of its key and content.

    FUNCTION.STAMP.KEY.nbc     beside the package, or in the user's cache folder where that cannot be written

What is not found is compiled, which takes seconds: the logger of this module says so beforehand, at level INFO.

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

from numba import config, njit
from numba.core import sigutils
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from regard.errors import UserError

REMEDY = "set NUMBA_CACHE_DIR to a folder that can be written to"

if getattr(config, "DISABLE_JIT", False):  # set by numba from the environment
    raise UserError("NUMBA_DISABLE_JIT is set, but regard's loops run compiled only: remove it from the environment")

_LOG = logging.getLogger(__name__)
_DIGEST = 32
_SHOWN = 12


def kept_function(function: Callable, *, stamp: str, **options: Any) -> Any:
    """A function for Python to call, compiled when first called; `stamp` names the code of all that it calls."""
    made = njit(**options)(function)
    _keep(made, function, stamp)
    return made


def kept_c_function(function: Callable, signature: Any, *, stamp: str, **options: Any) -> CFunc:
    """A function for C to call, by its address; `stamp` names the code of all that it calls."""
    made = CFunc(function, sigutils.normalize_signature(signature), locals={}, options=options)
    _keep(made, function, stamp)
    made.compile()
    return made


def is_kept(made: Any) -> bool:
    """Return True if the compiled code of a function is kept on disk, False if each process compiles it anew."""
    return not isinstance(made._cache, _NoCache)


def _keep(made: Any, function: Callable, stamp: str) -> None:
    try:
        made._cache = _Cache(function, stamp)
    except RuntimeError:  # no folder can be written to
        made._cache = _NoCache()


class _Cache(FunctionCache):
    """numba's cache with keys and files of our own."""

    def __init__(self, function: Callable, stamp: str):
        super().__init__(function)
        self._key = (stamp, _described(function))
        self._cache_file = _Files(Path(self._cache_path), self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function; None: it is now compiled."""
        found = super().load_overload(sig, target_context)
        if found is None:
            _LOG.info("compiling %s for this machine, to be kept in %s", self._name, self.cache_path)
        return found

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._key


class _NoCache(NullCache):
    """For a function that is compiled in each process."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        """None: it is now compiled."""
        _LOG.info("compiling for this process alone: no folder can be written to", extra={"remedy": REMEDY})


class _Files(IndexDataCacheFile):
    """The files of one function, one for each key."""

    def __init__(self, folder: Path, name: str, stamp: str):
        self._folder, self._name, self._stamp = folder, name, stamp

    def load(self, key: Any) -> Any:
        """What was saved under this key; None if nothing was, or it is damaged."""
        # numba may refuse what it reads in any way, and each means the same: compile.
        try:
            content = self._path(key).read_bytes()
            if content[:_DIGEST] != _digest(key, content[_DIGEST:]):
                return None
            return pickle.loads(content[_DIGEST:])  # noqa: S301  # numba's own format, in a folder of the user's own
        except Exception:  # noqa: BLE001
            return None

    def save(self, key: Any, data: Any) -> None:
        """Keep it, in place of what earlier code left; a disk that cannot be written changes nothing."""
        content, path = dumps(data), self._path(key)
        unfinished = path.with_name(f"{path.name}.tmp.{uuid.uuid4().hex[:16]}")
        try:
            unfinished.write_bytes(_digest(key, content) + content)
            unfinished.replace(path)
            for old in {*self._folder.glob(f"{self._name}.*")} - {*self.all_of(self._stamp)}:
                old.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget all."""
        for path in self._folder.glob(f"{self._name}.*.nbc"):
            path.unlink(missing_ok=True)

    def all_of(self, stamp: str) -> list[Path]:
        """The files of this code, for any types and processor, unfinished ones included."""
        return list(self._folder.glob(f"{self._name}.{stamp[:_SHOWN]}.*"))

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}.{self._stamp[:_SHOWN]}.{_digest(key, b'').hex()[:_SHOWN]}.nbc"


def _described(value: Any) -> Any:
    """What makes a value that a function closes over, or the function itself, the same one in another process."""
    function = value.py_func if isinstance(value, Dispatcher) else value
    if not isinstance(function, FunctionType):
        return repr(value)
    function = inspect.unwrap(function)
    inner = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    code = hashlib.sha256(function.__code__.co_code).hexdigest()
    cells = tuple((name, _described(cell.cell_contents)) for name, cell in inner)
    return function.__module__, function.__qualname__, code, cells


def _digest(key: Any, content: bytes) -> bytes:
    return hashlib.sha256(repr(key).encode() + content).digest()
