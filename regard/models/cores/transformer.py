"""Transformer core: a stack of encoder blocks, and a stack of decoder blocks that read its output.

    memory  = encoder(source + positions)               bidirectional self-attention
    hidden  = decoder(targets + positions, memory)      causal self-attention and cross-attention

Blocks share no parameters, except for relative positions: one table for the encoder and one for the decoder, as in T5.
Each decoder block projects the encoder's output to keys and values once per source.

Source: lectures, D and E; vaswani2017; relative positions press2022 (ALiBi), raffel2020 (T5); cosine scores henry2020.
"""

from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.biases import Alibi, Bias, RelativeBias
from regard.attention.choices import Choice, Soft
from regard.attention.masks import Padded
from regard.attention.memory import KeyValueCache, Memory
from regard.attention.scores import BareAdditive, Cosine, Dot, ScaledDot, Score, SoftCap
from regard.layers.blocks import DecoderBlock, EncoderBlock, InducedBlock
from regard.layers.feedforward import FeedForward
from regard.layers.forms import LearnedForm, NoFormError, NormForm, SinusoidsForm, TransformerForm, blocks_of, form_of
from regard.layers.multihead import MultiHead
from regard.layers.positions.base import NoPositions, PositionalEncoding
from regard.layers.positions.learned import Learned
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.read import Role
from regard.layers.residual import Residual
from regard.models.config import TransformerConfig
from regard.models.cores.core import Core


@dataclass(frozen=True, eq=False)
class TransformerState:
    """Memory of the source and key-value cache of each decoder block, after `position` targets."""

    sources: tuple[Memory | None, ...]
    pasts: tuple[KeyValueCache | None, ...]
    position: int = 0

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Return these rows of every tensor."""
        sources = tuple(None if memory is None else memory.select(index) for memory in self.sources)
        return replace(self.reorder(index), sources=sources)

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Return these rows of the decoder's key-value caches."""
        pasts = tuple(None if past is None else past.select(index) for past in self.pasts)
        return replace(self, pasts=pasts)


