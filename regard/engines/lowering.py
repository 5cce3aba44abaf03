"""From a model to its form, which an engine compiles, or the reason why there is none.

A form is trusted only where it must be true: every module of the model is exactly of a class that is known here, which
holds the functions that it was written with; it has the parameters, buffers and parts that its class has, no hooks, and
no functions of its own; its weights are plain finite float32 on the processor; every parameter is in the form, whose
sizes fit together. What is not known is refused, and torch runs it.

Source: lattner2004 (lowering).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from regard.attention.choices import Soft
from regard.attention.positional import Alibi, ByDistance, RelativeBias
from regard.attention.scores import Dot, InnerProduct, ScaledDot
from regard.engines.originals import Originals
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.forms import (
    AddNormForm,
    AttentionForm,
    BlockForm,
    LearnedForm,
    LinearForm,
    NoFormError,
    NormForm,
    TextForm,
    form_of,
    leaves,
)
from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.positions import Learned, Sinusoidal
from regard.layers.read import Read
from regard.layers.residual import Residual
from regard.models.cores.transformer import NoPositions, TransformerCore
from regard.models.language import LanguageModel
from regard.models.model import Model
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter

__all__ = [
    "GLOBAL_HOOKS",
    "HOOKS",
    "KINDS",
    "ORIGINALS",
    "adds_of",
    "attentions_of",
    "blocks_of_both",
    "irregular",
    "lowered",
    "norms_of",
    "refusal_by",
]


@dataclass(frozen=True)
class _Kind:
    """What a module of a class has; each may be missing."""

    weights: frozenset[str] = frozenset()
    """Parameters and buffers."""
    parts: frozenset[str] | None = frozenset()
    """None: any, as of a list."""


def _kind(weights: str = "", parts: str = "") -> _Kind:
    return _Kind(frozenset(weights.split()), frozenset(parts.split()))


KINDS: dict[type, _Kind] = {
    Model: _kind(parts="reads core writes"),
    LanguageModel: _kind(parts="reads core"),
    TokenReader: _kind(parts="table dropout"),
    TokenWriter: _kind(parts="inputs output_table"),
    nn.Embedding: _kind("weight"),
    TransformerCore: _kind(parts="positions encoder decoder encoder_norm decoder_norm"),
    Sinusoidal: _kind("_table"),
    Learned: _kind("weight"),
    NoPositions: _kind(),
    nn.ModuleList: _Kind(parts=None),
    EncoderBlock: _kind(parts="attention feedforward add_attention add_feedforward"),
    DecoderBlock: _kind(parts="attention cross feedforward add_attention add_cross add_feedforward"),
    Residual: _kind(parts="norm dropout"),
    Dropout: _kind(),
    nn.LayerNorm: _kind("weight bias"),
    nn.Identity: _kind(),
    FeedForward: _kind(parts="expand contract"),
    Linear: _kind("weight bias"),
    nn.Linear: _kind("weight bias"),
    MultiHead: _kind(parts="query key value output read"),
    Read: _kind(parts="score choose bias"),
    Dot: _kind(),
    ScaledDot: _kind(),
    Soft: _kind("log_beta"),
    Alibi: _kind("_eighths"),
    RelativeBias: _kind("table _bounds"),
}
ORIGINALS = Originals(KINDS)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module has its hooks."""
GLOBAL_HOOKS: Sequence[dict[int, Any]] = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
"""Hooks of every module there is."""


def lowered(model: Any) -> TextForm | str:
    """The form of a model that writes texts, or why it has none, as the end of a sentence that tells of it."""
    if type(model) not in (Model, LanguageModel):
        return f"it is a {type(model).__name__}, not a model that writes a text"
    if (name := ORIGINALS.changed()) is not None:
        return f"{name} is not the function that it was written with"
    if any(GLOBAL_HOOKS):
        return "there are hooks on all modules"
    names = {module: name for name, module in model.named_modules()}
    try:
        for module in names:
            _check(module)
        form = form_of(model, TextForm)
        _check_sizes(form, model)
        _check_whole(form, model)
    except NoFormError as refused:
        name = names.get(refused.module)
        return f"its {name} {refused}" if name else f"it {refused}"
    return form


