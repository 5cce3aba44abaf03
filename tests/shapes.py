"""Runtime checks of the shapes and types in the package's signatures, used by the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import jaxtyping
from beartype import BeartypeConf, beartype

Function = TypeVar("Function", bound=Callable[..., object])

_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_types(function: Function) -> Function:
    """Return the function with checked arguments and result; an int passes as a float.

    Functions are checked one by one, so the class of `Self` is unknown and not checked.
    """
    hints = getattr(function, "__annotations__", {})
    if Self in hints.values():
        function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return _CHECK(function)


@contextmanager
def without_checks() -> Iterator[None]:
    """Disable the checks in this block."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
