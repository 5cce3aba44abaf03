"""Forms: descriptions of modules as data, from which an engine computes what the modules compute.

    Linear       LinearForm(W, b)                    x W^T + b
    LayerNorm    NormForm(scale, shift, eps)         scale (x - mean) / sqrt(variance + eps) + shift
    Embedding    TableForm(E, scale, W)              scale E[id] W^T
    ...          up to the whole model; `Score.form` does the same for scores

A form holds everything that determines what its module computes in evaluation: sizes, settings and
the weights, which it shares with the module. `module.form()` is valid only for the exact class that
defines it: regard.engines.lowering checks the class of every module, and that it has no hooks.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.attention.biases import DistanceBias
from regard.attention.scores import Form
from regard.layers.linear import Linear
from regard.layers.norms import L2Norm, RMSNorm

FormT = TypeVar("FormT")


class NoFormError(ValueError):
    """Error for a module without a form; the reason completes "the module ..."."""

    def __init__(self, module: nn.Module, reason: str):
        super().__init__(reason)
        self.module = module


@dataclass(frozen=True, eq=False)
class LinearForm:
    """x W^T + b."""

    weight: Tensor
    """(out, in)."""
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class NormForm:
    """scale (x - mean) / sqrt(variance + eps) + shift; is_rms: scale x / sqrt(mean(x^2) + eps).

    is_l2: scale x / sqrt(sum(x^2) + eps), where is_rms is true as well.
    """

    size: int
    scale: Tensor | None
    shift: Tensor | None
    eps: float
    is_rms: bool = False
    is_l2: bool = False


@dataclass(frozen=True, eq=False)
class TableForm:
    """scale E[id] W^T, and in the output layer h W E^T."""

    weight: Tensor
    """(ids, dim): E."""
    scale: float
    projection: Tensor | None = None
    """(width, dim): W; None: the identity."""

    @property
    def matrix(self) -> Tensor:
        """E W^T (ids, width)."""
        return self.weight if self.projection is None else self.weight @ self.projection.T


@dataclass(frozen=True, eq=False)
class FeedForwardForm:
    """contract(activation(expand(x))); gated: contract(activation(gate(x)) * expand(x))."""

    expand: LinearForm
    contract: LinearForm
    activation: str
    gate: LinearForm | None = None


@dataclass(frozen=True, eq=False)
class ReadForm:
    """choice(score + bias) applied to the values."""

    score: Form | None
    """Score of queries and keys as they are; None if the score projects them first."""
    beta: float | Tensor | None
    """Inverse temperature of the softmax, 1 where it is learned; None for another choice."""
    bias: DistanceBias | None
    log_beta: Tensor | None = None
    """Logarithm of a learned inverse temperature; None: it is not learned."""
    sink: Tensor | float | None = None
    """Score without a key, of all heads or of each; None: there is none."""
    is_sigmoid: bool = False
    """True: sigmoids of beta times the scores, minus the logarithm of the number of keys."""


@dataclass(frozen=True, eq=False)
class RotaryForm:
    """Rotary positional encoding: at position i, pair j of each head is rotated by i rates[j]."""

    rates: Tensor
    """Angles per position, in float64; the first 2 len(rates) numbers of each head are rotated."""
    interleaved: bool
    """Pairs: numbers 2j and 2j + 1 if True, else j and j + len(rates)."""
    factor: float = 1.0
    """By which rotated numbers are multiplied."""


@dataclass(frozen=True, eq=False)
class WrittenForm:
    """norm(S^T q) of each head, S <- a S + k u^T with a = sigmoid(decay(x)).

    u = v, or sigmoid(strength(x)) (v - a S^T k).
    """

    norm: NormForm
    decay: LinearForm | None
    """To a number for each head; None: a = 1."""
    strength: LinearForm | None
    """To a number for each head; None: values are added, not corrected."""


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """output([read(rotate(norm(query(x))), rotate(norm(key(y))), value(y)) of each head]).

    The heads are multiplied by sigmoid(gate(x)), if there is a gate. A memory that is `written` is
    read in place of the keys and values.
    """

    query: LinearForm
    key: LinearForm
    value: LinearForm
    output: LinearForm
    num_heads: int
    key_heads: int
    read: ReadForm
    rotary: RotaryForm | None = None
    query_norm: NormForm | None = None
    """Norm of the queries of a head; None: the identity."""
    key_norm: NormForm | None = None
    gate: LinearForm | None = None
    """To a number for each head, or for each number of each head; None: there are no gates."""
    register_keys: Tensor | None = None
    """(key_heads, registers, size): keys that each query reads, too, which are not rotated."""
    register_values: Tensor | None = None
    written: WrittenForm | None = None
    """Memory that is written; None: keys and values are read."""


@dataclass(frozen=True, eq=False)
class AddNormForm:
    """pre: x + f(norm(x)); post: norm(x + f(x))."""

    order: str
    norm: NormForm


@dataclass(frozen=True, eq=False)
class BlockForm:
    """Encoder block, or decoder block (causal, with or without cross-attention)."""

    attention: AttentionForm
    add_attention: AddNormForm
    cross: AttentionForm | None
    add_cross: AddNormForm | None
    feedforward: FeedForwardForm
    add_feedforward: AddNormForm
    window: int | None
    """N: item i attends to items i - N < j <= i (decoder), |i - j| <= N // 2; None: no window."""


