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
    if isinstance(part, type):
        found = f"the class {part.__name__}: write {part.__name__}(...)"
    elif isinstance(part, str):
        found = repr(part)
    else:
        found = f"{type(part).__name__}; to write one, see {PAGE}"
    raise TypeError(f"{name} must be a {base.__name__}, such as {example}, got {found}")
