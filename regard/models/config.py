"""Configs of models as dataclasses, without torch: the help of the command line reads them."""

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from regard.layers.positions.config import LearnedConfig, NoPositionsConfig
from regard.models.cores.config import (
    ChoiceConfig,
    CoreConfig,
    TransformerConfig,
    check_core,
    directions_of,
)
from regard.settings.declare import settings
from regard.settings.ranges import FractionBelowOne, Heads, Range, Width


@settings
class EmbeddingConfig:
    """Config of the embeddings of tokens."""

    embedding_dim: Width | None = None
    """Size of the embeddings, if it is not the width of the core: a matrix then maps them to the
    width, and hidden states back to them. (lan2020)"""
    embedding_scale: Literal["root", "one"] | None = None
    """root: embeddings are multiplied by the root of their size (vaswani2017); one: they are not
    (radford2018). If not given, one for a transformer as language model (GPT), else root."""


@settings
class DecoderConfig(EmbeddingConfig):
    """Config of the embeddings of a model that writes tokens."""

    output_bias: bool = False
    """A learned bias of the logit of each token, as in Marian. (junczysdowmunt2018)"""


@settings
class ModelConfig(DecoderConfig):
    """Config of an encoder-decoder model."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive: encoder and decoder."""
    tie: Literal["all", "target", "none"] = "all"
    """Tied embeddings: all (source, target, output: joint vocabulary), target (both), none."""
    dropout: FractionBelowOne = 0.1
    """Dropout probability in training: embeddings, and inside the core."""

    def __post_init__(self) -> None:
        check_core(self.core, encodes=True, decodes=True)


@settings
class ClassifierConfig:
    """Config of a classifier: an encoder, and the pooling of its states to one vector."""

    has_grid: ClassVar[bool] = True
    """True if its items may be those of a grid."""
    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive; only the encoder is used."""
    pool: Literal[
        "attention", "last", "mean", "first", "first-mean", "first-distillation", "cls"
    ] = "attention"
    """The vector of an input. attention: a learned query reads the encoder's states; last: the
    state of the last item (of two directions: the last forward and the first backward one, the
    final states); mean: the mean of all; first: the state of a learned item put before the others,
    the class token of ViT (dosovitskiy2021); first-mean: this state and the mean of the others, as
    in DINOv2 (oquab2023); first-distillation: this state and that of distillation_token, as in DeiT
    (touvron2021a); cls: the state of the first item as it is, such as
    [CLS] of BERT, which the tokenizer puts there (devlin2019)."""
    pool_heads: Heads | None = None
    """Heads of the attention pooling; 4 if not given."""
    pool_query: ChoiceConfig = field(default_factory=ChoiceConfig)
    """Choice of the learned query of attention pooling: how it weights the encoder's states."""
    distillation_token: bool = False
    """Another learned item after the class token, as in DeiT. (touvron2021a)"""
    head_norm: bool = True
    """LayerNorm of the vector before the output layer."""
    head_bias: bool = True
    """Biases of that norm, and of the layer before the output layer."""
    head: Literal["linear", "tanh", "relu", "gelu"] = "linear"
    """Output layers. linear: one linear layer; tanh, relu: a linear layer of equal size and this
    nonlinearity before it, as BERT's pooler (devlin2019) and DistilBERT have (sanh2019); gelu: the
    same, and the norm after the nonlinearity (warner2024)."""
    dropout: FractionBelowOne = 0.1
    """Dropout probability in training: embeddings, inside the core, before the output layer."""
    regression_loss: Literal["squared", "absolute"] = "squared"
    """Loss of numbers: squared errors, or absolute errors, which are more robust to outliers."""

    def __post_init__(self) -> None:
        check_core(self.core, encodes=True, decodes=False, has_grid=self.has_grid)
        self.pool_query.check_kernel(self.core.kernel)
        changed = self.pool_query.describe_choice()
        if self.pool != "attention" and changed:
            raise ValueError(f"pool_query.{changed} must not be given with pool={self.pool}")
        if self.pool != "attention" and self.pool_heads is not None:
            raise ValueError(f"pool_heads must not be given with pool={self.pool}")
        has_token = self.pool.startswith("first")
        if not has_token and self.distillation_token:
            raise ValueError(f"distillation_token must be false with pool={self.pool}")
        if self.pool == "first-distillation" and not self.distillation_token:
            raise ValueError(f"distillation_token must be true with pool={self.pool}")
        if (has_token or self.pool == "cls") and directions_of(self.core) == 1:
            raise ValueError(
                f"pool must not be {self.pool} with core.directions=1: a forward encoder has read "
                f"no other item at its first one"
            )

    def writer_options(self) -> dict[str, Any]:
        """Return the options of a VectorWriter."""
        return {
            "dropout": self.dropout,
            "head": self.head,
            "norm": self.head_norm,
            "bias": self.head_bias,
        }