def refusal_by(cannot: Callable[[TextForm], str | None], model: Any) -> str | None:
    """Why an engine that says of forms what it cannot compute cannot run a model; None if it can."""
    form = lowered(model)
    return form if isinstance(form, str) else cannot(form)


def _check(module: nn.Module) -> None:
    """Raises NoFormError for a module that may do other things than its class, or whose class is not known."""

    refuse = partial(NoFormError, module)
    kind = KINDS.get(type(module))
    if kind is None:
        raise refuse(f"is a {type(module).__name__}, which only torch runs")
    if any(getattr(module, name) for name in HOOKS):
        raise refuse("has a hook")
    for name, value in vars(module).items():
        written = getattr(type(module), name, None)
        if value is not None and (callable(written) or hasattr(written, "__get__")):
            raise refuse(f"has a {name} of its own")
    if module.__dict__.get("_compiled_call_impl") is not None:
        raise refuse("was compiled by torch")
    unknown = {name for name, part in module._modules.items() if part is not None} - (kind.parts or set())
    if unknown and kind.parts is not None:
        raise refuse(f"has a part {min(unknown)}, which a {type(module).__name__} has not")
    weights = [(name, weight) for name, weight in _weights_of(module) if weight is not None]
    for name, weight in weights:
        if name not in kind.weights:
            raise refuse(f"has a tensor {name}, which a {type(module).__name__} has not")
        _check_weight(weight, lambda what, name=name: refuse(f"has a {name} {what}"))
    if type(module) is Dropout and module.training and module.p > 0:
        raise refuse("is in training mode: call eval()")


def _weights_of(module: nn.Module) -> Iterable[tuple[str, Tensor | None]]:
    return chain(module._parameters.items(), module._buffers.items())


def _check_weight(weight: Tensor, refuse: Any) -> None:
    if type(weight) not in (nn.Parameter, Tensor):
        raise refuse(f"that is a {type(weight).__name__}, not a plain tensor")
    if weight.is_inference():
        raise refuse("that was made in inference mode, where changes cannot be seen")
    if weight.device.type != "cpu" or weight.layout != torch.strided:
        raise refuse(f"on {weight.device} in {weight.layout}, not a dense one on the CPU")
    if weight.dtype not in (torch.float32, torch.int64):
        raise refuse(f"in {weight.dtype}, not in float32")
    if weight.is_floating_point() and not bool(weight.isfinite().all()):
        raise refuse("with numbers that are not finite")


def blocks_of_both(form: TextForm) -> list[BlockForm]:
    """All blocks, the encoder's first."""
    return [*form.core.encoder, *form.core.decoder]


def attentions_of(form: TextForm) -> list[AttentionForm]:
    """All attentions, block by block."""
    both = [(block.attention, block.cross) for block in blocks_of_both(form)]
    return [attention for pair in both for attention in pair if attention is not None]


def adds_of(form: TextForm) -> list[AddNormForm]:
    """All that add and normalize, block by block."""
    added = [(block.add_attention, block.add_cross, block.add_feedforward) for block in blocks_of_both(form)]
    return [one for some in added for one in some if one is not None]


def norms_of(form: TextForm) -> list[NormForm]:
    """All norms."""
    last = (form.core.encoder_norm, form.core.decoder_norm)
    return [one.norm for one in adds_of(form)] + [norm for norm in last if norm is not None]


def irregular(form: TextForm) -> Iterator[str]:
    """Why no engine but torch computes a form, whose sizes fit: blocks that are not alike, or parts that none knows."""
    core, blocks = form.core, blocks_of_both(form)
    alike: dict[str, list[Any]] = {
        "orders of norms": [one.order for one in adds_of(form)],
        "activations": [block.feedforward.activation for block in blocks],
        "numbers of heads": [attention.num_heads for attention in attentions_of(form)],
    }
    yield from (f"its blocks have {what} that differ" for what, values in alike.items() if len(set(values)) > 1)
    order, activation = alike["orders of norms"][0], alike["activations"][0]
    if order not in ("pre", "post"):
        yield f"its norms stand {order}, not pre or post"
    last = (core.decoder_norm, core.encoder_norm) if form.source is not None else (core.decoder_norm,)
    if any((norm is None) == (order == "pre") for norm in last):
        yield f"its stacks of {order}-norm blocks {'do not end' if order == 'pre' else 'end'} in a norm"
    if activation not in ("relu", "gelu"):
        yield f"its activation is {activation}, not relu or gelu"
    if any(block.cross is not None and block.cross.read.bias is not None for block in blocks):
        yield "its attention to the source has positions"
    for attention in attentions_of(form):
        score = attention.read.score
        if not isinstance(score, InnerProduct) or score.cap is not None:
            yield f"its score is {score}, not a plain inner product"


