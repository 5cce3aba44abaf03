"""Settings of the recipe `draw`: text-to-image generation. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated, Literal

from regard.data.config import ScenesConfig, TokenizerConfig
from regard.decode.config import DrawingConfig
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import DrawnImages
from regard.recipes.base.config import COSINE, NBest
from regard.recipes.base.entry import NO_CLASS_WEIGHTS, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Count, FractionBelowOne, Range
from regard.training.config import TrainConfig


@settings
class DrawRunConfig:
    """Text-to-image generation ("two boots"), from images with labels or captions; else digits."""

    data: ScenesConfig = ScenesConfig()
    """Labeled images and how they are placed on canvases, or your own images with captions."""
    tokenizer: TokenizerConfig = TokenizerConfig(kind="word", vocab_size=2000, lowercase=True)
    """Tokenizer of the texts."""
    autoencoder: AutoencoderConfig = AutoencoderConfig(
        kind="quantized", code_dim=16, codebook_size=128, downsampling_layers=1
    )
    """Autoencoder of images by grids of codes (image tokenizer); kind must be quantized."""
    autoencoder_steps: Count = 800
    """Training steps of the autoencoder, which is trained first."""
    autoencoder_batch: Batch = 64
    """Canvases per batch when training the autoencoder."""
    autoencoder_lr: Annotated[float, Range(1e-12, 100)] = 2e-3
    """Peak learning rate of the autoencoder."""
    classifier_steps: Count = 500
    """Training steps of the classifier that scores drawings (for images with classes)."""
    caption_dropout: FractionBelowOne = 0.1
    """Fraction of the training canvases whose text is dropped, for classifier-free guidance."""
    position_embeddings: Literal["grid", "sequence"] = "grid"
    """Position embeddings of the codes: grid adds learned embeddings of row and column to the
    core's positions; sequence uses the core's positions only."""
    model: ModelConfig = ModelConfig(
        core=TransformerConfig(layers=2, decoder_layers=3, feedforward=512, activation="gelu"),
        tie="target",
        dropout=0.1,
    )
    """Encoder-decoder that reads the text and generates the codes."""
    train: TrainConfig = replace(COSINE, steps=1000, lr=2e-3, warmup=200, validate_every=500)
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""
    decode: DrawingConfig = DrawingConfig()
    """Sampling of images, in `evaluate`, `predict` and `look`."""
    n_best: NBest = 1
    """Number of images that `predict` draws per text, scored by mean log-probability per code."""

    def __post_init__(self) -> None:
        if self.autoencoder.kind != "quantized":
            raise ValueError(f"autoencoder.kind must be quantized, got {self.autoencoder.kind}")
        if self.model.tie == "all":
            raise ValueError("model.tie must be target or none: texts and codes differ")


ENTRY = Entry(
    name="draw",
    config=DrawRunConfig,
    answers=("n_best", "decode"),
    answer=DrawnImages,
    unused=NO_CLASS_WEIGHTS,
    recipe="regard.recipes.draw.recipe:DrawRecipe",
)
