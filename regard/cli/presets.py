"""`regard presets`: list the models of papers that `regard train RECIPE --preset NAME` builds."""

from regard.errors import DONE
from regard.recipes.presets import PRESETS
from regard.settings.help import page, two_columns
from regard.settings.options import NoSettings, parse, wants_help


def run(argv: list[str]) -> int:
    """List the presets."""
    if wants_help(argv):
        print(page("regard presets", "List the presets: models of papers, with their sizes."))
        return DONE
    parse(argv, NoSettings(), NoSettings())
    rows = [
        (name, f"{preset.sizes} ({preset.source}). Recipes: {', '.join(preset.recipes)}")
        for name, preset in PRESETS.items()
    ]
    print(two_columns(rows))
    print("\n`regard train RECIPE --preset NAME` trains one; other options override its settings.")
    return DONE