@settings
class TextClassifierConfig(ClassifierConfig, EmbeddingConfig):
    """Config of a classifier of texts: an encoder and attention pooling by a learned query."""

    has_grid: ClassVar[bool] = False


@settings
class LanguageModelConfig(DecoderConfig):
    """Config of a causal language model: a decoder without a source (decoder-only)."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            width=128, heads=4, feedforward=512, activation="gelu", positions=LearnedConfig()
        )
    )
    """transformer (GPT), recurrent or self-attentive; only the decoder is used."""
    tie: Literal["target", "none"] = "target"
    """Tied embeddings: target (input and output), none (Llama)."""
    dropout: FractionBelowOne = 0.0
    """Dropout probability in training: embeddings, and inside the core."""

    def __post_init__(self) -> None:
        check_core(self.core, encodes=False, decodes=True)


@settings
class EncoderConfig:
    """Config of a model with a prediction for each item: an encoder alone."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive; only the encoder is used."""
    dropout: FractionBelowOne = 0.1
    """Dropout probability in training: inside the core, before the output."""

    def __post_init__(self) -> None:
        check_core(self.core, encodes=True, decodes=False)


@settings
class TaggerConfig(EncoderConfig, EmbeddingConfig):
    """Config of a tagger of tokens: an encoder alone."""

    head_norm: bool = True
    """LayerNorm of the encoder's states before the output layer."""
    head_bias: bool = True
    """Biases of that norm, and of the layer before it."""
    head: Literal["linear", "gelu"] = "linear"
    """gelu: a linear layer of equal size and this nonlinearity before the norm. (warner2024)"""


TokenModelConfig = ModelConfig | TextClassifierConfig | LanguageModelConfig | TaggerConfig
"""Config of any model that reads tokens."""


@settings
class ForecasterConfig(EncoderConfig):
    """Config of a forecaster of tracks: an encoder alone."""

    joint: bool = False
    """True: the tracks of all agents of a scene are predicted at once, each from its own item;
    False: those of one agent at a time, in its own frame, from its nearest neighbors."""
    changes: bool = False
    """True: the changes of the steps of each track are inputs, too, which shows braking vehicles;
    in recordings of pedestrians they are mostly noise."""
    paths: Annotated[int, Range(1, 1_000)] = 1
    """Number of futures that are predicted for each agent, with probabilities. Of several, training
    improves the one nearest to the true future ("variety loss"), and `evaluate` scores the best."""


@settings
class DetectorConfig:
    """Config of a detector: an encoder, and queries that predict a set."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            layers=2,
            decoder_layers=2,
            width=128,
            heads=4,
            feedforward=256,
            activation="gelu",
            positions=NoPositionsConfig(),
        )
    )
    """Core of the items (encoder) and the queries (decoder)."""
    queries: Literal["proposed", "learned"] = "proposed"
    """Initial queries: proposed: from the encoder's proposals of highest score (two-stage);
    learned: the same for every source, as in DETR, which needs far more data."""
    nms_threshold: Annotated[float, Range(0, 1, is_open_below=True)] = 0.5
    """IoU above which proposals of the same class are suppressed (non-maximum suppression)."""
    num_queries: Annotated[int, Range(1, 1_000)] = 50
    """Number of queries: the maximum number of elements detected in one source."""
    dropout: FractionBelowOne = 0.1
    """Dropout probability in training: embeddings, and inside the core."""

    def __post_init__(self) -> None:
        if self.queries == "learned" and self.nms_threshold != 0.5:
            raise ValueError("nms_threshold must not be given with queries=learned")
