"""Multi-head self-attention over a memory that is written, in place of keys and a softmax.

    q_t, k_t, v_t  = x_t W_q, x_t W_k, x_t W_v           of each head; q and k divided by their norm
    log a_t        = log sigmoid(x_t w_a + c)            decay: of the item, or of the head alone
    b_t            = sigmoid(x_t w_b)                    strength of a write (DeltaMemory)
    o_t, S_t       of regard.attention.memory.written
    out_t          = [RMSNorm(o_t) of each head] W_o

An item reads itself and the items before it. At first, head h of a memory keeps 1 - 2^(-5 - h) of S
per item: 97 % in the first head. There is no convolution of neighboring items before the maps and
no gate of the output, which some models add.

Source: sun2023 (retention), yang2024a and yang2025a (delta rule).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from regard.attention.axes import check_integer, widen
from regard.attention.masks import Causal, Mask
from regard.attention.memory import DeltaMemory, WrittenMemory
from regard.attention.scores import InnerProduct
from regard.layers import forms
from regard.layers.linear import Linear, fused_linear
from regard.layers.norms import RMSNorm
from regard.layers.read import Role

Decay = Literal["item", "head", "none"]
Items = Float[Tensor, "batch time model"]
Vectors = Float[Tensor, "batch head time _"]
_MIN_NORM = 1e-12
"""Queries and keys of a smaller norm are divided by this one."""


class WrittenRead(nn.Module):
    """Write to a memory and read it, item by item; observers (regard.look.hooks) find it."""

    def __init__(self, role: Role | None = None):
        super().__init__()
        self.role = role
        self.keeps_writes = False
        """True while it is recorded: memories keep their pairs, for implied weights."""

    def forward(
        self,
        query: Vectors,
        keys: Vectors,
        values: Vectors,
        memory: WrittenMemory,
        *,
        log_decay: Tensor | None,
        strength: Tensor | None,
    ) -> tuple[Vectors, WrittenMemory]:
        return memory.step(query, keys, values, log_decay=log_decay, strength=strength)


class WrittenAttention(nn.Module):
    """Causal self-attention with l heads, each of which writes a memory of its own and reads it.

    memory: FadingMemory or DeltaMemory.
    decay:  item: a_t of each item; head: a number for each head, learned; none: a = 1.
    head_dim, head_value_dim: sizes of keys, and of values; defaults: query_dim / l rounded up, and
            head_dim.
    Parameters: query, key and value, decay (l, query_dim), decay_logit (l), strength (l,
            query_dim), norm (head_value_dim) and output.
    """

    def __init__(
        self,
        query_dim: int,
        num_heads: int,
        *,
        memory: type[WrittenMemory] = DeltaMemory,
        decay: Decay = "item",
        head_dim: int | None = None,
        head_value_dim: int | None = None,
        bias: bool = True,
        norm_eps: float = 1e-5,
        role: Role | None = None,
    ):
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        if decay not in ("item", "head", "none"):
            raise ValueError(f"decay must be item, head or none, got {decay!r}")
        head_dim = -(-query_dim // num_heads) if head_dim is None else head_dim
        value_dim = head_dim if head_value_dim is None else head_value_dim
        self.num_heads, self.memory_class = num_heads, memory
        self.query = Linear(query_dim, num_heads * head_dim, bias=bias)
        self.key = Linear(query_dim, num_heads * head_dim, bias=bias)
        self.value = Linear(query_dim, num_heads * value_dim, bias=bias)
        self.decay = Linear(query_dim, num_heads, bias=False) if decay == "item" else None
        logits = (2.0 ** (5 + torch.arange(num_heads)) - 1).log()
        self.decay_logit = None if decay == "none" else nn.Parameter(logits)
        self.strength = Linear(query_dim, num_heads, bias=bias) if memory is DeltaMemory else None
        self.read = WrittenRead(role)
        self.norm = RMSNorm(value_dim, eps=norm_eps)
        self.output = Linear(num_heads * value_dim, query_dim, bias=bias)

    def forward(self, items: Items, *, mask: Mask | None = None) -> Items:
        """Return the output of every item. Raises: ValueError for a mask that is not causal()."""
        if mask is not None and type(mask) is not Causal:
            raise ValueError(f"mask of a WrittenAttention must be causal(), got {mask!r}")
        return self.step(items, None)[0]

    def step(self, items: Items, memory: WrittenMemory | None) -> tuple[Items, WrittenMemory]:
        """Return the output of more items, and the memory with their pairs; None: an empty one."""
        projected = fused_linear(items, self.query, self.key, self.value)
        query, keys, values = (x.unflatten(-1, (self.num_heads, -1)) for x in projected)
        query, keys, values = (x.transpose(1, 2) for x in (query, keys, values))
        query, keys = (normalize(widen(x), dim=-1, eps=_MIN_NORM) for x in (query, keys))
        log_decay, strength = None, None
        if self.decay_logit is not None:
            logits = self.decay_logit.unsqueeze(-1)
            if self.decay is not None:
                logits = logits + self.decay(items).mT  # (batch, head, time)
            log_decay = logsigmoid(logits)
        if self.strength is not None:
            strength = self.strength(items).mT.sigmoid()
        if memory is None:
            memory = self.memory_class.empty(
                keys.shape[:2],
                key_dim=keys.shape[-1],
                value_dim=values.shape[-1],
                dtype=keys.dtype,
                device=keys.device,
                keeps_writes=self.read.keeps_writes,
            )
        out, memory = self.read(query, keys, values, memory, log_decay=log_decay, strength=strength)
        return self.output(self.norm(out).transpose(1, 2).flatten(2)), memory

    def form(self) -> forms.AttentionForm:
        if (self.memory_class is DeltaMemory) != (self.strength is not None):
            kind = self.memory_class.__name__
            raise forms.NoFormError(self, f"has a strength that misfits a {kind}")
        projections = self.query, self.key, self.value, self.output
        query, key, value, output = (forms.form_of(x, forms.LinearForm) for x in projections)
        weight, heads, decay, strength = query.weight, self.num_heads, None, None
        if self.decay_logit is not None:
            decay = forms.LinearForm(weight.new_zeros(heads, weight.shape[1]), self.decay_logit)
            if self.decay is not None:
                own = forms.form_of(self.decay, forms.LinearForm)
                decay = forms.LinearForm(own.weight, self.decay_logit)
        if self.strength is not None:
            strength = forms.form_of(self.strength, forms.LinearForm)
        written = forms.WrittenForm(forms.form_of(self.norm, forms.NormForm), decay, strength)
        size, read = len(weight) // heads, forms.ReadForm(InnerProduct(1.0), 1, None)
        unit = forms.NormForm(size, None, None, _MIN_NORM**2, is_rms=True, is_l2=True)
        parts = query, key, value, output, heads, heads, read, None, unit, unit
        return forms.AttentionForm(*parts, written=written)
