"""Sizes and parts of a model as plain data (no torch: the command line's help is made from these)."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from regard.ranges import Heads, Layers, Length, Range, ShareBelowOne, Width, check_ranges

_LATER = {"since": "0.2.0"}
"""Marks settings that runs of version 0.1.0 do not have; their defaults are what those did."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The Transformer: blocks of multi-head attention and feed-forward. (vaswani2017)"""

    name: ClassVar[str] = "transformer"

    layers: Layers = 4
    """Blocks of the encoder, and of the decoder unless decoder_layers says otherwise."""
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
    """post: LayerNorm(x + f(x)), as in the paper; pre: x + f(LayerNorm(x)), which trains at higher rates and
    where post may stay at the level of a model that does not read its source."""
    positions: Literal["sinusoidal", "learned", "alibi", "relative", "none"] = "sinusoidal"
    """How a position is told: fixed sines and cosines, a learned vector each, by distance inside self-attention
    (alibi: keys count the less the farther they are, on either side; relative: T5's learned number a distance), or not
    at all."""
    max_positions: Length = 1024
    """Longest sequence that learned positions serve (the others have no limit)."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or sdpa."""
    key_heads: Heads | None = field(default=None, metadata=_LATER)
    """Heads of keys and values, each for heads / key_heads heads of queries: a smaller memory, decoded faster. As
    many as heads if not given; 1 is multi-query attention."""
    score: Literal["scaled-dot", "dot", "cosine", "additive"] = field(default="scaled-dot", metadata=_LATER)
    """How well a key matches a query: inner product over the root of the head's size, inner product, cosine (times a
    number that each head learns), or v . tanh(q + k) with a v of each head's own."""
    soft_cap: Annotated[float, Range(1e-3, 1e6)] | None = field(default=None, metadata=_LATER)
    """Scores s become c tanh(s / c), which never exceeds c; not capped if not given."""
    inducing_points: Width | None = field(default=None, metadata=_LATER)
    """Learned points by way of which the encoder's items read one another, for sets that are too large for all pairs;
    each item reads all others itself if not given. (lee2019)"""
    window: Length | None = field(default=None, metadata=_LATER)
    """Targets that the decoder's self-attention sees, the last ones, its own included; all if not given."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.inducing_points is not None and self.positions in ("alibi", "relative"):
            raise ValueError(
                f"positions must not be by distance (alibi, relative) with inducing_points, but are {self.positions}"
            )
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads={self.heads}, but is {self.key_heads}")

    @property
    def query_size(self) -> int:
        """Size of each head's queries and keys."""
        return -(-self.width // self.heads) if self.head_dim is None else self.head_dim


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Recurrent encoder and decoder, with or without attention. (bahdanau2015, luong2015, sutskever2014)"""

    name: ClassVar[str] = "recurrent"

    cell: Literal["rnn", "gru", "lstm"] = "gru"
    """rnn: s = tanh(A [x; s; c] + b), as in the lectures; gru and lstm take [x; c] as their input."""
    layers: Layers = 1
    """Recurrent layers of the encoder, and of the decoder unless decoder_layers says otherwise."""
    decoder_layers: Layers | None = None
    """Recurrent layers of the decoder; as many as layers if not given."""
    directions: Literal[1, 2] = 2
    """2: the encoder also reads from the end; its states are both directions' side by side."""
    width: Width = 128
    """Size of the embeddings and of what the output layer sees."""
    hidden: Width = 256
    """Size of the decoder's state, and of the encoder's (over both directions together)."""
    attention: Literal["none", "additive", "concat", "general", "dot", "scaled-dot", "cosine", "location"] = "additive"
    """How the decoder scores the encoder's states (location: by their places alone); none: only the final state is
    handed over."""
    attention_hidden: Width = 128
    """Hidden size of the additive and concat scores, and rank of the general one."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference, or sdpa (for inner products)."""
    max_positions: Length = field(default=1024, metadata=_LATER)
    """Longest source that location attention serves (the others have no limit)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.hidden % self.directions:
            raise ValueError(f"hidden must be divisible by directions={self.directions}, but is {self.hidden}")


@dataclass(frozen=True, kw_only=True)
class SelfAttentiveConfig:
    """Recurrent encoder and decoder whose cells read all their own past states. (cheng2016; rnn: the lectures')"""

    name: ClassVar[str] = "self-attentive"

    cell: Literal["rnn", "lstm"] = "lstm"
    """rnn: h = tanh(A [x; c] + b), then h reads the past, its own included, for the next c; lstm: x reads the past for
    what the gates take as the state before (LSTM-Network)."""
    form: Literal["paper", "released"] = "paper"
    """What scores the past (lstm): x and what was read last, as in the paper, or x alone, as in the code released."""
    layers: Layers = 1
    """Layers of the encoder, and of the decoder unless decoder_layers says otherwise."""
    decoder_layers: Layers | None = None
    """Layers of the decoder; as many as layers if not given."""
    directions: Literal[1, 2] = 2
    """2: the encoder also reads from the end; its states are both directions' side by side."""
    width: Width = 128
    """Size of the embeddings and of what the output layer sees."""
    hidden: Width = 256
    """Size of the decoder's state, and of the encoder's (over both directions together)."""
    self_attention: Literal["additive", "scaled-dot"] = "additive"
    """How a past state is scored: v . tanh(q + k), as in the paper, or q . k over the root of their size."""
    self_attention_hidden: Width = 128
    """Size of q and k in each layer's read of its past."""
    self_attention_recency: Literal["none", "learned"] = "none"
    """learned: besides, a learned number for how many states ago it was, at first such that the last state is read and
    little else, as in a plain network (ours, in no paper); none: by the score alone, as in the paper."""
    attention: Literal["none", "additive", "concat", "general", "dot", "scaled-dot", "cosine", "location"] = "additive"
    """How the decoder scores the encoder's states (location: by their places alone); none: only the final state is
    handed over."""
    attention_hidden: Width = 128
    """Hidden size of the additive and concat scores of the encoder's states, and rank of the general one."""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or additive (for additive scores)."""
    max_positions: Length = 1024
    """Longest source that location attention serves (the others have no limit)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.hidden % self.directions:
            raise ValueError(f"hidden must be divisible by directions={self.directions}, but is {self.hidden}")
        if self.cell == "rnn" and self.form != "paper":
            raise ValueError(f"form is of cell lstm and must be paper for rnn, but is {self.form}")


CoreConfig = TransformerConfig | RecurrentConfig | SelfAttentiveConfig
"""What a core is made from, whichever it is."""

CORES = {config.name: config for config in (TransformerConfig, RecurrentConfig, SelfAttentiveConfig)}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a text-to-text model is made of."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive: what turns the source into a memory and reads it for every target."""
    tie: Literal["all", "target", "none"] = "all"
    """Which embeddings are one table: all (source, target and output; needs a joint vocabulary), target (target
    and output), none."""
    dropout: ShareBelowOne = 0.1
    """Share of activations set to zero in training: embeddings, and inside the core."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """What a text classifier is made of: an encoder, and a learned query that reads what it made."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive: what lets the items read one another (its encoder; nothing is
    decoded)."""
    pool_heads: Heads = 4
    """Heads of the read that makes one vector of all items."""
    dropout: ShareBelowOne = 0.1
    """Share of activations set to zero in training: embeddings, inside the core, before the classes."""
    number_error: Literal["squared", "absolute"] = field(default="squared", metadata=_LATER)
    """What is made small where numbers are learned: squared errors, or absolute ones, which wild targets move less."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    """What a language model is made of: a decoder that reads no source."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            width=128, heads=4, feedforward=512, activation="gelu", positions="learned"
        )
    )
    """transformer, whose decoder alone is GPT, recurrent or self-attentive (their decoders alone)."""
    dropout: ShareBelowOne = 0.0
    """Share of activations set to zero in training: embeddings, and inside the core."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What a model is made of that answers for each item of a set: an encoder alone."""

    core: CoreConfig = field(default_factory=TransformerConfig)
    """transformer, recurrent or self-attentive: what lets the items read one another (its encoder; nothing is
    decoded)."""
    dropout: ShareBelowOne = 0.1
    """Share of activations set to zero in training: inside the core, before the output."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """What a detector is made of: an encoder, and queries whose answers are a set."""

    core: CoreConfig = field(
        default_factory=lambda: TransformerConfig(
            layers=2, decoder_layers=2, width=128, heads=4, feedforward=256, activation="gelu", positions="none"
        )
    )
    """transformer, recurrent or self-attentive: what lets the items read one another, and the queries read them."""
    queries: Literal["proposed", "learned"] = "proposed"
    """Where queries begin: proposed: at the places that are surest to see something; learned: at regions that are
    learned and the same for every source, as in DETR, which needs far more data."""
    overlap: Annotated[float, Range(0, 1, is_open_below=True)] = 0.5
    """Places that propose the same class are one query if their regions overlap by more than this (IoU)."""
    num_queries: Annotated[int, Range(1, 1_000)] = 50
    """Most elements that can be found in one source."""
    dropout: ShareBelowOne = 0.1
    """Share of activations set to zero in training: what is read, and inside the core."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """What an autoencoder is made of."""

    kind: Literal["dense", "convolutional", "quantized"] = "dense"
    """dense: a hidden layer on either side of the code; convolutional: convolutions that halve the sides twice;
    quantized: convolutions to a grid of vectors, each of which becomes the nearest entry of a codebook."""
    code: Width = 32
    """Numbers of the code; of each vector of the grid (quantized)."""
    hidden: Width = 512
    """Size of the hidden layers (dense)."""
    channels: Annotated[int, Range(1, 4_096)] = 32
    """Channels of the outer convolution; the inner ones have twice as many (convolutional, quantized)."""
    noise: Annotated[float, Range(0, 1_000)] = 0.0
    """Standard deviation of the noise on what the encoder sees in training, of pixels within [0, 1] (denoising)."""
    sparsity: Annotated[float, Range(0, 1e6)] = 0.0
    """Weight of |h|_1 in the energy: codes with few large numbers (sparse; not where codes are quantized)."""
    codes: Annotated[int, Range(2, 1_048_576)] = field(default=512, metadata=_LATER)
    """Entries of the codebook (quantized)."""
    halvings: Annotated[int, Range(1, 16)] = field(default=2, metadata=_LATER)
    """How often the sides are halved: the grid of codes (quantized)."""
    commitment: Annotated[float, Range(0, 1e6)] = field(default=0.25, metadata=_LATER)
    """Weight of the squared distance of the vectors from their entries in the energy (quantized)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.kind == "quantized" and self.sparsity:
            raise ValueError(f"sparsity must be 0 where kind=quantized, but is {self.sparsity}")


def paper_base() -> TransformerConfig:
    """The base model of vaswani2017, table 3: six blocks a side, width 512, eight heads, feed-forward 2048."""
    return TransformerConfig(layers=6, width=512, heads=8, feedforward=2048, norm="post")
