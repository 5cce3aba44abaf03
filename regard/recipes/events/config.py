"""Settings of the recipe `events`: sound event detection. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import EventsConfig, SoundAugmentation, used_augmentation
from regard.models.config import DetectorConfig
from regard.recipes.base.answers import EventsInSound
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_ORDER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Fraction, Range
from regard.training.config import TrainConfig


@settings
class EventsRunConfig:
    """Sound event detection with onset and duration; synthetic sound scenes if no data is given."""

    data: EventsConfig = EventsConfig()
    """Sounds with events, and their sampling and spectrogram."""
    channels: Annotated[int, Range(1, 4_096)] = 48
    """Channels of the convolutions before attention."""
    downsampling_layers: Annotated[int, Range(1, 16)] = 2
    """Number n of stride-2 convolutions: a position covers data.hop * 2^n seconds."""
    model: DetectorConfig = DetectorConfig(num_queries=12)
    """The model. Positions in time have sinusoidal embeddings, so core.positions is none."""
    augment: tuple[SoundAugmentation, ...] = ("auto",)
    """Random changes of sounds in training, any of: speed, by up to 15 %; shift by up to a tenth of
    a segment; frequency-mask, two masks of up to a fifth of the bands; time-mask, two of up to a
    twentieth of the time. auto: all but time-mask."""
    batch: Batch = 16
    """Sounds per batch."""
    threshold: Fraction = 0.6
    """Minimum score of events that count as detected."""
    train: TrainConfig = replace(
        COSINE, steps=2000, lr=1e-3, warmup=200, weight_decay=1e-4, validate_every=250, average=3
    )
    """Training until the first limit (steps, epochs, minutes, patience), `batch` sounds a step."""

    def __post_init__(self) -> None:
        used_augmentation(self.augment)


ENTRY = Entry(
    name="events",
    config=EventsRunConfig,
    answers=("threshold",),
    answer=EventsInSound,
    input="sound",
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING, *NO_ORDER),
    recipe="regard.recipes.events.recipe:EventsRecipe",
)
