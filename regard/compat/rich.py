"""rich, whose import draws random numbers of Python: the caller's are kept."""

import random

_STATE = random.getstate()
try:
    from rich.console import Console as Console
    from rich.progress import BarColumn as BarColumn
    from rich.progress import Progress as Progress
    from rich.progress import TextColumn as TextColumn
finally:
    random.setstate(_STATE)
