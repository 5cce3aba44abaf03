"""Settings of the recipe `images`: image classification and regression. Imports no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import ImageAugmentation, ImagesConfig, used_augmentation
from regard.errors import UserError
from regard.layers.positions.config import NoPositionsConfig
from regard.models.config import ClassifierConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import target_answer
from regard.recipes.base.config import COSINE, NBest, Threshold
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_DECODER, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Range
from regard.training.config import TrainConfig


@settings
class ImagesRunConfig:
    """Image classification: a folder of images per class, IDX files; digits if not given."""

    data: ImagesConfig = ImagesConfig()
    """The images."""
    patch: Annotated[int, Range(1, 4_096)] | None = None
    """Side of the patches in pixels (ViT); a stem of three small convolutions if not given."""
    image_mean: tuple[Annotated[float, Range(-1e6, 1e6)], ...] = (0.5,)
    """Numbers that are subtracted from pixels, which are between 0 and 1: one, or one a channel."""
    image_std: tuple[Annotated[float, Range(1e-6, 1e6)], ...] = (1.0,)
    """Numbers by which they are then divided: one, or one a channel."""
    patch_positions: bool = True
    """Learned vectors of the row and the column of each patch. false: positions are those of
    core.positions, such as learned, with one vector for the class token and each patch (ViT)."""
    model: ClassifierConfig = ClassifierConfig(
        core=TransformerConfig(
            layers=3, width=96, feedforward=288, activation="gelu", positions=NoPositionsConfig()
        )
    )
    """The model; core.positions is none because of patch_positions."""
    augment: tuple[ImageAugmentation, ...] = ("auto",)
    """Random changes of images in training, any of: shift by up to an eighth of the sides; zoom by
    0.8 to 1.4; crop of half of the area or more, scaled to the image; flip and flip-vertical, with
    probability 1/2; color: contrast, tint and brightness; randaugment: 2 of 14 operations. auto:
    none for numbers, which may depend on positions, else shift."""
    mixup: Annotated[float, Range(0, 100)] = 0.0
    """Alpha of mixup: images and labels are mixed with those of another image, with shares drawn
    from Beta(alpha, alpha); 0: off; 0.2 is usual."""
    n_best: NBest = 1
    """Number of classes that `predict` prints for each input, most probable first."""
    threshold: Threshold = None
    """Lowest probability of an answer: an input whose most probable class has less has the answer
    <reject>. Of several labels, those with at least this are predicted; by default 0.5."""
    batch: Batch = 128
    """Images per batch."""
    train: TrainConfig = replace(
        COSINE, steps=600, lr=2e-3, warmup=100, label_smoothing=0.1, validate_every=100, average=3
    )
    """Training until the first limit (steps, epochs, minutes, patience), `batch` images a step."""

    def __post_init__(self) -> None:
        if self.mixup and self.data.target == "number":
            raise UserError("mixup must be 0 for data.target number: it mixes labels")
        used_augmentation(self.augment)

    @property
    def used_augment(self) -> tuple[str, ...]:
        """Names of augmentations that `augment` chooses."""
        auto = () if self.data.target == "number" else ("shift",)
        return used_augmentation(self.augment, auto)


ENTRY = Entry(
    name="images",
    config=ImagesRunConfig,
    answers=("n_best", "threshold"),
    answer=target_answer,
    input="image",
    unused=(*NO_DECODER, *BATCHES_BY_COUNT),
    recipe="regard.recipes.images.recipe:ImagesRecipe",
)
