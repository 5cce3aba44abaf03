"""The recipes there are, by name. Nothing that does the work is imported here."""

from dataclasses import dataclass

from regard.errors import UserError
from regard.recipes.config import AnyConfig, Dates, Draw, Images, Language, Rebuild, Reviews, Tracks, Translate
from regard.recipes.kinds import nearest

__all__ = ["RECIPES", "Entry", "entry"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A recipe: its configuration, and the module that does the work."""

    name: str
    summary: str
    """One line, for lists."""
    config: type[AnyConfig]
    module: str
    """Where its `task(run, tell)` is; imported when the recipe runs."""


RECIPES = {
    one.name: one
    for one in (
        Entry(
            name="dates",
            summary="dates as people write them, in many languages, to ISO dates; the data is embedded",
            config=Dates,
            module="regard.recipes.dates",
        ),
        Entry(
            name="translate",
            summary="texts to texts, from your own pairs: TSV, parallel files, JSONL, Hugging Face data sets",
            config=Translate,
            module="regard.recipes.translate",
        ),
        Entry(
            name="reviews",
            summary="texts to classes (reviews to positive or negative), from your own; made-up ones if you have none",
            config=Reviews,
            module="regard.recipes.reviews",
        ),
        Entry(
            name="images",
            summary="images to classes: a folder of images per class, or IDX files; embedded digits if you have none",
            config=Images,
            module="regard.recipes.images",
        ),
        Entry(
            name="language",
            summary="a language model (GPT, or recurrent) of your own text; of dates if you have none",
            config=Language,
            module="regard.recipes.language",
        ),
        Entry(
            name="tracks",
            summary="where people will be who walk among each other, from recordings; made-up crowds if you have none",
            config=Tracks,
            module="regard.recipes.tracks",
        ),
        Entry(
            name="rebuild",
            summary="images through a narrow code and back (an autoencoder); embedded digits if you have none",
            config=Rebuild,
            module="regard.recipes.rebuild",
        ),
        Entry(
            name="draw",
            summary="images from texts, such as two sandals: of labelled images, or of your own images with texts",
            config=Draw,
            module="regard.recipes.draw",
        ),
    )
}


def entry(name: str) -> Entry:
    """The recipe of this name. Raises UserError with the nearest names, and all."""
    if name not in RECIPES:
        hint = nearest(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise UserError(f"unknown recipe {name!r}{hint}")
    return RECIPES[name]
