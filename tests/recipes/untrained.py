"""Recipes and their models at tiny sizes, with random weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.cli.train import TrainOptions
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.run import ARTIFACTS, Run
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry
from regard.settings.options import parse
from tests.recipes.tiny import quick_options


def untrained(name: str, folder: Path, *options: str) -> tuple[Recipe[Any], nn.Module]:
    """Return a recipe with its artifacts in a folder, and its model in evaluation.

    options: instead of those of a quick run, if they are given.
    """
    entry, words = get_entry(name), [*options] or quick_options(name)
    config = parse(words, TrainOptions(), entry.config()).config
    recipe = create_recipe(Run(recipe=name, seed=1, config=config), lambda _: None)
    (folder / ARTIFACTS).mkdir()
    recipe.pretrain(folder)
    for file, artifact in recipe.fit(recipe.train).items():
        artifact.save(folder / ARTIFACTS / file)
    recipe.open(folder / ARTIFACTS)
    torch.manual_seed(5)
    model = recipe.model().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # some are zero initially
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return recipe, model
