"""Sizes and counts that callers give: whole numbers with a least one."""


def check_whole(name: str, value: int, least: int) -> None:
    """Raise TypeError unless `value` is an integer, ValueError if it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, but is {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, but is {value}")