def _check_sizes(form: TextForm, model: nn.Module) -> None:
    """Raises NoFormError where torch would raise an error, too, or leave out a part."""

    need = partial(_need, model)
    core, target, output = form.core, form.writes.inputs, form.writes.output
    width = output.shape[1]
    need(len(core.decoder) > 0, "has no decoder")
    need(target.weight.shape == output.shape, f"reads {tuple(target.weight.shape)} and writes {tuple(output.shape)}")
    need(form.source is None or form.source.weight.shape[1] == width, f"reads and writes items of other than {width}")
    need(
        all((block.cross is None) == (form.source is None) for block in core.decoder), "has blocks that read no source"
    )
    need(form.source is not None or not core.encoder, "has an encoder and reads no source")
    if isinstance(core.positions, LearnedForm):
        need(core.positions.weight.shape[1] == width, f"has positions of other than {width} numbers")
    elif core.positions is not None:
        need(core.positions.dim == width, f"has positions of other than {width} numbers")
    for norm in norms_of(form):
        need(norm.size == width, f"has a norm of {norm.size} numbers for items of {width}")
        shapes = {tuple(part.shape) for part in (norm.scale, norm.shift) if part is not None}
        need(shapes <= {(width,)}, f"has a norm of {width} numbers whose weights are of other sizes")
    for block in blocks_of_both(form):
        hidden = len(block.feedforward.expand.weight)
        need(_fits(block.feedforward.expand, hidden, width), "has a feed-forward network whose sizes do not fit")
        need(_fits(block.feedforward.contract, width, hidden), "has a feed-forward network whose sizes do not fit")
        need(block.window is None or block.window > 0, f"has a window of {block.window}")
    for attention in attentions_of(form):
        need(_is_whole(attention, width), "has an attention whose sizes do not fit")
        read = attention.read
        need(isinstance(read.beta, float | int) and read.beta == 1, "has a choice that is not a plain softmax")
        need(read.bias is None or _suits(read.bias, attention.num_heads), "has positions for another number of heads")


def _need(model: nn.Module, holds: bool, reason: str) -> None:
    if not holds:
        raise NoFormError(model, reason)


def _fits(linear: LinearForm, outputs: int, inputs: int) -> bool:
    biases = None if linear.bias is None else linear.bias.shape
    return linear.weight.shape == (outputs, inputs) and biases in (None, (outputs,))


def _is_whole(attention: AttentionForm, width: int) -> bool:
    heads, shared = attention.num_heads, attention.key_heads
    if heads < 1 or shared < 1 or heads % shared:
        return False
    size, value_size = len(attention.query.weight) // heads, len(attention.value.weight) // shared
    return (
        min(size, value_size) > 0
        and _fits(attention.query, heads * size, width)
        and _fits(attention.key, shared * size, width)
        and _fits(attention.value, shared * value_size, width)
        and _fits(attention.output, width, heads * value_size)
    )


def _suits(bias: ByDistance, heads: int) -> bool:
    found = bias.at(torch.zeros(1, dtype=torch.int64), torch.float32)
    return len(found) in (1, heads)


def _check_whole(form: TextForm, model: nn.Module) -> None:
    """Raises NoFormError for a parameter that the form does not hold: what computes with it was not understood."""
    held = {id(leaf) for leaf in leaves(form)}
    held |= {id(weight) for leaf in leaves(form) if isinstance(leaf, ByDistance) for weight in leaf.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in held:
            raise NoFormError(model, f"has a parameter {name} that takes no part")
