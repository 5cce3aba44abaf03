"""Checks of integer arguments."""


def check_integer(name: str, value: int, least: int) -> None:
    """Raise TypeError unless `value` is an integer, ValueError if it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
