"""Whether classes still are what they were when they were written: whoever patches one changes every module of it.

originals = Originals(classes)      at import: what the classes hold, which must be written in their own modules
originals.changed()                 where one holds another function by now; None: nowhere
"""

from collections.abc import Iterable
from types import FunctionType
from typing import Any

__all__ = ["Originals"]

_WRAPPERS = ("jaxtyping", "beartype", "torch")
"""Packages whose decorators stand around methods."""


class Originals:
    """The functions of some classes, of those that they inherit from, too."""

    def __init__(self, classes: Iterable[type]):
        self.classes = list(dict.fromkeys(base for kind in classes for base in kind.__mro__[:-1]))
        self._functions = {kind: _functions(kind) for kind in self.classes}
        self._foreign = next((name for kind in self.classes if (name := _foreign(kind)) is not None), None)
        self._values = self._all()

    def changed(self) -> str | None:
        """The class and the name of what is not original."""
        if self._foreign is None and self._all() == self._values:
            return None
        for kind, functions in self._functions.items():
            now = _functions(kind)
            for name in {**functions, **now}:
                if functions.get(name) is not now.get(name):
                    return f"{kind.__name__}.{name}"
        if self._foreign is None:
            self._values = self._all()  # only what Python itself adds to a class
        return self._foreign

    def _all(self) -> list[tuple[Any, ...]]:
        return [tuple(vars(kind).values()) for kind in self.classes]


def _functions(kind: type) -> dict[str, Any]:
    """What decides how instances behave: all that is called or looked up by Python's rules."""
    return {name: value for name, value in vars(kind).items() if callable(value) or hasattr(value, "__get__")}


def _foreign(kind: type) -> str | None:
    """The first function of a class that was written in another module."""
    for name, value in vars(kind).items():
        for part in (value, *(getattr(value, which, None) for which in ("fget", "fset", "__func__", "__wrapped__"))):
            if isinstance(part, FunctionType):
                module = part.__globals__["__name__"]
                if module != kind.__module__ and module.split(".")[0] not in _WRAPPERS:
                    return f"{kind.__name__}.{name}"
    return None
