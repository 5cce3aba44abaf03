"""Two recipes of one's own: language models whose attention is forgetting or differential.

    python own_recipes.py train forgetting --run runs/a --data.train a.txt --data.val b.txt
    python own_recipes.py train differential --run runs/b --data.train a.txt --data.val b.txt
    python own_recipes.py look runs/a "Once upon a time" --compare runs/b

`parts` replaces parts of the model; all other options stay, such as `--model.embedding-dim`.
"""

import sys
from dataclasses import replace
from typing import Any

from forgetting_attention import ForgettingAttention
from own_attention import DifferentialAttention

from regard import NoPositions
from regard.cli.own_recipe import run_own
from regard.recipes.language.config import ENTRY
from regard.recipes.language.recipe import LanguageRecipe


class ForgettingRecipe(LanguageRecipe):
    """Forgetting attention, which needs no positions."""

    def parts(self) -> dict[str, Any]:
        return {"attention": ForgettingAttention, "positions": NoPositions()}


class DifferentialRecipe(LanguageRecipe):
    """Differential attention, with the positions of the settings."""

    def parts(self) -> dict[str, Any]:
        return {"attention": DifferentialAttention}


UNUSED = (*ENTRY.unused, "model.core.positions")
FORGETTING = replace(ENTRY, name="forgetting", recipe=ForgettingRecipe, unused=UNUSED)
DIFFERENTIAL = replace(ENTRY, name="differential", recipe=DifferentialRecipe)

if __name__ == "__main__":
    sys.exit(run_own(FORGETTING, DIFFERENTIAL))
