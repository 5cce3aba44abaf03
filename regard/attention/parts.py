"""Check of the parts of a read that a caller gives: each is an object of its base class."""

from typing import Any

PAGE = "docs/howto/write-your-own.md"


def check_part(name: str, part: Any, base: type[Any], example: str) -> None:
    """Raise TypeError unless a part is an object of its base class.

    name:    of the argument.
    example: an object of the class, as it is written.
    """
    if isinstance(part, base):
        return
    raise TypeError(f"{name} must be a {base.__name__}, such as {example}, got {describe_part(part)}")


def describe_part(part: Any) -> str:
    """Return what an argument is that is not the part it should be, and how to get one."""
    if isinstance(part, type):
        return f"the class {part.__name__}: write {part.__name__}(...)"
    return repr(part) if isinstance(part, str) else f"{type(part).__name__}; to write one, see {PAGE}"
