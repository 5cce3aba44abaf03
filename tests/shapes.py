"""Runtime checks of the shapes and types in the package's signatures, used by the tests.

pytest's option --jaxtyping-packages decorates every function of the package by
`jaxtyping.jaxtyped`, which is replaced here: a function is checked by beartype alone, and that
check is made when the function is first called. jaxtyping would compile four functions for each,
used or not, and bind the arguments of every call to the signature.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))
_JAXTYPED = jaxtyping.jaxtyped


def check_types(function: Callable) -> Callable:
    """Return the function with checked arguments and result; an int passes as a float.

    Functions are checked one by one, so the class of `Self` is unknown and not checked.
    """
    hints = getattr(function, "__annotations__", {})
    if Self in hints.values():
        function.__annotations__ = {
            name: Any if hint is Self else hint for name, hint in hints.items()
        }
    return _CHECK(function)


def check_when_called(function: Any = None, *, typechecker: Callable) -> Any:
    """Decorate a function as `jaxtyping.jaxtyped` does, with less work (see the module)."""
    if function is None:
        return functools.partial(check_when_called, typechecker=typechecker)
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return _JAXTYPED(function, typechecker=typechecker)
    checked: Callable | None = None
    has_axes = any(map(_has_axes, function.__annotations__.values()))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        checked = checked or check_types(function)
        if not has_axes:
            return checked(*args, **kwargs)
        with _JAXTYPED("context"):  # within a call, an axis has one size
            return checked(*args, **kwargs)

    return call


def _has_axes(hint: Any) -> bool:
    """Return whether the sizes of axes occur in an annotation."""
    if isinstance(hint, (str, TypeVar)) or (
        inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    ):
        return True
    return any(map(_has_axes, hint if isinstance(hint, list) else get_args(hint)))


jaxtyping.jaxtyped = check_when_called


@contextmanager
def without_checks() -> Iterator[None]:
    """Disable the checks in this block."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
