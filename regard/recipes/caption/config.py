"""Settings of the recipe `caption`: image captioning. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import CaptionsConfig, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import GeneratedTexts
from regard.recipes.base.config import COSINE, check_positions, limit_input_length
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_CLASS_WEIGHTS, Entry
from regard.recipes.metrics.config import BleuConfig
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Range
from regard.training.config import TrainConfig


@settings
class CaptionRunConfig:
    """Image captioning, from images with sentences or COCO captions; drawn scenes if not given."""

    val_sample: Annotated[int, Range(1, 1_000_000)] = 500
    """Number of validation images described (greedily) at each validation; the loss is of all."""
    data: CaptionsConfig = CaptionsConfig(width=48, height=48)
    """Images with captions, and the input size of the model."""
    tokenizer: TokenizerConfig = TokenizerConfig(lowercase=True)
    """Tokenizer of the captions."""
    patch: Annotated[int, Range(1, 4_096)] | None = None
    """Side of the patches in pixels (ViT); a stem of small convolutions if not given."""
    downsampling_layers: Annotated[int, Range(1, 16)] | None = None
    """Number of stride-2 convolutions of the stem: a position covers 2^downsampling_layers pixels
    on each side; 3 if not given."""
    model: ModelConfig = ModelConfig(
        core=TransformerConfig(
            layers=2, decoder_layers=2, width=96, heads=4, feedforward=192, activation="gelu"
        ),
        tie="target",
    )
    """Encoder-decoder that reads the image and writes the caption."""
    batch: Batch = 32
    """Images per batch, each with one of its captions."""
    train: TrainConfig = replace(COSINE, steps=1200, lr=1.5e-3, warmup=100, validate_every=300)
    """Training until the first limit (steps, epochs, minutes, patience), `batch` images a step."""
    decode: DecodeConfig = DecodeConfig(max_ratio=0.0, max_extra=64)
    """Search in `evaluate`, `predict`, `look`; an input's length is its number of positions."""
    bleu: BleuConfig = BleuConfig(lowercase=True)
    """Settings of BLEU (sacrebleu), which are part of its signature."""

    def __post_init__(self) -> None:
        if self.model.tie == "all":
            raise ValueError("model.tie must be target or none: there are no source texts")
        if self.patch is not None:
            if self.downsampling_layers is not None:
                raise ValueError("downsampling_layers must not be given with patch")
            if self.data.width % self.patch or self.data.height % self.patch:
                raise ValueError(f"patch must divide data.width and data.height, got {self.patch}")
        needed = max(self.positions, 2)
        check_positions(self.model.core, needed, str(needed))

    @property
    def positions(self) -> int:
        """Number of positions of an image."""
        side = self.patch or 2**self.stem_layers
        return -(-self.data.height // side) * -(-self.data.width // side)

    @property
    def stem_layers(self) -> int:
        """Number of stride-2 convolutions of the stem."""
        return 3 if self.downsampling_layers is None else self.downsampling_layers

    @property
    def caption_limit(self) -> int:
        """Maximum length of a caption in tokens, EOS not counted."""
        return limit_input_length(self.data.max_length, self.model)


ENTRY = Entry(
    name="caption",
    config=CaptionRunConfig,
    answers=("decode",),
    answer=GeneratedTexts,
    input="image",
    unused=(*BATCHES_BY_COUNT, *NO_CLASS_WEIGHTS),
    recipe="regard.recipes.caption.recipe:CaptionRecipe",
)
