"""Notices on standard error; they may quote data, so control characters are escaped."""

import sys

from regard.display import escape_text


def print_notice(text: str) -> None:
    """Print a notice to standard error."""
    print(escape_text(text), file=sys.stderr, flush=True)
