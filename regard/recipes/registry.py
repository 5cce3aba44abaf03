"""The recipes there are, by name. Nothing that does the work is imported here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.errors import UserError
from regard.recipes.config import Dates, Draw, Images, Language, Rebuild, Reviews, Tags, Tracks, Translate
from regard.recipes.kinds import nearest
from regard.recipes.other_data import (
    OtherBoxes,
    OtherData,
    OtherImages,
    OtherLabeled,
    OtherScenes,
    OtherSounds,
    OtherTagged,
    OtherText,
    OtherTracks,
)
from regard.recipes.sets_config import Boxes, Events


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A recipe: its configuration, and the module that does the work."""

    name: str
    summary: str
    """One line, for lists."""
    config: type[Any]
    module: str = ""
    """Where its `task(run, tell)` is; imported when the recipe runs."""
    other: type = OtherData
    """Which other data `evaluate` takes."""
    reads_files: bool = False
    """Whether an input is a file (an image, a sound, a recording) and not a text."""
    answers_in_lines: bool = False
    """Whether an answer is several lines, such as the boxes of an image."""
    task: Callable[..., Any] | None = None
    """The task itself, where there is no module to import: recipes of the user's own."""


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
            other=OtherLabeled,
        ),
        Entry(
            name="tags",
            summary="a tag for each token of a sentence, from columns or JSONL; made-up dates if you have none",
            config=Tags,
            module="regard.recipes.tags",
            other=OtherTagged,
        ),
        Entry(
            name="images",
            summary="images to classes: a folder of images per class, or IDX files; embedded digits if you have none",
            config=Images,
            module="regard.recipes.images",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="language",
            summary="a language model (GPT, or recurrent) of your own text; of dates if you have none",
            config=Language,
            module="regard.recipes.language",
            other=OtherText,
        ),
        Entry(
            name="tracks",
            summary="where people will be who walk among each other, from recordings; made-up crowds if you have none",
            config=Tracks,
            module="regard.recipes.tracks",
            other=OtherTracks,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="rebuild",
            summary="images through a narrow code and back (an autoencoder); embedded digits if you have none",
            config=Rebuild,
            module="regard.recipes.rebuild",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="boxes",
            summary="images to the boxes in them, from COCO's JSON or CSV; shapes drawn on the fly if you have none",
            config=Boxes,
            module="regard.recipes.boxes",
            other=OtherBoxes,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="events",
            summary="sound to the events in it, with onset and duration; made-up scenes if you have none",
            config=Events,
            module="regard.recipes.events",
            other=OtherSounds,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="draw",
            summary="images from texts, such as two sandals: of labeled images, or of your own images with texts",
            config=Draw,
            module="regard.recipes.draw",
            other=OtherScenes,
        ),
    )
}


def register(own: Entry) -> None:
    """Add a recipe of the user's own, for this process: its file is run by the user, and named by nothing else.

    Raises: UserError if there is a recipe of this name.
    """
    if own.name in RECIPES:
        raise UserError(f"there is a recipe {own.name!r} already; choose another name")
    RECIPES[own.name] = own


def entry(name: str) -> Entry:
    """The recipe of this name. Raises UserError with the nearest names, and all."""
    if name not in RECIPES:
        hint = nearest(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise UserError(f"unknown recipe {name!r}{hint}")
    return RECIPES[name]
