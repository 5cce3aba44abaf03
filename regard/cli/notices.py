"""Sentences beside the answers, on standard error: they may quote data, so they are always written escaped."""

import sys

from regard.display import escaped


def tell(text: str) -> None:
    """Write a sentence."""
    print(escaped(text), file=sys.stderr, flush=True)
