"""The whole of a run of the recipe `draw` as plain data. (no torch: the help is made from these)"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from regard.data.config import ScenesConfig, TokenizerConfig
from regard.decode.config import DrawingConfig
from regard.models.config import AutoencoderConfig, ModelConfig, TransformerConfig
from regard.ranges import Batch, Count, Range, ShareBelowOne, check_ranges
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Images from texts: "a sandal", "two ankle boots"; of handwritten digits if you have no images."""

    data: ScenesConfig = field(default_factory=ScenesConfig)
    """Where the images are, and how they are put on canvases; or images with texts of your own."""
    tokenizer: TokenizerConfig = field(
        default_factory=lambda: TokenizerConfig(kind="word", vocab_size=2000, joint=False, lowercase=True)
    )
    """How the texts are cut into numbered pieces."""
    autoencoder: AutoencoderConfig = field(
        default_factory=lambda: AutoencoderConfig(kind="quantized", code=16, codes=128, halvings=1)
    )
    """What makes a grid of codes of an image, and an image of codes: kind quantized."""
    autoencoder_steps: Count = 800
    """Steps of its training, which comes first."""
    autoencoder_batch: Batch = 64
    """Canvases in a batch of that training."""
    autoencoder_lr: Annotated[float, Range(1e-12, 100)] = 2e-3
    """Peak of the learning rate of that training."""
    judge_steps: Count = 500
    """Steps of the training of the classifier that judges drawings (where images have classes), which comes second."""
    unsaid: ShareBelowOne = 0.1
    """Share of the canvases that training shows without their text, which guidance needs."""
    places: Literal["grid", "sequence"] = "grid"
    """How the model knows which place of the grid it writes: by vectors of its row and its column beside the core's
    positions, or by the core's positions alone."""
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            core=TransformerConfig(
                layers=2,
                decoder_layers=3,
                width=128,
                heads=4,
                feedforward=512,
                activation="gelu",
            ),
            tie="target",
            dropout=0.1,
        )
    )
    """What the model is made of that reads the text and writes the codes."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1000,
            batch_tokens=4096,
            lr=2e-3,
            warmup=200,
            schedule="cosine",
            label_smoothing=0.0,
            precision="auto",
            validate_every=500,
            average=0,
            patience=0,
        )
    )
    """How the model is trained, until the first limit: steps, epochs, minutes or patience."""
    decode: DrawingConfig = field(default_factory=DrawingConfig)
    """How images are drawn, in `evaluate`, `predict` and `look`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.autoencoder.kind != "quantized":
            raise ValueError(f"autoencoder.kind must be quantized, but is {self.autoencoder.kind}")
        if self.tokenizer.joint:
            raise ValueError("tokenizer.joint must be false: there is one side of texts")
        if self.model.tie == "all":
            raise ValueError("model.tie must be target or none: texts and codes have a vocabulary each")
