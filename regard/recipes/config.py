"""Run configurations, one dataclass for each recipe. (no torch: the command line's help is generated from these)"""

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

AnyConfig = (
    DatesRunConfig
    | TranslateRunConfig
    | ReviewsRunConfig
    | TagsRunConfig
    | ImagesRunConfig
    | LanguageRunConfig
    | TracksRunConfig
    | RebuildRunConfig
    | DrawRunConfig
    | BoxesRunConfig
    | EventsRunConfig
)
