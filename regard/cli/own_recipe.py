"""Command line of a user's own recipe, run through the file that defines it.

A run folder only names its recipe and imports nothing: `regard predict` on such a run asks to run
the file instead.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.cli.main import main
from regard.recipes.base.entry import Entry
from regard.recipes.registry import register
from regard.settings.options import peek_option


def run_own(own: Entry, argv: Sequence[str] | None = None) -> int:
    """Run a command line (by default sys.argv) with this recipe; return its exit code."""
    register(own)
    words = list(sys.argv[1:] if argv is None else argv)
    folder = peek_option(words, "run")
    # The settings of a folder that holds a run are used, not those of the recipe.
    is_run = folder is not None and (Path(folder) / "run.json").is_file()
    if words[:1] == ["train"] and not is_run:
        words.insert(1, own.name)
    return main(words)
