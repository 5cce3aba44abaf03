"""What checks the shapes and types written in the package's signatures, at every call that the tests make."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import jaxtyping
from beartype import BeartypeConf, beartype

__all__ = ["checked", "without_checks"]

Function = TypeVar("Function", bound=Callable[..., object])

_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Function) -> Function:
    """The function with its arguments and result checked; an int passes where a float is asked for.

    The check goes function by function, so it cannot know which class `Self` is: that alone is let through.
    """
    hints = getattr(function, "__annotations__", {})
    if Self in hints.values():
        function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return _CHECK(function)


@contextmanager
def without_checks() -> Iterator[None]:
    """Check nothing meanwhile."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
