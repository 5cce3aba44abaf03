"""The choice between torch and compiled code.

    implementation = native("softmax", scores)
    return scores.softmax(-1) if implementation is None else implementation.run(scores)

An operation asks once, by its name and inputs. None means torch: where `regard.native` is slower or
does not support the inputs (regard.native.table decides); under torch.compile, torch.export,
torch.func, forward-mode AD and dispatch modes; without `regard.native` or numba; and with the
environment variable REGARD_NATIVE=0 or NUMBA_DISABLE_JIT=1.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.compat.torch import is_eager, is_forward_ad
from regard.errors import UserError

_VARIABLE, _NUMBA_VARIABLE = "REGARD_NATIVE", "NUMBA_DISABLE_JIT"
_REQUIRED = ("regard.native", "numba")


@dataclass(frozen=True)
class Native:
    """A compiled implementation of an operation."""

    accepts: Callable[..., bool]
    """Returns True if it supports these inputs and is faster than torch: by the machine, types,
    sizes and settings alone, so that a resumed run computes the same."""
    location: str
    """Module in `regard.native` and function, "module:function"; imported at the first run."""
    requires: str | None = None
    """Package that must be installed, besides numba."""

    @functools.cached_property
    def run(self) -> Callable[..., Any]:
        module, function = self.location.split(":")
        return getattr(importlib.import_module(f"regard.native.{module}"), function)


@functools.cache
def unsupported_reason() -> str | None:
    """Return the reason why no compiled code is used at all, or None."""
    value = os.environ.get(_VARIABLE, "1")
    if value not in ("0", "1"):
        raise UserError(f"{_VARIABLE} must be 0 or 1, got {value!r}")
    if value == "0":
        return f"{_VARIABLE} is 0"
    if os.environ.get(_NUMBA_VARIABLE, "").strip() not in ("", "0"):
        return f"{_NUMBA_VARIABLE} is set, so that numba compiles nothing"
    missing = [package for package in _REQUIRED if importlib.util.find_spec(package) is None]
    return f"{missing[0]} is not installed" if missing else None


@functools.cache
def find(operation: str) -> Native | None:
    """Return the compiled implementation of an operation, for any inputs; None if there is none."""
    if unsupported_reason() is not None:
        return None
    implementation = importlib.import_module("regard.native.table").OPERATIONS[operation]
    requires = implementation.requires
    if requires is not None and importlib.util.find_spec(requires) is None:
        return None
    return implementation


def native(operation: str, *tensors: Tensor | None, **settings: Any) -> Native | None:
    """Return the compiled implementation that is faster for these inputs, or None."""
    if not is_eager():  # before anything else, which torch.compile would trace
        return None
    implementation = find(operation)
    if implementation is None or not implementation.accepts(*tensors, **settings):
        return None
    return None if is_forward_ad() else implementation