class TransformerCore(Core):
    """Transformer encoder and decoder; see TransformerConfig for the sizes.

    decodes=False: the encoder alone. encodes=False: the decoder alone (decoder-only, radford2018).
    in_order=False: the decoder decodes sets of queries, without positions and causal mask (carion2020).
    Raises: ValueError if window is given with in_order=False.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
    ):
        num_decoder = config.layers if config.decoder_layers is None else config.decoder_layers
        num_decoder = num_decoder if decodes else 0
        super().__init__(config.width, encodes=encodes, decodes=decodes, in_order=in_order, set_outputs=num_decoder)
        if not in_order and config.window is not None:
            raise ValueError(f"window must be None for sets, which have no order, got {config.window}")
        self.positions = _positions(config)
        bias = _bias(config, two_sided=True)
        num_encoder = config.layers if encodes else 0
        self.encoder = nn.ModuleList(_encoder_block(config, dropout, bias, layer + 1) for layer in range(num_encoder))
        bias = _bias(config, two_sided=False) if in_order else None
        self.decoder = nn.ModuleList(
            _decoder_block(config, dropout, bias, layer + 1, reads_source=encodes, in_order=in_order)
            for layer in range(num_decoder)
        )
        pre = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.width) if pre and encodes else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.width) if pre and decodes else nn.Identity()
        self.apply(_initialize)

    def blocks(self) -> list[nn.Module]:
        """Return the encoder blocks and the feed-forward networks of the decoder (`start` uses its attention)."""
        return [*self.encoder.children(), *(block.feedforward for block in self._decoder_blocks)]

    def encode(self, source: Padded) -> Padded:
        """Return the encoder's output (batch, source, model)."""
        items, mask = self.positions(source.items), source.mask
        for block in self.encoder.children():
            items = block(items, mask)
        return source._replace(items=self.encoder_norm(items))

    def start(self, source: Padded | None, *, rows: int = 1) -> TransformerState:
        """Encode the source items (batch, source, model); return the state with projected keys and values."""
        if source is None:
            return TransformerState(sources=(None,) * len(self.decoder), pasts=(None,) * len(self.decoder))
        encoded, mask = self.encode(source), source.mask
        crosses = [block.cross for block in self._decoder_blocks]
        return TransformerState(
            sources=tuple(None if cross is None else cross.memory(encoded.items, mask) for cross in crosses),
            pasts=(None,) * len(self.decoder),
        )

    def decode_set(
        self, queries: Float[Tensor, "batch query model"], encoded: Padded
    ) -> list[Float[Tensor, "batch query model"]]:
        """Return hidden states of a set of queries after each decoder block."""
        if self.in_order:
            raise ValueError(
                "this core was constructed for targets in order; to decode sets, construct it with in_order=False"
            )
        items, hidden = queries, []
        for block in self._decoder_blocks:
            assert block.cross is not None
            items = block.decode_set(items, block.cross.memory(encoded.items, encoded.mask))
            hidden.append(self.decoder_norm(items))
        return hidden

    def forward(
        self, targets: Float[Tensor, "batch target model"], state: TransformerState
    ) -> Float[Tensor, "batch target model"]:
        """Return hidden states of all targets, starting at the first position."""
        items = self.positions(targets)
        for block, source in zip(self._decoder_blocks, state.sources, strict=True):
            items = block(items, source)
        return self.decoder_norm(items)

    def step(
        self, target: Float[Tensor, "rows model"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows model"], TransformerState]:
        """Return hidden states of one more target per row, and the next state; all rows have the same position."""
        item, pasts = self.positions(target.unsqueeze(1), state.position), []
        for block, source, past in zip(self._decoder_blocks, state.sources, state.pasts, strict=True):
            item, extended = block.step(item, past, source)
            pasts.append(extended)
        state = replace(state, pasts=tuple(pasts), position=state.position + 1)
        return self.decoder_norm(item).squeeze(1), state

    def form(self) -> TransformerForm:
        """Return the form of this module (regard.layers.forms), for targets in order.

        Raises: NoFormError if the core decodes sets.
        """
        if not self.in_order:
            raise NoFormError(self, "decodes sets, which have no order")
        return TransformerForm(
            positions=_added_form(self.positions),
            encoder=blocks_of(self.encoder),
            encoder_norm=_norm_form(self.encoder_norm),
            decoder=blocks_of(self.decoder),
            decoder_norm=_norm_form(self.decoder_norm),
        )

    @property
    def _decoder_blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", list(self.decoder.children()))


def _added_form(positions: PositionalEncoding) -> SinusoidsForm | LearnedForm | None:
    form = positions.form()
    return form if isinstance(form, SinusoidsForm | LearnedForm) else None


def _norm_form(norm: nn.Module) -> NormForm | None:
    return None if type(norm) is nn.Identity else form_of(norm, NormForm)


def _positions(config: TransformerConfig) -> PositionalEncoding:
    if config.positions == "sinusoidal":
        return Sinusoidal(config.width)
    if config.positions == "learned":
        return Learned(config.max_positions, config.width)
    return NoPositions()


def _bias(config: TransformerConfig, *, two_sided: bool) -> Bias | None:
    """Return the bias of self-attention scores for relative positions, or None."""
    if config.positions == "alibi":
        return Alibi(config.heads)
    if config.positions == "relative":
        return RelativeBias(config.heads, two_sided=two_sided)
    return None


def _attention(config: TransformerConfig, role: Role, bias: Bias | None = None) -> MultiHead:
    return MultiHead(
        config.width,
        num_heads=config.heads,
        key_heads=config.key_heads,
        head_dim=config.head_dim,
        head_value_dim=config.head_value_dim,
        score=_score(config),
        choose=_choice(config),
        bias=bias,
        kernel=config.kernel,
        role=role,
    )


def _score(config: TransformerConfig) -> Score:
    match config.score:
        case "scaled-dot":
            score = ScaledDot()
        case "dot":
            score = Dot()
        case "cosine":
            score = Cosine()
        case "additive":
            score = BareAdditive(config.query_size, num_heads=config.heads)
        case _:
            raise ValueError(f"score must be one of scaled-dot, dot, cosine, additive, got {config.score!r}")
    return score if config.soft_cap is None else SoftCap(score, config.soft_cap)


def _choice(config: TransformerConfig) -> Choice | None:
    # Cosines are in [-1, 1], where a softmax is nearly uniform: each head learns its inverse temperature.
    return Soft(torch.full((config.heads, 1, 1), 10.0), learn=True) if config.score == "cosine" else None


def _feedforward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.width, config.feedforward, activation=config.activation)


def _residual(config: TransformerConfig, dropout: float) -> Residual:
    return Residual(config.width, order=config.norm, dropout=dropout)


def _encoder_block(
    config: TransformerConfig, dropout: float, bias: Bias | None, layer: int
) -> EncoderBlock | InducedBlock:
    residuals = (_residual(config, dropout), _residual(config, dropout))
    if config.inducing_points is not None:
        points = f"inducing points of layer {layer}"
        gather = _attention(config, Role("encoder self", layer, queries=points, keys="source"))
        attention = _attention(config, Role("encoder self", layer, queries="source", keys=points))
        return InducedBlock(config.inducing_points, gather, attention, _feedforward(config), residuals)
    role = Role("encoder self", layer, queries="source", keys="source")
    return EncoderBlock(_attention(config, role, bias), _feedforward(config), residuals)


def _decoder_block(
    config: TransformerConfig, dropout: float, bias: Bias | None, layer: int, *, reads_source: bool, in_order: bool
) -> DecoderBlock:
    residuals = (_residual(config, dropout), _residual(config, dropout), _residual(config, dropout))
    queries, keys = ("output", "decoder input") if in_order else ("queries", "queries")
    own = _attention(config, Role("decoder self", layer, queries=queries, keys=keys), bias)
    cross = _attention(config, Role("cross", layer, queries=queries, keys="source")) if reads_source else None
    return DecoderBlock(own, cross, _feedforward(config), residuals, window=config.window)


def _initialize(module: nn.Module) -> None:
    # glorot2010: preserves the variance of activations and gradients.
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
