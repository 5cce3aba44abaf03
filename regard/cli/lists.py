"""`regard recipes` and `regard presets`: lists of what `regard train` can train."""

from regard.errors import DONE
from regard.recipes.presets import load_presets
from regard.recipes.registry import RECIPES
from regard.settings.help import show_help, two_columns
from regard.settings.options import NoSettings, parse


def list_recipes(argv: list[str]) -> int:
    """List the recipes."""
    show_help(argv, "regard recipes", "List the recipes.")
    parse(argv, NoSettings(), NoSettings())
    print(two_columns([(name, entry.summary) for name, entry in RECIPES.items()]))
    print("\n`regard train RECIPE --help` explains every setting of a recipe.")
    return DONE


def list_presets(argv: list[str]) -> int:
    """List the presets."""
    show_help(argv, "regard presets", "List the presets: models of papers, with their sizes.")
    parse(argv, NoSettings(), NoSettings())
    rows = [
        (name, f"{preset.sizes} ({preset.source}). Recipes: {', '.join(preset.recipes)}")
        for name, preset in load_presets().items()
    ]
    print(two_columns(rows))
    print("\n`regard train RECIPE --preset NAME` trains one; other options override its settings.")
    return DONE
