"""rich, whose import draws random numbers of Python: the caller's are kept."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _keep_random_numbers() -> Iterator[None]:
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


with _keep_random_numbers():
    from rich.console import Console as Console
    from rich.progress import BarColumn as BarColumn
    from rich.progress import Progress as Progress
    from rich.progress import TextColumn as TextColumn
