"""Pooling: one vector (batch, dim) from items (batch, time, dim), of which row b has lengths[b].

    attention   [head_1, ..., head_l] W_o      head_h = attend(q_h, (X W_k^h, X W_v^h)), q_h learned
    mean        (x_1 + ... + x_T) / T
    last        x_T                            [h_T; g_1] of an encoder of two directions
    class token x_0                            the encoded state of a learned item before the others
                [x_0; (x_1 + ... + x_T) / T]   and the mean of the others, as in DINOv2
                [x_0; x_1]                     and the state of a second learned item, as in DeiT

The last state of a recurrent encoder has read all items: its forward state at the last item, h_T,
and its backward state at the first, g_1, are `h_n` of the top layer of torch.nn.GRU. Each pool is a
sum over the items, whose terms `decompose` returns.

Source: lectures, A.2 (one query reads a memory), E.1 (sequence to vector, x[1..t] to y[T]: last);
ilse2018; lee2019, section 3.2 (pooling by multi-head attention); devlin2019, section 3, and
dosovitskiy2021, section 3.1 (class token).
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.choices import Choice
from regard.attention.masks import Padded, Related
from regard.compat.torch import run_pre_hooks
from regard.layers.multihead import MultiHead
from regard.layers.read import Role


class PooledTerms(NamedTuple):
    """Terms of a pooled vector, for each part of the pool and each item."""

    parts: tuple[str, ...]
    """Name of each part, such as a head."""
    terms: Float[Tensor, "batch part time dim"]
    """Zeros at padding."""
    bias: Float[Tensor, " dim"]


class AttentionPooling(nn.Module):
    """Multi-head attention of one learned query over items (batch, time, dim), giving (batch, dim).

    choice: how each head weights the items; softmax if not given.
    A row without items gives the bias of the output projection.
    """

    def __init__(
        self, dim: int, *, num_heads: int, choice: Choice | None = None, kernel: str = "auto"
    ):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * dim**-0.5)
        role = Role("pooling")
        self.attention = MultiHead(dim, num_heads, choice=choice, kernel=kernel, role=role)

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        query = self.query.expand(items.items.shape[0], 1, -1)
        return self.attention(query, self.attention.memory(items.items, items.mask)).squeeze(1)

    def decompose(self, items: Padded) -> PooledTerms:
        """Return the terms of each head: a_hi W_o^h v_hi, and the bias of W_o."""
        query = self.query.expand(items.items.shape[0], 1, -1)
        memory = self.attention.memory(items.items, items.mask)
        terms = self.attention.decompose(query, memory).squeeze(2)
        count = self.attention.num_heads
        names = tuple(f"head {head + 1}" for head in range(count)) if count > 1 else ("pooling",)
        bias = getattr(self.attention.output, "bias", None)
        return PooledTerms(names, terms, torch.zeros_like(terms[0, 0, 0]) if bias is None else bias)


class MeanPooling(nn.Module):
    """Mean pooling: (batch, time, dim) -> (batch, dim); zeros for a row without items."""

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        if items.mask is None:
            return items.items.mean(1)
        states, lengths = items.items, items.lengths[:, None]
        is_padding = torch.arange(states.shape[1], device=states.device) >= lengths
        return states.masked_fill(is_padding[..., None], 0).sum(1) / lengths.clamp(min=1)

    def decompose(self, items: Padded) -> PooledTerms:
        states, lengths = items.items, items.lengths[:, None]
        is_item = torch.arange(states.shape[1], device=states.device) < lengths
        terms = states / lengths.clamp(min=1)[..., None]
        return _one_part("mean", torch.where(is_item[..., None], terms, 0))


class LastItem(nn.Module):
    """The last of the items (batch, time, dim), giving (batch, dim); zeros for a row without items.

    directions: 2 if an item is a forward and a backward state, each dim / 2 wide: the result is the
                forward state of the last item and the backward state of the first.
    """

    def __init__(self, *, directions: Literal[1, 2] = 1):
        super().__init__()
        self.directions = directions

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        states, lengths = items
        rows = torch.arange(lengths.shape[0], device=states.device)
        last = states[rows, (lengths - 1).clamp(min=0)]
        if self.directions == 2:
            size = states.shape[-1] // 2
            last = torch.cat((last[:, :size], states[:, 0, size:]), -1)
        return last if items.mask is None else last.masked_fill(lengths[:, None] < 1, 0)

    def decompose(self, items: Padded) -> PooledTerms:
        """Return the last item, and for two directions the first, as terms."""
        vector, terms = self(items), torch.zeros_like(items.items)
        rows = torch.arange(len(vector), device=vector.device)
        last = (items.lengths - 1).clamp(min=0)
        size = vector.shape[-1] // self.directions
        terms[rows, last, :size] = vector[:, :size]
        terms[rows, 0 if self.directions == 2 else last, size:] = vector[:, size:]
        return _one_part("last state", terms)


class FirstItem(nn.Module):
    """The first of the items (batch, time, dim), giving (batch, dim)."""

    def forward(self, items: Padded) -> Float[Tensor, "batch dim"]:
        return items.items[:, 0]

    def decompose(self, items: Padded) -> PooledTerms:
        terms = torch.zeros_like(items.items)
        terms[:, 0] = items.items[:, 0]
        return _one_part("first item", terms)


class ClassToken(FirstItem):
    """A learned item before the others ([class], [CLS]), whose encoded state is the vector.

    dim: size of the items that the core reads, to which `prepend` adds `count`.
    distillation: a second learned item after it, as in DeiT. (touvron2021a)
    also: another vector after that of the class token: the state of the second learned item, or
          the mean of the items after the learned ones. (oquab2023)
    """

    def __init__(
        self,
        dim: int,
        *,
        distillation: bool = False,
        also: Literal["none", "distillation", "mean"] = "none",
    ):
        super().__init__()
        self.token = nn.Parameter(torch.randn(dim) * 0.02)
        self.distillation = nn.Parameter(torch.randn(dim) * 0.02) if distillation else None
        self.also = also

    @property
    def count(self) -> int:
        """Number of learned items."""
        return 1 if self.distillation is None else 2

    @property
    def num_vectors(self) -> int:
        """Number of vectors of the size of an item that make up a vector of the pool."""
        return 1 if self.also == "none" else 2

    def prepend(self, items: Padded) -> Padded:
        """Return the items of each row after the learned ones: (batch, count + time, dim)."""
        run_pre_hooks(self, items)
        learned = (self.token,) if self.distillation is None else (self.token, self.distillation)
        own = torch.stack(learned).to(items.items.dtype).expand(items.items.shape[0], -1, -1)
        both = torch.cat((own, items.items), 1)
        items = items._replace(items=both, lengths=items.lengths + self.count)
        if items.relations is None:
            return items
        # Learned items read all others, and all others read them.
        value = items.relations.dtype == torch.bool
        relations = nn.functional.pad(items.relations, (self.count, 0) * 2, value=value)
        return Related.of(items.items, items.lengths, relations)

    def forward(self, items: Padded) -> Float[Tensor, "batch size"]:
        if self.also == "none":
            return super().forward(items)
        is_mean = self.also == "mean"
        second = MeanPooling()(self._others(items)) if is_mean else items.items[:, 1]
        return torch.cat((items.items[:, 0], second), -1)

    def decompose(self, items: Padded) -> PooledTerms:
        first = super().decompose(items)
        if self.also == "none":
            return first
        if self.also == "mean":
            rest = MeanPooling().decompose(self._others(items)).terms
            second = nn.functional.pad(rest, (0, 0, self.count, 0))
        else:
            second = torch.zeros_like(first.terms)
            second[:, 0, 1] = items.items[:, 1]
        return _one_part("first item", torch.cat((first.terms, second), -1)[:, 0])

    def _others(self, items: Padded) -> Padded:
        """Return the items after the learned ones."""
        count = self.count
        return items._replace(items=items.items[:, count:], lengths=items.lengths - count)


def _one_part(name: str, terms: Tensor) -> PooledTerms:
    return PooledTerms((name,), terms[:, None], torch.zeros_like(terms[0, 0]))
