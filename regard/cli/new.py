"""`regard new NAME`: a recipe of one's own, in a file that runs at once and is meant to be changed."""

import keyword
from pathlib import Path

from regard.cli.help import page
from regard.cli.options import NoSettings, parse, wants_help
from regard.errors import UserError
from regard.files import write_atomically
from regard.recipes.registry import RECIPES

USAGE = "regard new NAME"
ABOUT = (
    "Write NAME.py: settings, data, a tiny model, its metric and its answers, all in one file that runs at once "
    "(python NAME.py train) and is meant to be changed into yours. A file that is there is never replaced."
)
_TEMPLATE = Path(__file__).with_name("recipe.py.txt")


def run(argv: list[str]) -> int:
    """Write the file."""
    if wants_help(argv):
        print(page(USAGE, ABOUT, []))
        return 0
    parsed = parse(argv, NoSettings(), NoSettings(), most_positionals=1, what="one name")
    if not parsed.positionals:
        raise UserError(f"which name? {USAGE}")
    (name,) = parsed.positionals
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name == "regard":
        raise UserError(f"the name must be letters, digits and _, as names in Python are, but is {name!r}")
    if name in RECIPES:
        raise UserError(f"there is a recipe {name!r} already; choose another name")
    path = Path(f"{name}.py")
    text = _TEMPLATE.read_text(encoding="utf-8").replace("NAME", name)
    try:
        write_atomically(path, text, overwrite=False)
    except FileExistsError:
        raise UserError(f"{path} exists; it is never replaced") from None
    print(f"{path} is written: try  python {path} train --run runs/{name}")
    return 0
