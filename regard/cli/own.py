"""The command line of a recipe of the user's own: the file that holds it is run, and no other is looked for.

    python mine.py train --run runs/mine        as `regard train mine`, which only this file knows
    python mine.py predict runs/mine INPUT      as `regard predict`, and so evaluate and look

A run folder names its recipe and imports nothing: `regard predict` of such a run says that its own file must be run.
"""

import sys
from collections.abc import Sequence

from regard.cli.main import main
from regard.recipes.registry import Entry, register


def run_own(own: Entry, argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; sys.argv if not given) with this recipe; return its exit code."""
    register(own)
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["train"]:
        words.insert(1, own.name)
    return main(words)
