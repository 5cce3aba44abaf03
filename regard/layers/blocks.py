"""The blocks of a Transformer: multi-head reads and a feed-forward network, each inside an add & norm.

    encoder block   u = add&norm(x, self-attention);  u = add&norm(u, FFN)
    decoder block   u = add&norm(x, masked self-attention);  u = add&norm(u, attention to the encoder's output);
                    u = add&norm(u, FFN)

    induced block   h = points + attention of the points to x;  u = add&norm(x, attention to h);  u = add&norm(u, FFN)

The induced block is an encoder block for large sets: n items read one another by way of m learned points, at a cost of
n m and not n^2.

Blocks take their parts ready made, so that any part can be swapped without a flag here.

Source: lectures, D; vaswani2017, section 3.1; induced lee2019, section 3.1 (whose h goes through a feed-forward, too).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import patterns
from regard.attention.masks import Mask, causal
from regard.attention.memory import Memory, Store
from regard.attention.sliding import SlidingMemory
from regard.layers.feedforward import FeedForward
from regard.layers.forms import AddNormForm, AttentionForm, BlockForm, FeedForwardForm, NoFormError, form_of
from regard.layers.multihead import MultiHead
from regard.layers.residual import Residual


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward; in and out (batch, source, model)."""

    def __init__(self, attention: MultiHead, feedforward: FeedForward, residuals: tuple[Residual, Residual]):
        super().__init__()
        self.attention = attention
        self.feedforward = feedforward
        self.add_attention, self.add_feedforward = residuals

    def forward(
        self, items: Float[Tensor, "batch source model"], mask: Mask | None
    ) -> Float[Tensor, "batch source model"]:
        """Every item reads all the items that the mask lets it see."""
        items = self.add_attention(items, lambda x: self.attention.read_itself(x, seen=mask))
        return self.add_feedforward(items, self.feedforward)

    def form(self) -> BlockForm:
        """What it is, as data."""
        return _form(self)


class InducedBlock(nn.Module):
    """Points read the items, and the items read them, then feed-forward; in and out (batch, source, model)."""

    def __init__(
        self,
        num_points: int,
        gather: MultiHead,
        attention: MultiHead,
        feedforward: FeedForward,
        residuals: tuple[Residual, Residual],
    ):
        super().__init__()
        dim = gather.query.in_features
        self.points = nn.Parameter(torch.randn(num_points, dim) * dim**-0.5)
        self.gather = gather
        self.attention = attention
        self.feedforward = feedforward
        self.add_attention, self.add_feedforward = residuals

    def forward(
        self, items: Float[Tensor, "batch source model"], mask: Mask | None
    ) -> Float[Tensor, "batch source model"]:
        """Every item reads what the points made of all the items that the mask lets them see."""
        items = self.add_attention(items, lambda x: self.attention(x, self.attention.memory(self._summary(x, mask))))
        return self.add_feedforward(items, self.feedforward)

    def _summary(self, items: Tensor, mask: Mask | None) -> Tensor:
        points = self.points.expand(len(items), -1, -1)
        return points + self.gather(points, self.gather.memory(items, mask))


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to a source, then feed-forward; in and out (batch, target, model).

    cross: None where there is no source to read, as in a language model. (radford2018)
    window: how many targets each sees, the last ones up to itself; all if not given.
    """

    def __init__(
        self,
        attention: MultiHead,
        cross: MultiHead | None,
        feedforward: FeedForward,
        residuals: tuple[Residual, Residual, Residual],
        *,
        window: int | None = None,
    ):
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.add_attention, add_cross, self.add_feedforward = residuals
        self.add_cross = None if cross is None else add_cross
        self.window = window

    def forward(
        self, items: Float[Tensor, "batch target model"], source: Memory | None
    ) -> Float[Tensor, "batch target model"]:
        """All targets at once: each reads those up to itself, then the source, if there is one."""
        mask = causal() if self.window is None else patterns.window(self.window)
        items = self.add_attention(items, lambda x: self.attention.read_itself(x, mask=mask))
        return self._rest(items, source)

    def answer(
        self, items: Float[Tensor, "batch query model"], source: Memory | None
    ) -> Float[Tensor, "batch query model"]:
        """A set of queries: each reads all of them, then the source."""
        items = self.add_attention(items, self.attention.read_itself)
        return self._rest(items, source)

    def step(
        self, item: Float[Tensor, "batch 1 model"], past: Store | None, source: Memory | None
    ) -> tuple[Float[Tensor, "batch 1 model"], Store]:
        """One target more: it reads the past and itself, then the source. Returns the past that now has it."""

        def read_own_past(x: Tensor) -> Tensor:
            nonlocal past
            past = self._first(x) if past is None else self.attention.extend(past, x)
            return self.attention(x, past)

        item = self.add_attention(item, read_own_past)
        assert past is not None
        return self._rest(item, source), past

    def form(self) -> BlockForm:
        """What it is, as data, for targets in order.

        Raises: NoFormError if it has one of `cross` and `add_cross` alone.
        """
        if (self.cross is None) != (self.add_cross is None):
            raise NoFormError(self, "has only one of cross and add_cross")
        cross = None if self.cross is None else form_of(self.cross, AttentionForm)
        add_cross = None if self.add_cross is None else form_of(self.add_cross, AddNormForm)
        return _form(self, cross=cross, add_cross=add_cross, window=self.window)

    def _first(self, item: Tensor) -> Store:
        """The past that holds the first target."""
        past = self.attention.memory(item)
        return past if self.window is None else SlidingMemory.of(past, window=self.window)

    def _rest(self, items: Tensor, source: Memory | None) -> Tensor:
        cross = self.cross
        if self.add_cross is not None and cross is not None and source is not None:
            items = self.add_cross(items, lambda x: cross(x, source))
        return self.add_feedforward(items, self.feedforward)


def _form(
    block: EncoderBlock | DecoderBlock,
    *,
    cross: AttentionForm | None = None,
    add_cross: AddNormForm | None = None,
    window: int | None = None,
) -> BlockForm:
    return BlockForm(
        attention=form_of(block.attention, AttentionForm),
        add_attention=form_of(block.add_attention, AddNormForm),
        cross=cross,
        add_cross=add_cross,
        feedforward=form_of(block.feedforward, FeedForwardForm),
        add_feedforward=form_of(block.add_feedforward, AddNormForm),
        window=window,
    )
