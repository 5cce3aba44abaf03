"""Recipes of one's own: a template to start from, and the command line of the file.

A run folder only names its recipe and imports nothing: `regard predict` on such a run asks to run
the file instead.
"""

import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.cli.main import main
from regard.errors import DONE, UserError
from regard.recipes.base.entry import Entry
from regard.recipes.registry import RECIPES, get_entry
from regard.settings.help import show_help
from regard.settings.options import NoSettings, parse, peek_option
from regard.system.writing import write_atomically

USAGE = "regard new NAME"
ABOUT = (
    "Write NAME.py: settings, data, a tiny model, its metric and its predictions, all in one file "
    "that runs as it is (python NAME.py train) and is meant to be edited. An existing file is "
    "never replaced."
)
_TEMPLATE = Path(__file__).with_name("recipe.py.txt")


def write_recipe(argv: list[str]) -> int:
    """Write a recipe of one's own to start from."""
    show_help(argv, USAGE, ABOUT)
    parsed = parse(argv, NoSettings(), NoSettings(), max_positionals=1)
    if not parsed.positionals:
        raise UserError(f"NAME is missing. {USAGE}")
    (name,) = parsed.positionals
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise UserError(f"NAME must be letters, digits and _, first a letter, got {name!r}")
    if name in RECIPES:
        raise UserError(f"a recipe {name!r} exists already; choose another name")
    path = Path(f"{name}.py")
    text = _TEMPLATE.read_text(encoding="utf-8").replace("NAME", name)
    try:
        write_atomically(path, text, overwrite=False)
    except FileExistsError:
        raise UserError(f"{path} exists; it is never replaced") from None
    print(f"{path} is written: try  python {path} train --run runs/{name}")
    return DONE


def run_own(own: Entry, *others: Entry, argv: Sequence[str] | None = None) -> int:
    """Run a command line (by default sys.argv) with these recipes; return its exit code.

    `train` and `sweep` take the first unless another is named.
    """
    names = [entry.name for entry in (own, *others)]
    for entry in (own, *others):
        RECIPES[entry.name] = get_entry(entry)
    words = list(sys.argv[1:] if argv is None else argv)
    folder = peek_option(words, "run")
    # The settings of a folder that holds a run are used, not those of the recipe.
    is_run = folder is not None and (Path(folder) / "run.json").is_file()
    is_named = words[1:2] and words[1] in names
    if words[:1] in (["train"], ["sweep"]) and not is_run and not is_named:
        words.insert(1, own.name)
    return main(words)
