"""Registry of recipes by name. Their modules are not imported here."""

from regard.errors import UserError
from regard.recipes.base.config import (
    OtherBoxes,
    OtherImages,
    OtherLabeled,
    OtherScenes,
    OtherSounds,
    OtherTagged,
    OtherText,
    OtherTracks,
)
from regard.recipes.base.entry import Entry
from regard.recipes.boxes.config import BoxesRunConfig
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.draw.config import DrawRunConfig
from regard.recipes.events.config import EventsRunConfig
from regard.recipes.images.config import ImagesRunConfig
from regard.recipes.language.config import LanguageRunConfig
from regard.recipes.rebuild.config import RebuildRunConfig
from regard.recipes.reviews.config import ReviewsRunConfig
from regard.recipes.tags.config import TagsRunConfig
from regard.recipes.tracks.config import TracksRunConfig
from regard.recipes.translate.config import TranslateRunConfig
from regard.settings.values import suggest

RECIPES = {
    entry.name: entry
    for entry in (
        Entry(
            name="dates",
            summary="dates written in many languages, to ISO 8601; the data is built in",
            config=DatesRunConfig,
            module="regard.recipes.dates.recipe",
        ),
        Entry(
            name="translate",
            summary="text to text, from your own pairs: TSV, parallel files, JSONL, Hugging Face data sets",
            config=TranslateRunConfig,
            module="regard.recipes.translate.recipe",
        ),
        Entry(
            name="reviews",
            summary="text classification (sentiment of reviews), from your own texts; synthetic reviews if not given",
            config=ReviewsRunConfig,
            module="regard.recipes.reviews.recipe",
            other=OtherLabeled,
        ),
        Entry(
            name="tags",
            summary="token tagging (NER), from columns or JSONL; synthetic sentences with dates if not given",
            config=TagsRunConfig,
            module="regard.recipes.tags.recipe",
            other=OtherTagged,
        ),
        Entry(
            name="images",
            summary="image classification: a folder of images per class, or IDX files; built-in digits if not given",
            config=ImagesRunConfig,
            module="regard.recipes.images.recipe",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="language",
            summary="causal language model (GPT, or recurrent) of your own text; of dates if not given",
            config=LanguageRunConfig,
            module="regard.recipes.language.recipe",
            other=OtherText,
        ),
        Entry(
            name="tracks",
            summary="trajectory forecasting of pedestrians, from recordings; synthetic crowds if not given",
            config=TracksRunConfig,
            module="regard.recipes.tracks.recipe",
            other=OtherTracks,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="rebuild",
            summary="autoencoder of images; built-in digits if not given",
            config=RebuildRunConfig,
            module="regard.recipes.rebuild.recipe",
            other=OtherImages,
            reads_files=True,
        ),
        Entry(
            name="boxes",
            summary="object detection (DETR), from COCO JSON or CSV; shapes drawn on the fly if not given",
            config=BoxesRunConfig,
            module="regard.recipes.boxes.recipe",
            other=OtherBoxes,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="events",
            summary="sound event detection with onset and duration; synthetic scenes if not given",
            config=EventsRunConfig,
            module="regard.recipes.events.recipe",
            other=OtherSounds,
            reads_files=True,
            answers_in_lines=True,
        ),
        Entry(
            name="draw",
            summary="text-to-image generation, from labeled images or your own images with captions",
            config=DrawRunConfig,
            module="regard.recipes.draw.recipe",
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
