"""Settings of the recipe `rebuild`: autoencoders. Importing them needs no torch."""

from dataclasses import replace

from regard.data.config import ImagesConfig, VectorsConfig
from regard.models.autoencoders.config import AutoencoderConfig
from regard.recipes.base.answers import CodeAnswer, QuantizedCodeAnswer
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_CLASS_WEIGHTS, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch
from regard.training.config import TrainConfig


@settings
class RebuildRunConfig:
    """Autoencoder of images or of vectors of numbers; handwritten digits if not given."""

    data: ImagesConfig | VectorsConfig = ImagesConfig()
    """images, whose classes are not used, or vectors: what is reconstructed."""
    model: AutoencoderConfig = AutoencoderConfig()
    """The model."""
    batch: Batch = 128
    """Images or vectors per batch."""
    energy: bool = False
    """Print the energy F(y) = C + R of each input instead of its code (--json: besides it)."""
    train: TrainConfig = replace(
        COSINE, steps=1500, lr=1e-3, warmup=100, precision="float32", validate_every=250
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        if self.model.whole_batch is not None and self.train.accumulate > 1:
            raise ValueError(f"train.accumulate must be 1 with model.{self.model.whole_batch}")
        kind = self.model.kind
        if isinstance(self.data, ImagesConfig):
            if kind == "latent":
                raise ValueError("data must be vectors with model.kind=latent, got images")
        elif kind not in ("dense", "latent"):
            raise ValueError(f"model.kind must be dense or latent with data=vectors, got {kind}")
        elif self.data.conditions and kind != "latent":
            raise ValueError(f"model.kind must be latent for data with a condition x, got {kind}")


ENTRY = Entry(
    name="rebuild",
    config=RebuildRunConfig,
    answers=("energy",),
    answer=lambda config: QuantizedCodeAnswer if config.model.kind == "quantized" else CodeAnswer,
    input="image",
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING, *NO_CLASS_WEIGHTS),
    recipe="regard.recipes.rebuild.recipe:RebuildRecipe",
)
