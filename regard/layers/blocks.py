"""Transformer blocks: multi-head attention and a feed-forward network, each inside an add & norm.

    encoder block   u = add&norm(x, self-attention);  u = add&norm(u, FFN)
    decoder block   u = add&norm(x, masked self-attention)
                    u = add&norm(u, attention to the encoder's output);  u = add&norm(u, FFN)
    induced block   h = points + attention of the points to x
                    u = add&norm(x, attention to h);  u = add&norm(u, FFN)

The induced block is for large sets: n items attend to one another through m learned inducing
points, at a cost of n m instead of n^2.

Source: lectures, D.7, D.9; vaswani2017, section 3.1; induced lee2019, section 3.1 (where h has a
        feed-forward as well).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.biases import Bias
from regard.attention.masks import Mask, causal, intersect, window
from regard.attention.memory import KeyValueCache, Memory, SlidingMemory, WrittenMemory
from regard.layers.forms import (
    AddNormForm,
    AttentionForm,
    BlockForm,
    FeedForwardForm,
    NoFormError,
    form_of,
)
from regard.layers.multihead import MultiHead
from regard.layers.residual import Residual
from regard.layers.written import WrittenAttention

Items = Float[Tensor, "batch time model"]


class EncoderBlock(nn.Module):
    """Encoder block: self-attention, then feed-forward; input and output (batch, source, model).

    window: item i reads items |i - j| <= window // 2; None: all.
    """

    def __init__(
        self,
        attention: MultiHead,
        feedforward: nn.Module,
        residuals: tuple[Residual, Residual],
        *,
        window: int | None = None,
    ):
        super().__init__()
        self.attention, self.feedforward = attention, feedforward
        self.add_attention, self.add_feedforward = residuals
        self.window = window

    def mask(self, padding: Mask | None = None) -> Mask | None:
        """Return the mask of padding and window, which blocks of one window can share."""
        if self.window is None:
            return padding
        ahead = self.window // 2
        return intersect(padding, window(2 * ahead + 1, ahead))

    def forward(self, items: Items, mask: Mask | None, bias: Bias | None = None) -> Items:
        """Return the block's output.

        mask: of the padding, or `mask(padding)`, built once. bias: of the relations of the items.
        """
        if mask is None or mask.band is None:
            mask = self.mask(mask)
        options: dict[str, Any] = {} if bias is None else {"bias": bias}
        items = self.add_attention(items, partial(self.attention, memory_mask=mask, **options))
        return self.add_feedforward(items, self.feedforward)

    def form(self) -> BlockForm:
        return _form(self, window=self.window)


class InducedBlock(nn.Module):
    """Induced encoder block: points read the items, items read the points, feed-forward."""

    def __init__(
        self,
        num_points: int,
        gather: MultiHead,
        attention: MultiHead,
        feedforward: nn.Module,
        residuals: tuple[Residual, Residual],
    ):
        super().__init__()
        dim = gather.query.in_features
        self.points = nn.Parameter(torch.randn(num_points, dim) * dim**-0.5)
        self.gather, self.attention, self.feedforward = gather, attention, feedforward
        self.add_attention, self.add_feedforward = residuals

    def forward(self, items: Items, mask: Mask | None) -> Items:
        points = self.points.expand(items.shape[0], -1, -1)
        items = self.add_attention(
            items,
            lambda x: self.attention(x, points + self.gather(points, x, memory_mask=mask)),
        )
        return self.add_feedforward(items, self.feedforward)


class DecoderBlock(nn.Module):
    """Decoder block: masked self-attention, cross-attention, then feed-forward.

    attention: MultiHead, or WrittenAttention, whose past is a memory of a fixed size.
    cross: cross-attention; None without a source, as in a language model. (radford2018)
    window: number of last targets that each target attends to, itself included; None: all.
    """

    def __init__(
        self,
        attention: MultiHead | WrittenAttention,
        cross: MultiHead | None,
        feedforward: nn.Module,
        residuals: tuple[Residual, Residual, Residual],
        *,
        window: int | None = None,
    ):
        super().__init__()
        self.attention, self.cross, self.feedforward = attention, cross, feedforward
        self.add_attention, add_cross, self.add_feedforward = residuals
        self.add_cross = None if cross is None else add_cross
        self.window = window

    def mask(self) -> Mask:
        """Return the mask of self-attention for all targets; blocks of one stack can share it."""
        return causal() if self.window is None else window(self.window)

    def forward(self, items: Items, source: Memory | None, mask: Mask | None = None) -> Items:
        """Return the block's output for all targets (teacher forcing); mask: default `mask()`."""
        mask = self.mask() if mask is None else mask
        items = self.add_attention(items, partial(self.attention, mask=mask))
        return self._cross_and_feedforward(items, source)

    def decode_set(self, items: Items, source: Memory | None) -> Items:
        """Return the block's output for a set of queries: self-attention without a mask."""
        items = self.add_attention(items, self.attention)
        return self._cross_and_feedforward(items, source)

    def step(
        self,
        items: Items,
        past: KeyValueCache | WrittenMemory | None,
        source: Memory | None,
        mask: Mask | None = None,
    ) -> tuple[Items, KeyValueCache | WrittenMemory]:
        """Return the block's output for more targets, and the key-value cache extended by them.

        mask: of self-attention; several targets need one.
        """

        def attend_to_past(x: Tensor) -> Tensor:
            nonlocal past
            if isinstance(self.attention, WrittenAttention):
                assert not isinstance(past, KeyValueCache)
                out, past = self.attention.step(x, past)
                return out
            if past is not None:
                past = _method(self.attention, "extend")(past, x)
            else:
                past = _method(self.attention, "memory")(x)
                if self.window is not None:
                    past = SlidingMemory.of(past, window=self.window)
            return self.attention(x, past, mask=mask)

        items = self.add_attention(items, attend_to_past)
        assert past is not None
        return self._cross_and_feedforward(items, source), past

    def read_source(self, items: Items, mask: Mask | None) -> Memory:
        """Return the memory of the encoder's output, for all targets."""
        return _method(self.cross, "memory")(items, mask)

    def form(self) -> BlockForm:
        if (self.cross is None) != (self.add_cross is None):
            raise NoFormError(self, "has only one of cross and add_cross")
        cross = None if self.cross is None else form_of(self.cross, AttentionForm)
        add_cross = None if self.add_cross is None else form_of(self.add_cross, AddNormForm)
        return _form(self, cross=cross, add_cross=add_cross, window=self.window)

    def _cross_and_feedforward(self, items: Tensor, source: Memory | None) -> Tensor:
        if self.add_cross is not None and self.cross is not None and source is not None:
            items = self.add_cross(items, partial(self.cross, memory=source))
        return self.add_feedforward(items, self.feedforward)


def _method(attention: nn.Module | None, name: str) -> Callable[..., Any]:
    method = getattr(attention, name, None)
    if method is None:
        kind = type(attention).__name__
        raise TypeError(f"attention of a decoder must have `{name}`, as MultiHead has, got {kind}")
    return method


def _form(
    block: EncoderBlock | DecoderBlock,
    *,
    cross: AttentionForm | None = None,
    add_cross: AddNormForm | None = None,
    window: int | None = None,
) -> BlockForm:
    attention, feedforward = block.attention, block.feedforward
    return BlockForm(
        form_of(attention, AttentionForm),
        form_of(block.add_attention, AddNormForm),
        cross,
        add_cross,
        form_of(feedforward, FeedForwardForm),
        form_of(block.add_feedforward, AddNormForm),
        window,
    )
