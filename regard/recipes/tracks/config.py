"""Settings of the recipe `tracks`: trajectory forecasting. Importing them needs no torch."""

from dataclasses import field

from regard.data.config import TracksConfig
from regard.errors import UserError
from regard.layers.positions.config import NoPositionsConfig
from regard.models.config import ForecasterConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_DECODER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch
from regard.training.config import TrainConfig


@settings
class TracksRunConfig:
    """Trajectory forecasting of pedestrians; synthetic crowds if no recordings are given."""

    data: TracksConfig = field(default_factory=TracksConfig)
    """Recordings: text files of frame, id, x, y."""
    batch: Batch = 256
    """Pedestrians per batch."""
    model: ForecasterConfig = field(
        default_factory=lambda: ForecasterConfig(
            core=TransformerConfig(
                layers=2,
                width=64,
                heads=4,
                feedforward=128,
                activation="gelu",
                positions=NoPositionsConfig(),
            ),
            dropout=0.3,
        )
    )
    """The model. A set has no order, so core.positions is none."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=800,
            lr=1e-3,
            warmup=100,
            schedule="cosine",
            weight_decay=0.1,
            label_smoothing=0.0,
            precision="float32",
            validate_every=200,
            ema=0.99,
            average=0,
            patience=0,
        )
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        if self.model.joint and self.data.neighbors != TracksConfig().neighbors:
            raise UserError(
                "data.neighbors must not be given with model.joint, which reads all agents of a "
                "scene, got "
                f"{self.data.neighbors}."
            )


ENTRY = Entry(
    name="tracks",
    summary="trajectory forecasting of pedestrians, from recordings; synthetic crowds if not given",
    config=TracksRunConfig,
    input="tracks",
    unused=(*NO_DECODER, *BATCHES_BY_COUNT, *NO_SMOOTHING),
    recipe="regard.recipes.tracks.recipe:TracksRecipe",
)
