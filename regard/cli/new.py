"""`regard new NAME`: a template of a recipe, in one file that runs and is meant to be edited."""

import keyword
import re
from pathlib import Path

from regard.errors import DONE, UserError
from regard.recipes.registry import RECIPES
from regard.settings.help import page
from regard.settings.options import NoSettings, parse, wants_help
from regard.system.writing import write_atomically

USAGE = "regard new NAME"
ABOUT = (
    "Write NAME.py: settings, data, a tiny model, its metric and its predictions, all in one file "
    "that runs as it is (python NAME.py train) and is meant to be edited. An existing file is "
    "never replaced."
)
_TEMPLATE = Path(__file__).with_name("recipe.py.txt")


def run(argv: list[str]) -> int:
    """Write the file."""
    if wants_help(argv):
        print(page(USAGE, ABOUT))
        return DONE
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
