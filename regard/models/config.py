"""Configs of models as plain dataclasses, without torch, since the help of the command line is generated from them."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from regard.settings.declare import settings
from regard.settings.ranges import FractionBelowOne, Heads, Layers, Length, Range, Width


@settings
class TransformerConfig:
    """Transformer: blocks of multi-head attention and feed-forward networks. (vaswani2017)"""

    name: ClassVar[str] = "transformer"

    layers: Layers = 4
    """Blocks of the encoder, and of the decoder unless decoder_layers is given."""
    decoder_layers: Layers | None = None
    """Blocks of the decoder; as many as layers if not given."""
    width: Width = 128
    """Size of the vectors between blocks, and of the embeddings."""
    heads: Heads = 4
    """Heads of each multi-head attention."""
    head_dim: Width | None = None
    """Size of each head's queries and keys; width / heads, rounded up, if not given."""
    head_value_dim: Width | None = None
    """Size of each head's values; head_dim if not given."""
    feedforward: Annotated[int, Range(1, 1_048_576)] = 256
    """Hidden size of the position-wise feed-forward network."""
    activation: Literal["relu", "gelu"] = "relu"
    """Nonlinearity of the feed-forward network."""
    norm: Literal["pre", "post"] = "pre"
    """post: LayerNorm(x + f(x)), as in the paper; pre: x + f(LayerNorm(x)), which allows higher learning rates and
    trains where post fails to learn to use the source."""
    positions: Literal["sinusoidal", "learned", "alibi", "relative", "none"] = "sinusoidal"
    """Positional encoding: fixed sines and cosines, a learned vector per position, a bias of self-attention by distance
    (alibi: linear penalty in both directions; relative: T5's learned bias per distance), or none."""
    max_positions: Length = 1024
    """Maximum sequence length of learned positions (the others have no limit)."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or sdpa."""
    key_heads: Heads | None = None
    """Heads of keys and values, each shared by heads / key_heads heads of queries (grouped-query attention): a smaller
    key-value cache and faster decoding. As many as heads if not given; 1 is multi-query attention."""
    score: Literal["scaled-dot", "dot", "cosine", "additive"] = "scaled-dot"
    """Attention score: inner product divided by the root of the head's size, inner product, cosine (times a learned
    factor per head), or v . tanh(q + k) with a v per head."""
    soft_cap: Annotated[float, Range(1e-3, 1e6)] | None = None
    """Scores s become c tanh(s / c), bounded by c; not capped if not given."""
    inducing_points: Width | None = None
    """Number of learned inducing points through which the encoder's items attend to one another, for sets that are too
    large for all pairs; full self-attention if not given. (lee2019)"""
    window: Length | None = None
    """Number of last targets that the decoder's self-attention sees, itself included; all if not given."""

    def __post_init__(self) -> None:
        if self.inducing_points is not None and self.positions in ("alibi", "relative"):
            raise ValueError(f"positions must not be alibi or relative with inducing_points, got {self.positions}")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads={self.heads}, got {self.key_heads}")

    @property
    def query_size(self) -> int:
        """Size of each head's queries and keys."""
        return -(-self.width // self.heads) if self.head_dim is None else self.head_dim


@settings
class RecurrentConfig:
    """Recurrent encoder and decoder, with or without attention. (bahdanau2015, luong2015, sutskever2014)"""

    name: ClassVar[str] = "recurrent"

    cell: Literal["rnn", "gru", "lstm"] = "gru"
    """rnn: s = tanh(A [x; s; c] + b), as in the lectures; the input of gru and lstm is [x; c]."""
    layers: Layers = 1
    """Recurrent layers of the encoder, and of the decoder unless decoder_layers is given."""
    decoder_layers: Layers | None = None
    """Recurrent layers of the decoder; as many as layers if not given."""
    directions: Literal[1, 2] = 2
    """2: bidirectional encoder, whose states are those of both directions concatenated."""
    width: Width = 128
    """Size of the embeddings and of the input of the output layer."""
    hidden: Width = 256
    """Size of the decoder's state, and of the encoder's (both directions together)."""
    attention: Literal["none", "additive", "concat", "general", "dot", "scaled-dot", "cosine", "location"] = "additive"
    """Attention score of the encoder's states (location: by position alone); none: the decoder only starts from the
    encoder's final state."""
    attention_hidden: Width = 128
    """Hidden size of the additive and concat scores, and rank of the general one."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference, or sdpa (for inner products)."""
    max_positions: Length = 1024
    """Maximum source length of location attention (the others have no limit)."""

    def __post_init__(self) -> None:
        if self.hidden % self.directions:
            raise ValueError(f"hidden must be divisible by directions={self.directions}, got {self.hidden}")


@settings
class SelfAttentiveConfig:
    """Recurrent encoder and decoder whose cells read all their own past states. (cheng2016; rnn: the lectures')"""

    name: ClassVar[str] = "self-attentive"

    cell: Literal["rnn", "lstm"] = "lstm"
    """rnn: h = tanh(A [x; c] + b), then h reads the past, itself included, for the next c; lstm: x reads the past, and
    the result replaces the previous state in the gates (LSTM-Network)."""
    form: Literal["paper", "released"] = "paper"
    """Query of the past (lstm): x and the last result, as in the paper, or x alone, as in the released code."""
    layers: Layers = 1
    """Layers of the encoder, and of the decoder unless decoder_layers is given."""
    decoder_layers: Layers | None = None
    """Layers of the decoder; as many as layers if not given."""
    directions: Literal[1, 2] = 2
    """2: bidirectional encoder, whose states are those of both directions concatenated."""
    width: Width = 128
    """Size of the embeddings and of the input of the output layer."""
    hidden: Width = 256
    """Size of the decoder's state, and of the encoder's (both directions together)."""
    self_attention: Literal["additive", "scaled-dot"] = "additive"
    """Score of a past state: v . tanh(q + k), as in the paper, or q . k divided by the root of their size."""
    self_attention_hidden: Width = 128
    """Size of q and k in each layer's read of its past."""
    self_attention_recency: Literal["none", "learned"] = "none"
    """learned: adds a learned bias by the distance in steps, initialized such that almost only the last state is read,
    as in a plain recurrent network (ours, in no paper); none: no bias, as in the paper."""
    attention: Literal["none", "additive", "concat", "general", "dot", "scaled-dot", "cosine", "location"] = "additive"
    """Attention score of the encoder's states (location: by position alone); none: the decoder only starts from the
    encoder's final state."""
    attention_hidden: Width = 128
    """Hidden size of the additive and concat scores of the encoder's states, and rank of the general one."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or additive (for additive scores)."""
    max_positions: Length = 1024
    """Maximum source length of location attention (the others have no limit)."""

    def __post_init__(self) -> None:
        if self.hidden % self.directions:
            raise ValueError(f"hidden must be divisible by directions={self.directions}, got {self.hidden}")
        if self.cell == "rnn" and self.form != "paper":
            raise ValueError(f"form must be paper for cell rnn, got {self.form}")


CoreConfig = TransformerConfig | RecurrentConfig | SelfAttentiveConfig
"""Config of any core."""

CORES = {config.name: config for config in (TransformerConfig, RecurrentConfig, SelfAttentiveConfig)}


@settings
class ModelConfig:
    """Config of an encoder-decoder model."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive: encoder and decoder."""
    tie: Literal["all", "target", "none"] = "all"
    """Tied embeddings: all (source, target and output; needs a joint vocabulary), target (target and output),
    none."""
    dropout: FractionBelowOne = 0.1
    """Share of activations set to zero in training: embeddings, and inside the core."""


@settings
class ClassifierConfig:
    """Config of a classifier: an encoder and attention pooling by a learned query."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive; only the encoder is used."""
    pool_heads: Heads = 4
    """Heads of the attention pooling."""
    dropout: FractionBelowOne = 0.1
    """Share of activations set to zero in training: embeddings, inside the core, before the output layer."""
    regression_loss: Literal["squared", "absolute"] = "squared"
    """Loss of numbers: squared errors, or absolute errors, which are more robust to outliers."""


@settings
class LanguageModelConfig:
    """Config of a causal language model: a decoder without a source (decoder-only)."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            width=128, heads=4, feedforward=512, activation="gelu", positions="learned"
        )
    )
    """transformer (GPT), recurrent or self-attentive; only the decoder is used."""
    dropout: FractionBelowOne = 0.0
    """Share of activations set to zero in training: embeddings, and inside the core."""


@settings
class EncoderConfig:
    """Config of a model with a prediction for each item: an encoder alone."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive; only the encoder is used."""
    dropout: FractionBelowOne = 0.1
    """Share of activations set to zero in training: inside the core, before the output."""


@settings
class DetectorConfig:
    """Config of a detector: an encoder, and queries that predict a set."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            layers=2, decoder_layers=2, width=128, heads=4, feedforward=256, activation="gelu", positions="none"
        )
    )
    """transformer, recurrent or self-attentive: encoder of the items, and decoder of the queries."""
    queries: Literal["proposed", "learned"] = "proposed"
    """Initial queries: proposed: from the encoder's proposals of highest score (two-stage); learned: the same for every
    source, as in DETR, which needs far more data."""
    nms_threshold: Annotated[float, Range(0, 1, is_open_below=True)] = 0.5
    """IoU above which proposals of the same class are suppressed (non-maximum suppression)."""
    num_queries: Annotated[int, Range(1, 1_000)] = 50
    """Number of queries: the maximum number of elements detected in one source."""
    dropout: FractionBelowOne = 0.1
    """Share of activations set to zero in training: embeddings, and inside the core."""


@settings
class AutoencoderConfig:
    """Config of an autoencoder."""

    kind: Literal["dense", "convolutional", "quantized"] = "dense"
    """dense: a hidden layer before and after the code; convolutional: convolutions that halve the sides twice;
    quantized: convolutions to a grid of vectors, each replaced by the nearest entry of a codebook (VQ-VAE)."""
    code_dim: Width = 32
    """Size of the code; of each vector of the grid (quantized)."""
    hidden: Width = 512
    """Size of the hidden layers (dense)."""
    channels: Annotated[int, Range(1, 4_096)] = 32
    """Channels of the outer convolution; the inner ones have twice as many (convolutional, quantized)."""
    noise: Annotated[float, Range(0, 1_000)] = 0.0
    """Standard deviation of the noise on the encoder's input in training, for pixels in [0, 1] (denoising)."""
    sparsity: Annotated[float, Range(0, 1e6)] = 0.0
    """Weight of |h|_1 in the loss, for sparse codes (not with quantized)."""
    codebook_size: Annotated[int, Range(2, 1_048_576)] = 512
    """Entries of the codebook (quantized)."""
    downsampling_layers: Annotated[int, Range(1, 16)] = 2
    """Number of times that the sides are halved to the grid of codes (quantized)."""
    commitment: Annotated[float, Range(0, 1e6)] = 0.25
    """Weight in the loss of the squared distance of the vectors from their entries (quantized)."""

    def __post_init__(self) -> None:
        if self.kind == "quantized" and self.sparsity:
            raise ValueError(f"sparsity must be 0 with kind=quantized, got {self.sparsity}")


def paper_base() -> TransformerConfig:
    """Return the base model of vaswani2017, table 3: six blocks in encoder and decoder, width 512, eight heads."""
    return TransformerConfig(layers=6, width=512, heads=8, feedforward=2048, norm="post")
