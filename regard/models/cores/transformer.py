"""Transformer core: a stack of encoder blocks, and a stack of decoder blocks that read its output.

    memory  = encoder(norm(source + positions))              bidirectional self-attention
    hidden  = decoder(norm(targets + positions), memory)     causal self-attention, cross-attention

The norm before the first block (BERT, BART) and the one after the last are optional. Blocks share
no parameters, except for relative positions: one table for the encoder and one for the decoder, as
in T5. Each decoder block projects the encoder's output to keys and values once per source.

Source: lectures, D.1 to D.10; vaswani2017; relative positions press2022 (ALiBi), raffel2020 (T5);
cosine scores henry2020.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.attention.biases import Bias, TensorBias
from regard.attention.choices import Choice
from regard.attention.masks import Mask, Padded, dense, intersect
from regard.attention.memory import (
    DeltaMemory,
    FadingMemory,
    KeyValueCache,
    Memory,
    WrittenMemory,
    keep_last,
)
from regard.attention.scores import Score, SoftCap
from regard.attention.scores.base import ScoreSizes
from regard.layers.blocks import DecoderBlock, EncoderBlock, InducedBlock
from regard.layers.feedforward import DenseLayer, FeedForward
from regard.layers.forms import (
    LearnedForm,
    NoFormError,
    NormForm,
    SinusoidsForm,
    TransformerForm,
    blocks_of,
    form_of,
)
from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.norms import L2Norm, RMSNorm
from regard.layers.positions.base import PositionalEncoding, PositionSizes
from regard.layers.positions.config import PositionsConfig, RotaryConfig
from regard.layers.read import Role
from regard.layers.residual import Residual
from regard.layers.written import WrittenAttention
from regard.models.cores.config import SCORES, WRITTEN, TransformerConfig
from regard.models.cores.core import (
    Core,
    Item,
    Items,
    config_of,
    create_choice,
    load_class,
)
from regard.settings.declare import check_unused, convert


@dataclass(frozen=True, eq=False)
class TransformerState:
    """Memory of the source and key-value cache of each decoder block, after `position` targets."""

    sources: tuple[Memory | None, ...]
    pasts: tuple[KeyValueCache | WrittenMemory | None, ...]
    position: int = 0

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        sources = tuple(None if memory is None else memory.select(index) for memory in self.sources)
        return replace(self.reorder(index), sources=sources)

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        pasts = tuple(None if past is None else past.select(index) for past in self.pasts)
        return replace(self, pasts=pasts)

    def slide(self, window: int) -> Self:
        """Return the state with the last `window` keys and values; a WrittenMemory is kept whole.

        Raises: ValueError before a target.
        """
        pasts = []
        for past in self.pasts:
            if past is None:
                raise ValueError("state must be one after a target, got one before the first")
            is_written = isinstance(past, WrittenMemory)
            pasts.append(past if is_written else keep_last(past, window))
        return replace(self, pasts=tuple(pasts))


class Transformer(Core):
    """Transformer encoder-decoder, of a config or its fields: `Transformer(layers=2, width=96)`.

    encodes:  False for the decoder alone (decoder-only, radford2018).
    decodes:  False for the encoder alone.
    in_order: False to decode sets of queries, without positions and causal mask (carion2020).

    Parts of your own replace those of the config. Each layer calls the function for a part anew:

        score        () -> score of an attention
        choice       () -> choice of an attention
        norm         (size) -> norm of the items: RMSNorm, or nn.LayerNorm
        positions    the positional encoding of both stacks; or its name, such as "rotary"
        feedforward  () -> feed-forward network of a block, (batch, time, width) in and out
        attention    (width, num_heads=..., ...) -> attention of a block, as MultiHead: a subclass

    Layers of other classes than those of this package keep their initial weights.
    Parts: encoder and decoder, lists of blocks with attention, cross (decoder) and feedforward;
    positions.
    Raises: ValueError for a setting without effect, or if parts do not fit together.
    """

    def __init__(
        self,
        config: TransformerConfig | None = None,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
        score: Callable[[], Score] | str | None = None,
        choice: Callable[[], Choice] | str | None = None,
        norm: Callable[[int], nn.Module] | str | None = None,
        positions: PositionalEncoding | PositionsConfig | str | None = None,
        feedforward: Callable[[], nn.Module] | int | str | None = None,
        attention: Callable[..., MultiHead] | None = None,
        **fields: Any,
    ):
        if not (encodes or decodes):
            raise ValueError("a Transformer must have an encoder or a decoder")
        if isinstance(positions, str):
            positions = convert(TransformerConfig, "positions", positions)
        own: dict[str, Any] = {
            "score": score,
            "choice": choice,
            "norm": norm,
            "positions": positions,
            "feedforward": feedforward,
            "attention": attention,
        }
        for name, part in own.items():
            if isinstance(part, nn.Module) and name != "positions":
                kind = type(part).__name__
                raise TypeError(f"{name} must be a function that creates a part, got a {kind}")
            if part is not None and not callable(part):  # a field of the config
                fields[name], own[name] = part, None
        if own["score"] is not None and "head_key_dim" in fields:
            # A score for any sizes: MultiHead asks the user's score whether they fit.
            fields.setdefault("score", "general")
        config = config_of(TransformerConfig, config, fields)
        changed = config.describe_choice()
        if own["choice"] is not None and changed:
            raise ValueError(f"`choice` must be None with options of a choice, {changed}")
        if config.norm_order == "none" and own["norm"] is not None:
            raise ValueError("norm must be None with norm_order='none', which has no norms")
        is_own = config.decoder_layers is not None
        in_two = ("shared_positions",)
        unused = {
            "encodes=False": () if encodes else ("inducing_points", *in_two),
            "decoder_layers and encodes=False": ("layers",) if is_own and not encodes else (),
            "decodes=False": () if decodes else ("decoder_layers", *in_two),
            "in_order=False": () if in_order else ("window", "pattern", *in_two),
            "`score`": () if own["score"] is None else ("score_hidden", "soft_cap"),
            "`norm`": () if own["norm"] is None else ("norm_eps",),
            "`feedforward`": () if own["feedforward"] is None else ("activation", "gated"),
        }
        for reason, names in unused.items():
            check_unused(config, names, reason)
        own_positions = own["positions"]
        letters = config.letters(
            encodes=encodes,
            decodes=decodes,
            acts_in_blocks=None if own_positions is None else not own_positions.adds,
        )
        super().__init__(config.width, encodes=encodes, decodes=decodes, in_order=in_order)
        self.set_outputs = len(letters[1])
        self.reads_relations = config.inducing_points is None
        blocks = _Blocks(config, dropout, own)
        self.positions = blocks.positions
        self.decoder_positions = None if config.shared_positions else blocks.create_positions()
        beyond = "its positions are added to the items, and would run beyond the context"
        self.unsupported_slide_reason = beyond if self.positions.adds else None
        bias = self.positions.bias(two_sided=True)
        self.encoder = nn.ModuleList(
            blocks.encoder_block(bias, layer, letter) for layer, letter in enumerate(letters[0], 1)
        )
        bias = self.positions.bias(two_sided=False) if in_order else None
        self.decoder = nn.ModuleList(
            blocks.decoder_block(bias, layer, letter, reads_source=encodes, in_order=in_order)
            for layer, letter in enumerate(letters[1], 1)
        )
        is_last = config.norm_order == "pre" if config.final_norm is None else config.final_norm
        is_first, width = config.embedding_norm, config.width
        no_norm = nn.Identity
        self.encoder_norm = blocks.norm(width) if is_last and encodes else no_norm()
        self.decoder_norm = blocks.norm(width) if is_last and decodes else no_norm()
        self.encoder_embedding_norm = blocks.norm(width) if is_first and encodes else no_norm()
        is_first = is_first and decodes and in_order
        self.decoder_embedding_norm = blocks.norm(width) if is_first else no_norm()
        self.apply(_initialize)
        if config.norm_order == "post":
            _scale_branches(self.encoder)
            _scale_branches(self.decoder)

    def blocks(self) -> list[nn.Module]:
        # `begin` uses the attention of the decoder blocks apart from their forward.
        return [*self.encoder, *(block.feedforward for block in self._decoder_blocks)]

    def encode(self, source: Padded) -> Padded:
        items = self.encoder_embedding_norm(self.positions(source.items))
        mask, options = source.mask, {}
        if source.relations is not None and source.relations.dtype == torch.bool:
            mask = intersect(mask, dense(source.relations))
        elif source.relations is not None:
            options["bias"] = TensorBias(source.relations)
        masks: dict[int | None, Mask | None] = {None: mask}  # shared, so built once
        for block in self.encoder:
            window: Any = getattr(block, "window", None)
            if window not in masks:
                masks[window] = cast("EncoderBlock", block).mask(masks[None])
            items = block(items, masks[window], **options)
        return source._replace(items=self.encoder_norm(items))

    def begin(self, encoded: Padded | None, *, rows: int = 1) -> TransformerState:
        pasts = (None,) * len(self.decoder)
        if encoded is None:
            return TransformerState(sources=pasts, pasts=pasts)
        return TransformerState(self._read_source(encoded), pasts)

    def decode_set(self, queries: Items, encoded: Padded) -> list[Items]:
        if self.in_order:
            raise ValueError("`decode_set` needs a core with in_order=False")
        items, hidden = queries, []
        sources = self._read_source(encoded)
        for block, source in zip(self._decoder_blocks, sources, strict=True):
            items = block.decode_set(items, source)
            hidden.append(self.decoder_norm(items))
        return hidden

    def forward(self, targets: Items, state: TransformerState) -> Items:
        items, blocks = self._embed_targets(targets, 0), self._decoder_blocks
        masks = {block.window: block.mask() for block in blocks}  # shared, so built once
        for block, source in zip(blocks, state.sources, strict=True):
            items = block(items, source, masks[block.window])
        return self.decoder_norm(items)

    def step(self, target: Item, state: TransformerState) -> tuple[Item, TransformerState]:
        return self._advance(target.unsqueeze(1), state)

    def steps(self, targets: Items, state: TransformerState) -> tuple[Item, TransformerState]:
        if type(self).step is not Transformer.step:  # that of a subclass
            return super().steps(targets, state)
        return self._advance(targets, state)

    def _advance(self, targets: Items, state: TransformerState) -> tuple[Item, TransformerState]:
        items, count = self._embed_targets(targets, state.position), targets.shape[1]
        blocks, pasts = self._decoder_blocks, []
        masks = {block.window: block.mask() if count > 1 else None for block in blocks}
        for block, old, source in zip(blocks, state.pasts, state.sources, strict=True):
            items, past = block.step(items, old, source, masks[block.window])
            pasts.append(past)
        state = replace(state, pasts=tuple(pasts), position=state.position + count)
        last = items if count == 1 else items[:, -1:]
        return self.decoder_norm(last).squeeze(1), state

    def num_layers(self, stack: Literal["encoder", "decoder"]) -> int:
        return len(self.encoder if stack == "encoder" else self.decoder)

    def form(self) -> TransformerForm:
        """Return the form of this module, for targets in order. Raises: NoFormError for sets."""
        if not self.in_order:
            raise NoFormError(self, "decodes sets, which have no order")
        added: list[SinusoidsForm | LearnedForm | None] = []
        for positions in (self.positions.form(), self.target_positions.form()):
            added.append(positions if isinstance(positions, SinusoidsForm | LearnedForm) else None)
        return TransformerForm(
            encoder_positions=added[0],
            encoder_embedding_norm=_norm_form(self.encoder_embedding_norm),
            encoder=blocks_of(self.encoder),
            encoder_norm=_norm_form(self.encoder_norm),
            decoder_positions=added[1],
            decoder_embedding_norm=_norm_form(self.decoder_embedding_norm),
            decoder=blocks_of(self.decoder),
            decoder_norm=_norm_form(self.decoder_norm),
        )

    @property
    def target_positions(self) -> PositionalEncoding:
        """Positional encoding of the decoder: its own, or that of both stacks."""
        return self.positions if self.decoder_positions is None else self.decoder_positions

    def _embed_targets(self, targets: Items, start: int) -> Items:
        return self.decoder_embedding_norm(self.target_positions(targets, start))

    def _read_source(self, encoded: Padded) -> tuple[Memory, ...]:
        mask = encoded.mask
        return tuple(block.read_source(encoded.items, mask) for block in self._decoder_blocks)

    @property
    def _decoder_blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", list(self.decoder))


def _norm_form(norm: nn.Module) -> NormForm | None:
    return None if type(norm) is nn.Identity else form_of(norm, NormForm)


class _Blocks:
    """Builder of blocks from a config, or from the parts that replace those of the config."""

    def __init__(self, config: TransformerConfig, dropout: float, own: dict[str, Any]):
        self.config, self.choice = config, own["choice"]
        self.score = own["score"] or partial(_score, config)
        norm = partial(nn.LayerNorm, eps=config.norm_eps, bias=config.bias)
        if config.norm == "rms":
            norm = partial(RMSNorm, eps=config.norm_eps)
        self.norm = own["norm"] or norm
        self.residual = partial(
            Residual,
            config.width,
            norm=self.norm,
            order=config.norm_order,
            layer_scale=config.layer_scale,
            dropout=dropout,
        )
        self.sizes = PositionSizes(config.width, config.heads, config.query_size)
        self.positions: PositionalEncoding = own["positions"] or self.create_positions()
        self.positions.check(self.sizes)
        self.rotary = self.window_rotary = self.positions if self.positions.rotates else None
        angles = config.positions if own["positions"] is None else None
        if isinstance(angles, RotaryConfig) and angles.window_base is not None:
            own_base = RotaryConfig(
                base=angles.window_base, dim=angles.dim, interleaved=angles.interleaved
            )
            self.window_rotary = self.create_positions(own_base)
        self.feedforward = own["feedforward"] or self._feedforward
        self.create_attention = own["attention"] or MultiHead

    def create_positions(self, config: PositionsConfig | None = None) -> PositionalEncoding:
        config = self.config.positions if config is None else config
        return load_class(config.kind).create(config, self.sizes)

    def _feedforward(self) -> nn.Module:
        config = self.config
        if isinstance(config.feedforward, str):
            return DenseLayer(config.width, activation=config.activation, bias=config.bias)
        return FeedForward(
            config.width,
            config.feedforward,
            activation=config.activation,
            bias=config.bias,
            gated=config.gated,
        )

    def encoder_block(
        self, bias: Bias | None, layer: int, letter: str
    ) -> EncoderBlock | InducedBlock:
        points = self.config.inducing_points
        if points is None:
            first = self.first_residual(layer)
            role = Role("encoder self", layer, queries="source", keys="source")
            attention = cast("MultiHead", self.self_attention(role, bias, letter))
            feedforward = self.feedforward()
            residuals = first(), self.residual()
            return EncoderBlock(attention, feedforward, residuals, window=self.window_of(letter))
        if bias is not None or self.rotary is not None:
            raise ValueError(
                f"inducing_points need positions that are added, got "
                f"{type(self.positions).__name__}"
            )
        axis = f"inducing points of layer {layer}"
        gather = self.attention(Role("encoder self", layer, queries=axis, keys="source"))
        attention = self.attention(Role("encoder self", layer, queries="source", keys=axis))
        residuals = self.first_residual(layer)(), self.residual()
        return InducedBlock(points, gather, attention, self.feedforward(), residuals)

    def decoder_block(
        self,
        bias: Bias | None,
        layer: int,
        letter: str,
        *,
        reads_source: bool,
        in_order: bool,
    ) -> DecoderBlock:
        first = self.first_residual(layer)
        queries, keys = ("output", "decoder input") if in_order else ("queries", "queries")
        role = Role("decoder self", layer, queries=queries, keys=keys)
        own = self.self_attention(role, bias, letter if in_order else "N")
        cross = None
        if reads_source:
            cross = self.attention(Role("cross", layer, queries=queries, keys="source"))
        feedforward = self.feedforward()
        residuals = first(), self.residual(), self.residual()
        return DecoderBlock(own, cross, feedforward, residuals, window=self.window_of(letter))

    def window_of(self, letter: str) -> int | None:
        """Return the window of a block."""
        return self.config.window if letter == "S" else None

    def self_attention(
        self, role: Role, bias: Bias | None, letter: str
    ) -> MultiHead | WrittenAttention:
        """Return the self-attention of a block, with the positions of its letter."""
        if letter in WRITTEN:
            config = self.config
            return WrittenAttention(
                config.width,
                config.heads,
                memory=DeltaMemory if letter == "D" else FadingMemory,
                decay=config.decay,
                head_dim=config.head_dim,
                head_value_dim=config.head_value_dim,
                bias=config.bias,
                norm_eps=config.norm_eps,
                role=role,
            )
        if letter == "N":
            return self.attention(role, registers=self.config.registers)
        has_window = self.window_of(letter) is not None
        rotary = self.window_rotary if has_window else self.rotary
        return self.attention(role, bias, rotary, registers=self.config.registers)

    def first_residual(self, layer: int) -> Callable[[], Residual]:
        """Return the function that creates the add & norm of the self-attention of a block."""
        if layer > 1 or self.config.first_norm:
            return self.residual
        return partial(self.residual, norm=nn.Identity)

    def attention(
        self,
        role: Role,
        bias: Bias | None = None,
        positions: PositionalEncoding | None = None,
        *,
        registers: int = 0,
    ) -> MultiHead:
        config, kind = self.config, self.config.attention_bias
        norm = {"none": None, "rms": RMSNorm, "l2": L2Norm}[config.qk_norm]
        score = self.score()
        choice = self.choice() if self.choice else create_choice(config, score, config.heads)
        return self.create_attention(
            config.width,
            num_heads=config.heads,
            key_heads=config.key_heads,
            head_dim=config.head_dim,
            head_key_dim=config.head_key_dim,
            head_value_dim=config.head_value_dim,
            score=score,
            choice=choice,
            bias=bias,
            positions=positions,
            qk_norm=None if norm is None else partial(norm, eps=config.norm_eps),
            gate=config.gate,
            registers=registers,
            kernel=config.kernel,
            projection_bias=config.bias if kind is None else kind != "none",
            output_bias=config.bias if kind is None else kind == "all",
            output_projection=config.output_projection,
            role=role,
        )


def _score(config: TransformerConfig) -> Score:
    size = config.query_size
    sizes = ScoreSizes(
        size,
        config.head_key_dim or size,
        config.score_hidden or size,
        num_heads=config.heads,
        key_heads=config.key_heads,
    )
    score = load_class(SCORES[config.score]).create(sizes)
    return score if config.soft_cap is None else SoftCap(score, config.soft_cap)


def _initialize(module: nn.Module) -> None:
    # glorot2010: preserves the variance of activations and gradients.
    # A user's own parts keep their initialization, unless they consist of layers of this package.
    if isinstance(module, Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@torch.no_grad()
def _scale_branches(stack: nn.Module) -> None:
    """Divide the last layer of each of a stack's n residual branches by sqrt(n). (radford2019, 2.3)

    norm(x + f(x)) divides x by the root of the variance of the sum. Branches as large as x leave
    2^(-n/2) of each item after n norms, and as much of its gradient: all positions become alike
    (dong2021), and the decoder first has to unlearn that. These branches leave (1 + 1/n)^(-n/2) >
    0.6, whatever n.
    """
    num_branches = sum(isinstance(part, Residual) for part in stack.modules())
    for part in stack.modules():
        last = part.output if isinstance(part, MultiHead | WrittenAttention) else None
        last = part.contract if isinstance(part, FeedForward) else last
        last = part.map if isinstance(part, DenseLayer) else last
        if isinstance(last, Linear):
            last.weight /= num_branches**0.5
