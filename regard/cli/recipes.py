"""`regard recipes`: list the recipes."""

from regard.errors import DONE
from regard.recipes.registry import RECIPES
from regard.settings.help import page, two_columns
from regard.settings.options import NoSettings, parse, wants_help


def run(argv: list[str]) -> int:
    """List the recipes."""
    if wants_help(argv):
        print(page("regard recipes", "List the recipes."))
        return DONE
    parse(argv, NoSettings(), NoSettings())
    print(two_columns([(name, entry.summary) for name, entry in RECIPES.items()]))
    print("\n`regard train RECIPE --help` explains every setting of a recipe.")
    return DONE
