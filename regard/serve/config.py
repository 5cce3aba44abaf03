"""Limits of the HTTP service. (no torch)"""

from typing import Annotated

from regard.settings.declare import settings
from regard.settings.ranges import Range

_Positive = Annotated[int, Range(1, 1_000_000_000)]
_Seconds = Annotated[float, Range(0.001, 86_400)]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine for itself."""


@settings
class LimitsConfig:
    """Limits of requests."""

    body: _Positive = 10_000_000
    """Size of the body of a request in bytes."""
    inputs: _Positive = 256
    """Inputs of a request."""
    characters: _Positive = 65_536
    """Characters of an input that is a text."""
    pixels: _Positive = 16_000_000
    """Pixels of an image."""
    sound: _Seconds = 60.0
    """Duration of a sound in seconds."""
    beam: _Positive = 16
    """Width of a beam search, and number of outputs per input."""
    length: _Positive = 1_024
    """Tokens of an output that a request may ask for."""
    waiting: _Positive = 1_000
    """Inputs that wait to be computed; requests beyond are refused (429)."""
    memory: _Positive = 256_000_000
    """Bytes of the bodies of all requests in progress; requests beyond are refused (429)."""
    upload: _Seconds = 10.0
    """Seconds in which the body of a request must arrive (408)."""
    wait: _Seconds = 2.0
    """Seconds that the waiting inputs may take; requests beyond are refused (429)."""
    deadline: _Seconds = 30.0
    """Seconds after which a request without an answer fails (504)."""