@dataclass(frozen=True, eq=False)
class SinusoidsForm:
    """Sinusoidal positional encoding of this size."""

    dim: int


@dataclass(frozen=True, eq=False)
class LearnedForm:
    """Learned positional encoding: row i is added to item i."""

    weight: Tensor

    @property
    def dim(self) -> int:
        return self.weight.shape[1]


PositionsForm = SinusoidsForm | LearnedForm | RotaryForm
"""Forms of positional encodings that change items, or queries and keys."""


@dataclass(frozen=True, eq=False)
class TransformerForm:
    """Encoder and decoder stacks with positions, and norms before and after; None where absent."""

    encoder_positions: SinusoidsForm | LearnedForm | None
    encoder_embedding_norm: NormForm | None
    encoder: tuple[BlockForm, ...]
    encoder_norm: NormForm | None
    decoder_positions: SinusoidsForm | LearnedForm | None
    decoder_embedding_norm: NormForm | None
    decoder: tuple[BlockForm, ...]
    decoder_norm: NormForm | None


@dataclass(frozen=True, eq=False)
class WriterForm:
    """Autoregressive output layer: embedding of the previous token, and scores of the next."""

    inputs: TableForm
    """Embedding of the previous output token."""
    output: TableForm
    bias: Tensor | None = None
    """(vocab,), added to the scores."""


@dataclass(frozen=True, eq=False)
class TextForm:
    """Autoregressive model: encoder-decoder, or decoder-only."""

    source: TableForm | None
    """Embedding of the source; None for a language model."""
    core: TransformerForm
    writer: WriterForm

    @property
    def max_positions(self) -> int | None:
        """Number of learned positions; None if the length is not limited."""
        tables = self.core.encoder_positions, self.core.decoder_positions
        return min((len(x.weight) for x in tables if isinstance(x, LearnedForm)), default=None)


def form_of(module: Any, kind: type[FormT], *arguments: Any) -> FormT:
    """Return the form of a module, which must be of this kind, else NoFormError is raised.

    arguments: those of its method `form`.
    """
    make = _MAKERS.get(type(module)) or getattr(type(module), "form", None)
    if make is None:
        raise NoFormError(module, f"is a {type(module).__name__}, which has no form")
    form = make(module, *arguments)
    if type(form) is not kind:
        name = type(module).__name__
        raise NoFormError(module, f"is a {name} where a {kind.__name__} is expected")
    return form


def blocks_of(blocks: nn.ModuleList) -> tuple[BlockForm, ...]:
    """Return the forms of the blocks of a stack, in order."""
    return tuple(form_of(block, BlockForm) for block in blocks)


def _linear(module: Any) -> LinearForm:
    return LinearForm(module.weight, module.bias)


def _norm(module: Any) -> NormForm:
    if len(module.normalized_shape) != 1:
        axes = len(module.normalized_shape)
        raise NoFormError(module, f"normalizes over {axes} axes, not over the last alone")
    size, is_rms = module.normalized_shape[0], isinstance(module, nn.RMSNorm)
    eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    shift = None if is_rms else module.bias
    return NormForm(size, module.weight, shift, eps, is_rms, isinstance(module, L2Norm))


_MAKERS: dict[type, Any] = {
    nn.LayerNorm: _norm,
    nn.RMSNorm: _norm,
    RMSNorm: _norm,
    L2Norm: _norm,
    nn.Linear: _linear,
    Linear: _linear,
}
