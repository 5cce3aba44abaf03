"""Registry of recipes by name. Their modules are not imported here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.errors import UserError
from regard.recipes.config import (
    DatesRunConfig,
    DrawRunConfig,
    ImagesRunConfig,
    LanguageRunConfig,
    RebuildRunConfig,
    ReviewsRunConfig,
    TagsRunConfig,
    TracksRunConfig,
    TranslateRunConfig,
)
from regard.recipes.kinds import suggest
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
from regard.recipes.sets_config import BoxesRunConfig, EventsRunConfig


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of a recipe: its configuration, and the module that implements it."""

    name: str
    summary: str
    """Description in one line, for lists."""
    config: type[Any]
    module: str = ""
    """Module with `create_recipe(run, tell)`; imported when the recipe is used."""
    other: type = OtherData
    """Options of `evaluate` for data other than the run's test data."""
    reads_files: bool = False
    """True if an input is a file (an image, a sound, a recording) instead of a text."""
    answers_in_lines: bool = False
    """True if an answer has several lines, such as the boxes of an image."""
    recipe: Callable[..., Any] | None = None
    """The recipe's class (or a function that creates it), for recipes without a module: the user's own."""


RECIPES = {
    entry.name: entry
    for entry in (
        Entry(
            name="dates",
            summary="dates written in many languages, to ISO 8601; the data is built in",
            config=DatesRunConfig,
            module="regard.recipes.dates",
        ),
        Entry(
            name="translate",
            summary="text to text, from your own pairs: TSV, parallel files, JSONL, Hugging Face data sets",
            config=TranslateRunConfig,
            module="regard.recipes.translate",
        ),
        Entry(
            name="reviews",
            summary="text classification (sentiment of reviews), from your own texts; synthetic reviews if not given",
            config=ReviewsRunConfig,
            module="regard.recipes.reviews",
            other=OtherLabeled,
        ),
        Entry(
            name="tags",
            summary="token tagging (NER), from columns or JSONL; synthetic sentences with dates if not given",
            config=TagsRunConfig,
            module="regard.recipes.tags",
            other=OtherTagged,
        ),
        Entry(
            name="images",
            summary="image classification: a folder of images per class, or IDX files; built-in digits if not given",
            config=ImagesRunConfig,
            module="regard.recipes.images",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="language",
            summary="causal language model (GPT, or recurrent) of your own text; of dates if not given",
            config=LanguageRunConfig,
            module="regard.recipes.language",
            other=OtherText,
        ),
        Entry(
            name="tracks",
            summary="trajectory forecasting of pedestrians, from recordings; synthetic crowds if not given",
            config=TracksRunConfig,
            module="regard.recipes.tracks",
            other=OtherTracks,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="rebuild",
            summary="autoencoder of images; built-in digits if not given",
            config=RebuildRunConfig,
            module="regard.recipes.rebuild",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="boxes",
            summary="object detection (DETR), from COCO JSON or CSV; shapes drawn on the fly if not given",
            config=BoxesRunConfig,
            module="regard.recipes.boxes",
            other=OtherBoxes,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="events",
            summary="sound event detection with onset and duration; synthetic scenes if not given",
            config=EventsRunConfig,
            module="regard.recipes.events",
            other=OtherSounds,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="draw",
            summary="text-to-image generation, from labeled images or your own images with captions",
            config=DrawRunConfig,
            module="regard.recipes.draw",
            other=OtherScenes,
        ),
    )
}


def register(own: Entry) -> None:
    """Register a user's own recipe for this process.

    Raises: UserError if the name is taken.
    """
    if own.name in RECIPES:
        raise UserError(f"a recipe named {own.name!r} exists already; choose another name")
    RECIPES[own.name] = own


def get_entry(name: str) -> Entry:
    """Return the entry of a recipe. Raises UserError with similar names, or all names."""
    if name not in RECIPES:
        hint = suggest(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise UserError(f"unknown recipe {name!r}{hint}")
    return RECIPES[name]
