"""Configs of cores: their scores and choices by name. Importing them needs no torch."""

import re
from dataclasses import field, fields
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from regard.layers.positions.config import (
    GridRotaryConfig,
    LearnedConfig,
    PositionsConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.settings.declare import check_unused, settings
from regard.settings.ranges import Heads, Layers, Length, Range, Width, short_repr

_SCORES = "regard.attention.scores"
SCORES = {
    "scaled-dot": f"{_SCORES}.dot:ScaledDot",
    "dot": f"{_SCORES}.dot:Dot",
    "cosine": f"{_SCORES}.cosine:Cosine",
    "additive": f"{_SCORES}.additive:BareAdditive",
    "concat": f"{_SCORES}.additive:Concat",
    "general": f"{_SCORES}.dot:General",
}
"""Class of each score by name; its method `create` gives it its sizes."""
STATE_SCORES = SCORES | {
    "additive": f"{_SCORES}.additive:Additive",
    "location": f"{_SCORES}.location:Location",
}
"""Class of each score of the states of a recurrent core, which no heads have projected."""
MAPLESS_SCORES = "scaled-dot", "dot", "cosine"
"""Scores that compare queries and keys as they are, which must be of equal size."""

if TYPE_CHECKING:  # a type checker cannot read the tables
    ScoreName = StateScoreName = str
else:
    ScoreName = Literal[tuple(SCORES)]
    StateScoreName = Literal["none", *STATE_SCORES]

IN_BLOCKS = "rotary", "rotary-2d", "alibi", "relative"
"""Positions that act in the self-attention of each block."""
WRITTEN = {"D", "F"}
"""Letters of blocks with a memory that is written."""
ATTENTION_OPTIONS = (
    *("choice", "beta", "hard", "top_k", "alpha", "kernel", "key_heads", "head_key_dim"),
    *("score", "score_hidden", "qk_norm", "soft_cap", "attention_bias", "output_projection"),
    *("sink", "gate", "registers"),
)
"""Options of attention with scores."""

_SOFT_KERNELS = ("sdpa", "products", "flex", "additive")
"""Kernels that compute a softmax over all keys."""
_SINK_KERNELS = _SOFT_KERNELS[:-1]
"""Kernels that compute a softmax with a sink."""


@settings
class ChoiceConfig:
    """Choice of attention: how the scores of a query become weights of the keys."""

    choice: Literal["soft", "hard", "sparse", "topk", "sigmoid"] = "soft"
    """Weights of the keys: soft: softmax of the scores; hard: 1 for the best key, 0 for the others
    (xu2015); sparse: entmax, 0 for keys far below the best (peters2019); topk: softmax over the
    best keys, 0 for the others; sigmoid of each score, minus the logarithm of the number of keys
    (ramapuram2025)."""
    sink: Literal["none", "learned", "zero"] = "none"
    """A score without a key in the softmax, whose weight reads nothing: learned, one for each head
    (openai2025), or zero: exp(a) / (1 + sum exp(a)) (miller2023)."""
    beta: Annotated[float, Range(0, 1e6, is_open_below=True)] | str | None = None
    """Inverse temperature: a number by which scores are multiplied, or learned, one for each head.
    If not given: 1, but learned from 10 on for cosine scores. With hard: a number, of the softmax
    that trains the scores."""
    hard: Literal["none", "straight-through", "gumbel", "reinforce"] | None = None
    """Estimator of the gradient of hard, whose argmax has none: that of the softmax (bengio2013),
    of a softmax with Gumbel noise (jang2017), or of sampled keys by their loss (williams1992);
    straight-through if not given. With none, the maps of queries and keys learn nothing."""
    top_k: Annotated[int, Range(1, 1_000_000)] | None = None
    """Number of keys that a query reads with topk; 8 if not given."""
    alpha: Annotated[float, Range(1, 1_000, is_open_below=True)] | None = None
    """Sparsity of sparse: towards 1 it is the softmax, 2 is sparsemax; 1.5 if not given."""

    def __post_init__(self) -> None:
        for name, owner in (("hard", "hard"), ("top_k", "topk"), ("alpha", "sparse")):
            value = getattr(self, name)
            if value is not None and self.choice != owner:
                raise ValueError(f"{name} is an option of choice={owner}, got choice={self.choice}")
        if self.sink != "none" and self.choice != "soft":
            raise ValueError(f"sink is an option of choice=soft, got choice={self.choice}")
        if isinstance(self.beta, str) and self.beta != "learned":
            raise ValueError(f"beta must be a number or learned, got {short_repr(self.beta)}")
        if self.beta == "learned" and self.choice == "hard":
            raise ValueError("beta must be a number with choice=hard, got learned")
        if self.beta is not None and self.hard == "none":
            raise ValueError(f"beta has no effect with hard=none: leave it out, got {self.beta}")

    def describe_choice(self) -> str:
        """Return the fields of the choice that differ from their defaults: choice=hard, ..."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(ChoiceConfig)}
        default = vars(ChoiceConfig)
        return ", ".join(f"{name}={x}" for name, x in values.items() if x != default[name])

    def check_kernel(self, kernel: str) -> None:
        """Raise ValueError if a kernel does not compute this choice."""
        known = ["auto", "reference"]
        if self.choice in ("hard", "topk"):
            known.append("gather")
        if self.choice == "soft":
            known += _SOFT_KERNELS if self.sink == "none" else _SINK_KERNELS
        sink = "" if self.sink == "none" else f", sink={self.sink}"
        if kernel not in known:
            raise ValueError(
                f"kernel must be one of {', '.join(known)} with choice={self.choice}{sink}, "
                f"got {kernel}"
            )


@settings
class TransformerConfig(ChoiceConfig):
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
    head_key_dim: Width | None = None
    """Size of each head's keys, if it is another one (scores general, additive, concat)."""
    head_value_dim: Width | None = None
    """Size of each head's values; head_dim if not given."""
    output_projection: bool = True
    """W_o of each multi-head attention, which maps the outputs of the heads to width. Without it
    heads * head_value_dim must be the width."""
    feedforward: Annotated[int, Range(1, 1_048_576)] | str = 256
    """Hidden size of the position-wise feed-forward network; dense: a single layer f(W x + b) of
    width inputs and outputs in its place."""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    """Nonlinearity of the feed-forward network; gelu-tanh is an approximation of gelu."""
    gated: bool = False
    """Gated feed-forward network f(W_g x) * (W x): SwiGLU with silu, GeGLU. (shazeer2020)"""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm, which only divides by the root of the mean square. (zhang2019)"""
    norm_order: Literal["pre", "post", "none"] = "pre"
    """post: norm(x + f(x)), as in the paper; pre: x + f(norm(x)), with one more norm after the last
    block; none: f(x), without residual connections and norms."""
    final_norm: bool | None = None
    """A norm after the last block of each stack, if it is not as norm_order says."""
    embedding_norm: bool = False
    """A norm of the embeddings with their positions, before the first block of each stack.
    (devlin2019)"""
    layer_scale: Annotated[float, Range(1e-9, 1e3)] | None = None
    """Initial value of a learned factor of each number that attention and feed-forward add; no
    factors if not given. (touvron2021)"""
    norm_eps: Annotated[float, Range(1e-12, 1)] = 1e-5
    """Number added to the variance, or the mean square, in norms."""
    bias: bool = True
    """Biases of the linear layers and of LayerNorm."""
    attention_bias: Literal["all", "qkv", "none"] | None = None
    """Biases of attention, if they are not as bias says: all; qkv: of queries, keys and values
    alone (yang2024); none."""
    positions: PositionsConfig = field(default_factory=SinusoidalConfig)
    """sinusoidal, learned, rotary, rotary-2d (images), alibi, relative (T5) or none: positional
    encoding."""
    shared_positions: bool = True
    """One table of learned positions for both stacks; false: one for each. (lewis2020)"""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or sdpa."""
    key_heads: Heads | None = None
    """Heads of keys and values, each shared by heads / key_heads heads of queries (grouped-query
    attention): a smaller key-value cache and faster decoding. As many as heads if not given; 1 is
    multi-query attention."""
    score: ScoreName = "scaled-dot"
    """Attention score: inner product divided by the root of the head's size, inner product, cosine
    (times a learned factor per head), additive: v . tanh(q + k), or v . tanh(W_q q + W_k k) with
    score_hidden or head_key_dim, concat: v . tanh(W [q; k]), or general: (W_q q) . (W_k k). Each
    head has a v and maps of its own."""
    score_hidden: Width | None = None
    """Size to which each score maps queries and keys; head_dim if not given."""
    qk_norm: Literal["none", "rms", "l2"] = "none"
    """Norm of the queries and keys of each head, before rotary positions: rms: RMSNorm (yang2025);
    l2: x / |x| times gains, with which scores begin at 10 cos(q, k) (henry2020)."""
    gate: Literal["none", "head", "element"] = "none"
    """Gates sigmoid(W x) of what each head reads for item x, before W_o: head: one; element: one
    for each number. (qiu2025)"""
    registers: Annotated[int, Range(0, 1_024)] = 0
    """Number of learned pairs of keys and values of each self-attention, which all items read.
    (sukhbaatar2019)"""
    soft_cap: Annotated[float, Range(1e-3, 1e6)] | None = None
    """Scores s become c tanh(s / c), bounded by c; not capped if not given."""
    inducing_points: Width | None = None
    """Number of learned inducing points through which the encoder's items attend to one another,
    for sets that are too large for all pairs; full self-attention if not given. (lee2019)"""
    window: Length | None = None
    """Size N of the window of self-attention: target i reads targets i - N < j <= i, item i of an
    encoder items |i - j| <= N / 2 (rounded down); not limited if not given. In an encoder-decoder
    the decoder has it, unless pattern says otherwise. (beltagy2020)"""
    pattern: str | None = None
    """A letter for each block, repeated over each stack: SSSL; of encoder and decoder: S/L. S: with
    the window; L: without; N: without, and without positions, which in the others are rotary, alibi
    or relative (kazemnejad2023); in a decoder D and F: a memory of a fixed size, written by the
    delta rule (yang2025a) or fading (sun2023), with heads, head_dim, head_value_dim and bias of the
    others, and neither scores nor positions. If not given: S, in an encoder-decoder L/S."""
    decay: Literal["item", "head", "none"] = "item"
    """Decay of the memories of D and F: by each item and head, learned by head, or none."""
    first_norm: bool = True
    """Norm before the first block's self-attention (pre); false: none, as after embedding_norm in
    ModernBERT. (warner2024)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_kernel(self.kernel)
        name = self.positions.name
        rules = {f"positions must not be {name}": name in IN_BLOCKS}
        rules["registers must be 0"] = self.registers > 0
        broken = [rule for rule, is_broken in rules.items() if is_broken]
        if broken and self.inducing_points is not None:
            raise ValueError(f"{broken[0]} with inducing_points")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads={self.heads}, got {self.key_heads}")
        self._check_feedforward()
        self._check_pattern()
        if not self.shared_positions and name != "learned":
            raise ValueError(f"shared_positions must be true with positions={name}")
        self._check_norms()
        size, score = self.query_size, self.score
        value_size = self.head_value_dim or size
        if not self.output_projection and self.heads * value_size != self.width:
            raise ValueError(
                f"output_projection must be true unless heads * head_value_dim is width="
                f"{self.width}, got {self.heads} * {value_size}"
            )
        if score in MAPLESS_SCORES:
            if self.head_key_dim not in (None, size):
                raise ValueError(f"head_key_dim must be {size} with score={score}")
            if self.score_hidden is not None:
                raise ValueError(f"score_hidden must not be given with score={score}")
        if score == "concat" and self.key_heads not in (None, self.heads):
            raise ValueError("key_heads must be heads with score=concat, which maps keys per head")
        if isinstance(self.positions, GridRotaryConfig) and size % 4:
            raise ValueError(f"head_dim must be divisible by 4 with rotary-2d, got {size}")
        if name.startswith("rotary") and score not in MAPLESS_SCORES:
            raise ValueError(f"score must not be {score} with rotary positions")
        if isinstance(self.positions, RotaryConfig):
            dim = self.positions.dim
            if (dim is None and size % 2) or (dim is not None and dim > size):
                rule = "be even" if dim is None else f"be at least positions.dim={dim}"
                raise ValueError(f"head_dim must {rule} with rotary positions, got {size}")

    def _check_norms(self) -> None:
        if self.qk_norm != "none" and self.score == "cosine":
            raise ValueError("qk_norm must be none with score=cosine, which normalizes them itself")
        default = vars(TransformerConfig)
        if self.norm_order != "pre" and not self.first_norm:
            raise ValueError(f"first_norm must be true with norm_order={self.norm_order}")
        for name in ("norm", "norm_eps", "final_norm", "embedding_norm"):
            if self.norm_order == "none" and getattr(self, name) != default[name]:
                raise ValueError(f"{name} must not be given with norm_order=none")

    def letters(
        self, *, encodes: bool, decodes: bool, acts_in_blocks: bool | None = None
    ) -> list[str]:
        """Return the letters of `pattern` of all blocks of the encoder, and of the decoder.

        acts_in_blocks: True if the positions rotate or are a bias; None: those of the config.
        Raises: ValueError for a pattern that does not fit these stacks or the positions.
        """
        has_two, pattern, positions = encodes and decodes, self.pattern, self.positions
        if pattern is None:
            pattern = "L/S" if has_two and self.window is not None else "S"
        stacks = pattern.split("/")
        if len(stacks) == 2 and not has_two:
            raise ValueError(f"pattern must be that of one stack, such as SSSL, got {pattern}")
        num_encoder = self.layers if encodes else 0
        num_decoder = (self.decoder_layers or self.layers) if decodes else 0
        letters = list[str]()
        for own, count in ((stacks[0], num_encoder), (stacks[-1], num_decoder)):
            if count % len(own):
                rule = f"have a number of letters that divides {count}, the number of blocks"
                raise ValueError(f"pattern must {rule}, got {own}")
            letters.append(own * (count // len(own)))
        used = {*letters[0], *letters[1]}
        if self.inducing_points is not None and self.window is not None and "S" in letters[0]:
            raise ValueError("window must not be given with inducing_points in an encoder")
        if WRITTEN & {*letters[0]}:
            rule = "have no D and F in an encoder, which reads in both directions, such as L/DDDL"
            raise ValueError(f"pattern must {rule}, got {pattern}")
        if acts_in_blocks is None:
            acts_in_blocks = positions.name in IN_BLOCKS
        if used <= WRITTEN:
            check_unused(self, ATTENTION_OPTIONS, f"pattern={pattern}")
            if acts_in_blocks:
                raise ValueError(f"positions must not be {positions.name} with pattern={pattern}")
        if "N" in used and not (acts_in_blocks and used & {"L", "S"}):
            raise ValueError(
                f"pattern with N must have blocks S or L, whose positions are rotary, alibi or "
                f"relative, got {pattern} and {positions.name}"
            )
        has_base = isinstance(positions, RotaryConfig) and positions.window_base is not None
        if has_base and (self.window is None or not used >= {"S", "L"}):
            raise ValueError(
                "positions.window_base needs blocks with a window, and others without: give window "
                "and a pattern, such as SSSL"
            )
        return letters

    def _check_pattern(self) -> None:
        if self.decay != "item" and not WRITTEN & {*(self.pattern or "")}:
            raise ValueError(f"decay needs a pattern with D or F, got decay={self.decay}")
        if self.pattern is None:
            return
        letters = "[DFLNS]+"
        is_known = re.fullmatch(f"{letters}(/{letters})?", self.pattern) is not None
        if not is_known or {*self.pattern} <= {*"L/"}:
            rule = "be letters S (window), L (whole), N (no positions), D and F (memories that are "
            rule += "written), such as SSSL, DDDL or S/L"
            raise ValueError(f"pattern must {rule}, got {short_repr(self.pattern)}")
        if ("S" in self.pattern) != (self.window is not None):
            rule = "have S if window is given, and only then"
            raise ValueError(f"pattern must {rule}, got {self.pattern} with window={self.window}")

    def _check_feedforward(self) -> None:
        if isinstance(self.feedforward, str) and self.feedforward != "dense":
            given = short_repr(self.feedforward)
            raise ValueError(f"feedforward must be a whole number or dense, got {given}")
        if self.gated and self.feedforward == "dense":
            raise ValueError("gated must be false with feedforward=dense, which has one layer")

    @property
    def query_size(self) -> int:
        """Size of each head's queries, and of its keys unless head_key_dim is given."""
        return self.head_dim or -(-self.width // self.heads)


@settings
class StatesConfig(ChoiceConfig):
    """Fields of both recurrent cores: the sizes of states, and the attention to the encoder's."""

    layers: Layers = 1
    """Recurrent layers of the encoder, and of the decoder unless decoder_layers is given."""
    decoder_layers: Layers | None = None
    """Recurrent layers of the decoder; as many as layers if not given."""
    directions: Literal[1, 2] = 2
    """2: bidirectional encoder, whose states are those of both directions concatenated."""
    width: Width = 128
    """Size of the embeddings and of the input of the output layer."""
    hidden: Width = 256
    """Size of the decoder's state, and the encoder's (both directions) without encoder_hidden."""
    encoder_hidden: Width | None = None
    """Size of the encoder's state, both directions together; hidden if not given."""
    attention: StateScoreName = "additive"
    """Attention score of the encoder's states (location: by position alone); none: the decoder only
    starts from the encoder's final state."""
    attention_hidden: Width = 128
    """Hidden size of the additive and concat scores, and rank of the general one."""
    value_map: Width | None = None
    """Size of the values v = W_V h, by a linear map of the encoder's states h; the values are the
    states if not given. (lectures, B.8)"""
    kernel: str = "auto"
    """Kernel of every read: auto, or one by name, such as reference or additive."""
    max_positions: Length = 1024
    """Maximum source length of location attention (the others have no limit)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_kernel(self.kernel)
        size, hidden, attention = self.encoder_size, self.hidden, self.attention
        if size % self.directions:
            name = "hidden" if self.encoder_hidden is None else "encoder_hidden"
            raise ValueError(f"{name} must be divisible by directions={self.directions}")
        if attention in MAPLESS_SCORES and size != hidden:
            raise ValueError(
                f"encoder_hidden must be hidden={hidden} with attention={attention}, got {size}"
            )
        if attention == "none" and self.value_map is not None:
            raise ValueError("value_map must not be given with attention=none")
        if attention != "location" and self.max_positions != 1024:
            raise ValueError(f"max_positions must not be given with attention={attention}")

    @property
    def encoder_size(self) -> int:
        """Size of the encoder's states, both directions together."""
        return self.encoder_hidden or self.hidden


@settings
class RecurrentConfig(StatesConfig):
    """Recurrent encoder and decoder, with or without attention. (bahdanau2015, luong2015)"""

    name: ClassVar[str] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    """rnn: s = tanh(A [x; s; c] + b), as in lectures, B.4; the input of gru and lstm is [x; c]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = self.describe_choice()
        if self.attention == "none" and changed:
            raise ValueError(f"{changed} has no effect with attention=none, which reads nothing")


@settings
class SelfAttentiveConfig(StatesConfig):
    """Recurrent network whose cells read all past states. (cheng2016; rnn: lectures, B.11)"""

    name: ClassVar[str] = "self-attentive"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    """rnn: h = tanh(A [x; c] + b), then h reads the past, itself included, for the next c; gru: the
    same with gates (ours); lstm: x reads the past, and the result replaces the previous state in
    the gates (LSTM-Network)."""
    form: Literal["paper", "released"] = "paper"
    """Query of the past (lstm): x and the last result (paper), or x alone (released code)."""
    self_attention: Literal["additive", "concat", "general", "dot", "scaled-dot"] = "additive"
    """Score of a past state h for a query q: additive: v . tanh(W_k h + W_q q), as in the paper;
    concat: v . tanh(W [h; q]); general: (W_k h) . (W_q q); scaled-dot: that divided by the root of
    the size; dot: h . q."""
    self_attention_hidden: Width = 128
    """Size to which past states and queries are mapped in each layer (not with dot)."""
    self_attention_recency: Literal["none", "learned"] = "none"
    """learned: adds a learned bias by the distance in steps, initialized such that almost only the
    last state is read, as in a plain recurrent network (ours, in no paper); none: no bias, as in
    the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell != "lstm" and self.form != "paper":
            raise ValueError(f"form must be paper for cell {self.cell}, got {self.form}")
        if self.self_attention == "dot" and self.self_attention_hidden != 128:
            raise ValueError("self_attention_hidden must not be given with self_attention=dot")


CoreConfig = TransformerConfig | RecurrentConfig | SelfAttentiveConfig
"""Config of any core."""


def max_length_of(core: CoreConfig) -> int | None:
    """Return the number of learned positions of a core; None if it has none, and thus no limit."""
    positions = core.positions if isinstance(core, TransformerConfig) else None
    return positions.max_length if isinstance(positions, LearnedConfig) else None


def directions_of(core: CoreConfig) -> Literal[1, 2] | None:
    """Return the directions of a recurrent encoder; None for a Transformer."""
    return None if isinstance(core, TransformerConfig) else core.directions


def check_core(core: CoreConfig, *, encodes: bool, decodes: bool, has_grid: bool = False) -> None:
    """Raise ValueError for a choice that reads nothing, or a pattern that does not fit the core.

    has_grid: True if the items may be those of a grid.
    """
    if isinstance(core, TransformerConfig):
        try:
            core.letters(encodes=encodes, decodes=decodes)
        except ValueError as error:
            raise ValueError(f"core.{error}") from error
        if isinstance(core.positions, GridRotaryConfig) and not has_grid:
            raise ValueError("core.positions must not be rotary-2d but for images")
    if not isinstance(core, RecurrentConfig) or (encodes and decodes):
        return
    changed, part = core.describe_choice(), "an encoder" if encodes else "a decoder"
    if changed:
        raise ValueError(f"{changed} has no effect: {part} of core {core.name} reads nothing")
