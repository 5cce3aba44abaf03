"""The whole of runs that find sets, as plain data. (no torch: the help is made from these)"""

from dataclasses import dataclass, field
from typing import Annotated

from regard.data.sets_config import BoxesConfig, EventsConfig
from regard.models.config import DetectorConfig, TransformerConfig
from regard.ranges import Batch, Range, Share, check_ranges
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Images to the boxes that are in them: COCO's JSON, CSV or JSONL; shapes drawn on the fly if you have none."""

    data: BoxesConfig = field(default_factory=lambda: BoxesConfig(width=128, height=96))
    """Where the images and their boxes are, and at which size the model sees them."""
    halvings: Annotated[int, Range(1, 16)] = 3
    """How often the convolutions halve the image's sides before attention: a place is 2^halvings pixels wide."""
    model: DetectorConfig = field(default_factory=DetectorConfig)
    """What the model is made of. Places have learned vectors of their own: core.positions is none."""
    augment: bool = True
    """Whether training mirrors, scales and moves images, and changes their light."""
    batch: Batch = 8
    """Images in a batch."""
    threshold: Share = 0.4
    """Least probability of the boxes that `predict` and `look` show."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1500,
            lr=1e-3,
            warmup=150,
            schedule="cosine",
            label_smoothing=0.0,
            weight_decay=1e-4,
            clip=1.0,
            precision="auto",
            validate_every=250,
            average=3,
            patience=0,
        )
    )
    """How the model is trained, until the first limit: steps, epochs, minutes or patience; `batch` images a step."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Events:
    """Sound to the events in it, with onset and duration; scenes of made-up sounds if you have none."""

    data: EventsConfig = field(default_factory=EventsConfig)
    """Where the sounds and their events are, and how they are heard."""
    channels: Annotated[int, Range(1, 4_096)] = 48
    """Channels of the convolutions before attention."""
    halvings: Annotated[int, Range(1, 16)] = 2
    """How often the convolutions halve time and bands: a place is data.hop times 2^halvings long."""
    model: DetectorConfig = field(
        default_factory=lambda: DetectorConfig(
            core=TransformerConfig(
                layers=2, decoder_layers=2, width=128, heads=4, feedforward=256, activation="gelu", positions="none"
            ),
            num_queries=12,
        )
    )
    """What the model is made of. Places have sines of their own: core.positions is none."""
    augment: bool = True
    """Whether training plays sounds faster or slower, moves them, and hides some bands."""
    batch: Batch = 16
    """Sounds in a batch."""
    threshold: Share = 0.6
    """Least probability of what counts as found."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=2000,
            lr=1e-3,
            warmup=200,
            schedule="cosine",
            label_smoothing=0.0,
            weight_decay=1e-4,
            precision="auto",
            validate_every=250,
            average=3,
            patience=0,
        )
    )
    """How the model is trained, until the first limit: steps, epochs, minutes or patience; `batch` sounds a step."""

    def __post_init__(self) -> None:
        check_ranges(self)
