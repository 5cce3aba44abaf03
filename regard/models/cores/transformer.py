"""Transformer core: a stack of encoder blocks, and a stack of decoder blocks that read its output.

    memory  = encoder(source + positions)               bidirectional self-attention
    hidden  = decoder(targets + positions, memory)      causal self-attention and cross-attention

Blocks share no parameters, except for relative positions: one table for the encoder and one for the
decoder, as in T5. Each decoder block projects the encoder's output to keys and values once per
source.

Source: lectures, D.1 to D.10; vaswani2017; relative positions press2022 (ALiBi), raffel2020 (T5);
cosine scores henry2020.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.biases import Bias
from regard.attention.choices import Choice
from regard.attention.masks import Padded
from regard.attention.memory import KeyValueCache, Memory, keep_last
from regard.attention.parts import PAGE, check_part
from regard.attention.scores import Score, SoftCap
from regard.attention.scores.base import ScoreSizes
from regard.layers.blocks import DecoderBlock, EncoderBlock, InducedBlock
from regard.layers.feedforward import FeedForward, GatedFeedForward
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
from regard.layers.norms import RMSNorm
from regard.layers.positions.base import PositionalEncoding, PositionSizes
from regard.layers.positions.config import PositionsConfig, positions_config
from regard.layers.read import Role
from regard.layers.residual import Residual
from regard.models.cores.config import SCORES, TransformerConfig
from regard.models.cores.core import Core, config_of, create_choice, create_positions, create_score


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


class Transformer(Core):
    """Transformer encoder and decoder, of a config or of its fields: `Transformer(layers=2,
    width=96)`.

    decodes=False: the encoder alone. encodes=False: the decoder alone (decoder-only, radford2018).
    in_order=False: the decoder decodes sets of queries, without positions and causal mask
    (carion2020).

    fields: those of TransformerConfig, which documents them.
    Parts of your own replace those of the config:
        score        returns a score, one for each attention
        choice       returns a choice, one for each attention
        norm         returns the norm of items of a given size: RMSNorm, or nn.LayerNorm
        positions    the positional encoding, of both stacks; or its name, such as "rotary"
        feedforward  returns a feed-forward network, (batch, time, width) in and out, one for each
                     block
    Layers of other classes than those of this package keep their initial weights.
    Raises: ValueError if window is given with in_order=False, or if parts do not fit together.
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
        feedforward: Callable[[], nn.Module] | int | None = None,
        **fields: Any,
    ):
        if not (encodes or decodes):
            raise ValueError(
                "a Transformer must have an encoder or a decoder, got encodes=False and "
                "decodes=False"
            )
        parts = {
            "score": score,
            "choice": choice,
            "norm": norm,
            "positions": positions,
            "feedforward": feedforward,
        }
        if isinstance(positions, str):
            parts["positions"] = positions_config(positions)
        _check_own_parts(**parts)
        own: dict[str, Any] = {
            name: part if callable(part) else None for name, part in parts.items()
        }
        fields |= {
            name: part for name, part in parts.items() if part is not None and own[name] is None
        }
        if own["score"] is not None and "head_key_dim" in fields:
            fields.setdefault(
                "score", "general"
            )  # one for any sizes: MultiHead asks the own score whether they fit
        config = config_of(TransformerConfig, config, fields)
        if own["choice"] is not None and config.has_choice:
            raise ValueError(
                f"options of a choice must be left out with one of your own, got "
                f"{config.describe_choice()}"
            )
        if config.norm_order == "none" and own["norm"] is not None:
            raise ValueError(
                "norm must be None with norm_order='none', which has no norms, got one"
            )
        num_decoder = config.layers if config.decoder_layers is None else config.decoder_layers
        num_decoder = num_decoder if decodes else 0
        super().__init__(
            config.width,
            encodes=encodes,
            decodes=decodes,
            in_order=in_order,
            set_outputs=num_decoder,
        )
        if not in_order and config.window is not None:
            raise ValueError(
                f"window must be None for sets, which have no order, got {config.window}"
            )
        blocks = _Blocks(config, dropout=dropout, **own)
        self.positions = blocks.positions
        bias = self.positions.bias(two_sided=True)
        num_encoder = config.layers if encodes else 0
        self.encoder = nn.ModuleList(
            blocks.encoder_block(bias, layer + 1) for layer in range(num_encoder)
        )
        bias = self.positions.bias(two_sided=False) if in_order else None
        self.decoder = nn.ModuleList(
            blocks.decoder_block(bias, layer + 1, reads_source=encodes, in_order=in_order)
            for layer in range(num_decoder)
        )
        pre = config.norm_order == "pre"
        self.encoder_norm = blocks.norm(config.width) if pre and encodes else nn.Identity()
        self.decoder_norm = blocks.norm(config.width) if pre and decodes else nn.Identity()
        self.apply(_initialize)
        if config.norm_order == "post":
            _scale_branches(self.encoder)
            _scale_branches(self.decoder)

    def blocks(self) -> list[nn.Module]:
        """Return the encoder blocks and the feed-forward networks of the decoder (`start` uses its
        attention)."""
        return [*self.encoder.children(), *(block.feedforward for block in self._decoder_blocks)]

    def encode(self, source: Padded) -> Padded:
        """Return the encoder's output (batch, source, model)."""
        items, mask = self.positions.add(source.items), source.mask
        for block in self.encoder.children():
            items = block(items, mask)
        return source._replace(items=self.encoder_norm(items))

    def start(self, source: Padded | None, *, rows: int = 1) -> TransformerState:
        """Encode the source items (batch, source, model); return the state with projected keys and
        values."""
        if source is None:
            return TransformerState(
                sources=(None,) * len(self.decoder), pasts=(None,) * len(self.decoder)
            )
        encoded, mask = self.encode(source), source.mask
        crosses = [block.cross for block in self._decoder_blocks]
        return TransformerState(
            sources=tuple(
                None if cross is None else cross.memory(encoded.items, mask) for cross in crosses
            ),
            pasts=(None,) * len(self.decoder),
        )

    def decode_set(
        self, queries: Float[Tensor, "batch query model"], encoded: Padded
    ) -> list[Float[Tensor, "batch query model"]]:
        """Return hidden states of a set of queries after each decoder block."""
        if self.in_order:
            raise ValueError(
                "this core was constructed for targets in order; to decode sets, construct it with "
                "in_order=False"
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
        items = self.positions.add(targets)
        for block, source in zip(self._decoder_blocks, state.sources, strict=True):
            items = block(items, source)
        return self.decoder_norm(items)

    def step(
        self, target: Float[Tensor, "rows model"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows model"], TransformerState]:
        """Return hidden states of one more target per row, and the next state; all rows have the
        same position."""
        item, pasts = self.positions.add(target.unsqueeze(1), state.position), []
        for block, source, past in zip(
            self._decoder_blocks, state.sources, state.pasts, strict=True
        ):
            item, extended = block.step(item, past, source)
            pasts.append(extended)
        state = replace(state, pasts=tuple(pasts), position=state.position + 1)
        return self.decoder_norm(item).squeeze(1), state

    @property
    def slide_refusal(self) -> str | None:
        """Reason why keys and values cannot be dropped: positions that are added to the items."""
        if not self.positions.adds:
            return None
        return "its positions are added to the items, and would run beyond the context"

    def slide(self, state: TransformerState, window: int) -> TransformerState:
        """Return the state with the keys and values of the last `window` targets only: that of a
        core with this window.

        Raises: ValueError for positions that are added to the items, or before the first target.
        """
        if (reason := self.slide_refusal) is not None:
            raise ValueError(f"positions must be relative to drop keys and values, but {reason}")
        pasts = [past for past in state.pasts if past is not None]
        if len(pasts) < len(state.pasts):
            raise ValueError("state must be one after a target, got one before the first")
        return replace(state, pasts=tuple(keep_last(past, window) for past in pasts))

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


class _Blocks:
    """Builder of blocks from a config, or from the parts that replace those of the config."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dropout: float,
        score: Callable[[], Score] | None,
        choice: Callable[[], Choice] | None,
        norm: Callable[[int], nn.Module] | None,
        positions: PositionalEncoding | None,
        feedforward: Callable[[], nn.Module] | None,
    ):
        self.config, self.score, self.choice = config, score, choice
        self.norm = _norm(config) if norm is None else norm
        self.residual = partial(
            Residual, config.width, norm=self.norm, order=config.norm_order, dropout=dropout
        )
        sizes = PositionSizes(config.width, config.heads, config.query_size)
        self.positions = (
            create_positions(config.positions, sizes) if positions is None else positions
        )
        self.positions.check(sizes)
        self.rotary = self.positions if self.positions.rotates else None
        if feedforward is None:
            kind = GatedFeedForward if config.gated else FeedForward
            options = {"activation": config.activation, "bias": config.bias}
            feedforward = partial(kind, config.width, config.feedforward, **options)
        self.feedforward = feedforward

    def encoder_block(self, bias: Bias | None, layer: int) -> EncoderBlock | InducedBlock:
        points = self.config.inducing_points
        if points is not None:
            if bias is not None or self.rotary is not None:
                name = type(self.positions).__name__
                raise ValueError(
                    f"positions must be added to the items with inducing_points, got {name}"
                )
            axis = f"inducing points of layer {layer}"
            gather = self.attention(Role("encoder self", layer, queries=axis, keys="source"))
            attention = self.attention(Role("encoder self", layer, queries="source", keys=axis))
            return InducedBlock(
                points, gather, attention, self.feedforward(), (self.residual(), self.residual())
            )
        attention = self.attention(
            Role("encoder self", layer, queries="source", keys="source"), bias, self.rotary
        )
        return EncoderBlock(attention, self.feedforward(), (self.residual(), self.residual()))

    def decoder_block(
        self, bias: Bias | None, layer: int, *, reads_source: bool, in_order: bool
    ) -> DecoderBlock:
        queries, keys = ("output", "decoder input") if in_order else ("queries", "queries")
        role = Role("decoder self", layer, queries=queries, keys=keys)
        own = self.attention(role, bias, self.rotary) if in_order else self.attention(role)
        cross = (
            self.attention(Role("cross", layer, queries=queries, keys="source"))
            if reads_source
            else None
        )
        feedforward, residuals = (
            self.feedforward(),
            (self.residual(), self.residual(), self.residual()),
        )
        return DecoderBlock(own, cross, feedforward, residuals, window=self.config.window)

    def attention(
        self, role: Role, bias: Bias | None = None, positions: PositionalEncoding | None = None
    ) -> MultiHead:
        config = self.config
        score = _score(config) if self.score is None else self.score()
        check_part("score", score, Score, "ScaledDot()")
        own = None if self.choice is None else self.choice()
        if own is not None:
            check_part("choice", own, Choice, "Soft(beta)")
        return MultiHead(
            config.width,
            num_heads=config.heads,
            key_heads=config.key_heads,
            head_dim=config.head_dim,
            head_key_dim=config.head_key_dim,
            head_value_dim=config.head_value_dim,
            score=score,
            choice=create_choice(config, score, config.heads) if own is None else own,
            bias=bias,
            positions=positions,
            kernel=config.kernel,
            projection_bias=config.bias,
            output_projection=config.output_projection,
            role=role,
        )


def _check_own_parts(*, positions: Any, **makers: Any) -> None:
    """Raise TypeError for a part where a function that creates one for each layer is needed, or the
    reverse."""
    for name, maker in makers.items():
        if isinstance(maker, nn.Module):
            raise TypeError(
                f"{name} must be a function that creates a part, since each layer needs its own, "
                f"got the part "
                f"{type(maker).__name__}; write {name}=lambda ...: {type(maker).__name__}(...)"
            )
        if callable(maker):
            arguments = ("width",) if name == "norm" else ()
            try:
                inspect.signature(maker).bind(*arguments)
            except TypeError as error:
                called = f"{name}({', '.join(arguments)})"
                raise TypeError(
                    f"{name} must be a function that creates a part as {called}, got one with "
                    f"other arguments "
                    f"({error}); to write a part, see {PAGE}"
                ) from None
            except ValueError:  # a function without a signature, such as one of C
                continue
    if callable(positions) and not isinstance(positions, PositionalEncoding):
        kind = positions.__name__ if isinstance(positions, type) else type(positions).__name__
        raise TypeError(f"positions must be a PositionalEncoding or its config, got {kind}")


def _norm(config: TransformerConfig) -> Callable[[int], nn.Module]:
    match config.norm:
        case "layer":
            return partial(nn.LayerNorm, eps=config.norm_eps, bias=config.bias)
        case "rms":
            return partial(RMSNorm, eps=config.norm_eps)
    raise ValueError(f"norm must be layer or rms, got {config.norm!r}")


def _score(config: TransformerConfig) -> Score:
    size, keys = config.query_size, config.head_key_dim
    hidden = size if config.score_hidden is None else config.score_hidden
    heads = {"num_heads": config.heads, "key_heads": config.key_heads}
    sizes = ScoreSizes(size, size if keys is None else keys, hidden, **heads)
    score = create_score("score", config.score, SCORES, sizes)
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
    """Divide the last layer of each of the n residual branches of a stack by sqrt(n). (radford2019,
    section 2.3)

    norm(x + f(x)) divides x by the root of the variance of the sum. Branches as large as x leave
    2^(-n/2) of each item after n norms, and as much of its gradient: all positions become alike
    (dong2021), and the decoder first has to unlearn that. These branches leave (1 + 1/n)^(-n/2) >
    0.6, whatever n.
    """
    num_branches = sum(isinstance(part, Residual) for part in stack.modules())
    for part in stack.modules():
        last = part.output if isinstance(part, MultiHead) else None
        last = part.contract if isinstance(part, FeedForward | GatedFeedForward) else last
        if isinstance(last, Linear):
            last.weight /= num_branches**0.5
