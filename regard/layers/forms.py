"""Forms: what modules are, as data, so that something else may compute what they compute.

    Linear       LinearForm(W, b)                    x W^T + b
    LayerNorm    NormForm(scale, shift, eps)         scale (x - mean) / sqrt(variance + eps) + shift
    Embedding    TableForm(E, scale)                 scale E[id]
    ...          and so on up to the whole model, as `Score.form` does for scores

A form holds all that decides what its module computes in evaluation: sizes, settings and the weights themselves, which
it shares with the module. `module.form()` trusts its own class alone. Whoever compiles forms first makes sure
(regard.engines.lowering) that every module is exactly of a class that is known here, and nothing was hung on to it.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.attention.positional import ByDistance
from regard.attention.scores import Form

FormT = TypeVar("FormT")


class NoFormError(ValueError):
    """This module has no form: the reason, as the end of a sentence that begins with its name."""

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
    """scale (x - mean) / sqrt(variance + eps) + shift, over the last axis."""

    size: int
    scale: Tensor | None
    shift: Tensor | None
    eps: float


@dataclass(frozen=True, eq=False)
class TableForm:
    """scale E[id]."""

    weight: Tensor
    """(ids, dim)."""
    scale: float


@dataclass(frozen=True, eq=False)
class FeedForwardForm:
    """contract(activation(expand(x)))."""

    expand: LinearForm
    contract: LinearForm
    activation: str
    """As `FeedForward` names it."""


@dataclass(frozen=True, eq=False)
class ReadForm:
    """choose(score + bias) of the values."""

    score: Form | None
    """Of vectors as they are given: a score that maps them first has none."""
    beta: float | Tensor | None
    """Inverse temperature of a softmax; None for another choice."""
    bias: ByDistance | None
    """A number for each head and distance, `bias.at`, added to the scores."""


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """output([read(query(x), key(y), value(y)) of each head])."""

    query: LinearForm
    key: LinearForm
    value: LinearForm
    output: LinearForm
    num_heads: int
    key_heads: int
    read: ReadForm


@dataclass(frozen=True, eq=False)
class AddNormForm:
    """pre: x + f(norm(x)); post: norm(x + f(x))."""

    order: str
    norm: NormForm


@dataclass(frozen=True, eq=False)
class BlockForm:
    """A block of an encoder, or of a decoder: causal, and with or without a source to read."""

    attention: AttentionForm
    add_attention: AddNormForm
    cross: AttentionForm | None
    add_cross: AddNormForm | None
    feedforward: FeedForwardForm
    add_feedforward: AddNormForm
    window: int | None
    """How many items each sees, the last ones; None: all."""


@dataclass(frozen=True, eq=False)
class SinusoidsForm:
    """The sines and cosines of this size are added."""

    dim: int


@dataclass(frozen=True, eq=False)
class LearnedForm:
    """Row i is added to item i; there are no items behind the last."""

    weight: Tensor


@dataclass(frozen=True, eq=False)
class TransformerForm:
    """Two stacks of blocks, positions before and a norm behind each; None where there is none."""

    positions: SinusoidsForm | LearnedForm | None
    encoder: tuple[BlockForm, ...]
    encoder_norm: NormForm | None
    decoder: tuple[BlockForm, ...]
    decoder_norm: NormForm | None


@dataclass(frozen=True, eq=False)
class WriterForm:
    """Tokens in order, each read by the next step."""

    inputs: TableForm
    """How it reads what it has written."""
    output: Tensor
    """(ids, dim): scores of the next token are h E^T."""


@dataclass(frozen=True, eq=False)
class TextForm:
    """A whole model that writes tokens in order."""

    source: TableForm | None
    """How a source is read; None for a language model, which reads none."""
    core: TransformerForm
    writes: WriterForm

    @property
    def most_places(self) -> int | None:
        """Learned positions that there are; None where any number of items has a position."""
        positions = self.core.positions
        return len(positions.weight) if isinstance(positions, LearnedForm) else None


def form_of(module: Any, kind: type[FormT], *about: Any) -> FormT:
    """The form of a part, which must be of this kind; about: what it does not know by itself.

    Raises: NoFormError if it has none, or another.
    """
    make = _OF_TORCH.get(type(module)) or getattr(type(module), "form", None)
    if make is None:
        raise NoFormError(module, f"is a {type(module).__name__}, which has no form")
    form = make(module, *about)
    if type(form) is not kind:
        raise NoFormError(module, f"is a {type(module).__name__} where a {kind.__name__} is wanted")
    return form


def blocks_of(blocks: nn.ModuleList) -> tuple[BlockForm, ...]:
    """The forms of the blocks of a stack, in order.

    Raises: NoFormError if a block stands in it twice: `children` tells it once.
    """
    if len(list(blocks.children())) != len(blocks):
        raise NoFormError(blocks, "holds a block twice")
    return tuple(form_of(block, BlockForm) for block in blocks.children())


def leaves(form: Any) -> list[Any]:
    """All that a form holds, the forms in it taken apart."""
    if is_dataclass(form):
        return [leaf for field in fields(form) for leaf in leaves(getattr(form, field.name))]
    if type(form) is tuple:
        return [len(form), *(leaf for part in form for leaf in leaves(part))]
    return [form]


def _linear(module: Any) -> LinearForm:
    return LinearForm(module.weight, module.bias)


def _norm(module: Any) -> NormForm:
    if len(module.normalized_shape) != 1:
        raise NoFormError(module, f"takes the mean over {len(module.normalized_shape)} axes, not over the last")
    return NormForm(module.normalized_shape[0], module.weight, module.bias, module.eps)


_OF_TORCH = {nn.LayerNorm: _norm, nn.Linear: _linear}
