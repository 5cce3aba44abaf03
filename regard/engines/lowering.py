"""Lower a model to its form, a frozen copy that an engine compiles, or say why that is not possible.

A form is trusted only where it must be true. Every module of the model is exactly of a class that is known here, with
no hooks and no methods of its own; its weights are dense finite float32 tensors on the CPU; every parameter is in the
form; and a probe of a few steps gives the logits of the model (regard.engines.interpret). Everything else is left to
the torch engine.

Source: lattner2004 (lowering).
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from regard.attention.choices import Soft
from regard.attention.positional import Alibi, ByDistance, RelativeBias
from regard.attention.scores import Dot, InnerProduct, ScaledDot
from regard.engines.interpret import probe
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.forms import (
    AddNormForm,
    AttentionForm,
    BlockForm,
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

KNOWN: frozenset[type] = frozenset(
    {
        Model, LanguageModel, TokenReader, TokenWriter, nn.Embedding, TransformerCore, Sinusoidal, Learned, NoPositions,
        nn.ModuleList, EncoderBlock, DecoderBlock, Residual, Dropout, nn.LayerNorm, nn.Identity, FeedForward, Linear,
        nn.Linear, MultiHead, Read, Dot, ScaledDot, Soft, Alibi, RelativeBias,
    }
)  # fmt: skip
"""Classes whose forms are true. Subclasses are other classes."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS: Sequence[dict[int, Any]] = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)


class UnsupportedModelError(ValueError):
    """An engine cannot run a model; the message is the end of a sentence that begins with "it" or "its"."""


def lower(model: Any, unsupported: Callable[[TextForm], str | None], *, largest: float = math.inf) -> TextForm:
    """Return the form of a model that writes texts, with copies of its weights.

    unsupported: an engine's own reason not to compute a form that is regular, or None.
    largest:     items beyond this overflow in the engine without being noticed.
    Raises: UnsupportedModelError with the reason.
    """
    if type(model) not in (Model, LanguageModel):
        raise UnsupportedModelError(f"it is a {type(model).__name__}, not a model that writes a text")
    if any(_GLOBAL_HOOKS):
        raise UnsupportedModelError("there are hooks on all modules")
    names = {module: name for name, module in model.named_modules()}
    try:
        for module in names:
            _check(module)
        form = form_of(model, TextForm)
        _check_whole(form, model)
        if (reason := next(irregular(form), None) or unsupported(form)) is not None:
            raise UnsupportedModelError(reason)
        form = _frozen(form)
        probe(form, model, largest=largest)
    except NoFormError as error:
        name = names.get(error.module)
        raise UnsupportedModelError(f"its {name} {error}" if name else f"it {error}") from error
    return form


def _check(module: nn.Module) -> None:
    """Raises NoFormError for a module that may do other things than its class, or whose class is not known."""
    refuse = partial(NoFormError, module)
    if type(module) not in KNOWN:
        raise refuse(f"is a {type(module).__name__}, which only torch runs")
    if any(getattr(module, name) for name in _HOOKS):
        raise refuse("has a hook")
    for name, value in vars(module).items():
        written = getattr(type(module), name, None)
        if value is not None and (callable(written) or hasattr(written, "__get__")):
            raise refuse(f"has a {name} of its own")
    if module.__dict__.get("_compiled_call_impl") is not None:
        raise refuse("was compiled by torch")
    for name, weight in module._parameters.items():
        if weight is not None:
            _check_weight(weight, lambda what, name=name: refuse(f"has a {name} {what}"))
    if type(module) is Dropout and module.training and module.p > 0:
        raise refuse("is in training mode: call eval()")


def _check_weight(weight: Tensor, refuse: Callable[[str], NoFormError]) -> None:
    if type(weight) not in (nn.Parameter, Tensor):
        raise refuse(f"that is a {type(weight).__name__}, not a plain tensor")
    if weight.device.type != "cpu" or weight.layout != torch.strided:
        raise refuse(f"on {weight.device} in {weight.layout}, not a dense one on the CPU")
    if weight.dtype != torch.float32:
        raise refuse(f"in {weight.dtype}, not in float32")
    if not bool(weight.isfinite().all()):
        raise refuse("with numbers that are not finite")


def _check_whole(form: TextForm, model: nn.Module) -> None:
    """Raises NoFormError for a parameter that the form does not hold: what computes with it was not understood."""
    held = {id(leaf) for leaf in leaves(form)}
    held |= {id(weight) for leaf in leaves(form) if isinstance(leaf, ByDistance) for weight in leaf.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in held:
            raise NoFormError(model, f"has a parameter {name} that takes no part")


def _frozen(form: TextForm) -> TextForm:
    """Return the form with copies of its tensors; tensors and biases that are shared stay shared."""
    copies: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        if isinstance(part, Tensor | ByDistance):
            if id(part) not in copies:
                copies[id(part)] = part.detach().clone() if isinstance(part, Tensor) else _frozen_bias(part)
            return copies[id(part)]
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: copied(getattr(part, field.name)) for field in fields(part)})
        if isinstance(part, tuple):
            parts = tuple(map(copied, part))
            return type(part)(*parts) if hasattr(part, "_fields") else parts
        return part

    with torch.inference_mode(mode=False), torch.no_grad():
        return copied(form)


def _frozen_bias(bias: ByDistance) -> ByDistance:
    """Return a copy whose parameters are buffers."""
    twin = copy.copy(bias)
    tensors = {**bias._parameters, **bias._buffers}
    twin.__dict__ |= {
        "_parameters": {},
        "_buffers": {name: None if weight is None else weight.detach().clone() for name, weight in tensors.items()},
    }
    return twin


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
    """Yield why no engine but torch computes a form: blocks that are not alike, or parts that none knows."""
    core, blocks, attentions = form.core, blocks_of_both(form), attentions_of(form)
    if not core.decoder:
        yield "it has no decoder"
    if form.source is None and core.encoder:
        yield "it has an encoder and reads no source"
    if any((block.cross is None) != (form.source is None) for block in core.decoder):
        yield "it has blocks that read no source"
    alike: dict[str, list[Any]] = {
        "orders of norms": [add.order for add in adds_of(form)],
        "activations": [block.feedforward.activation for block in blocks],
        "numbers of heads": [attention.num_heads for attention in attentions],
    }
    yield from (f"its blocks have {name} that differ" for name, values in alike.items() if len(set(values)) > 1)
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
    if any(block.window is not None and block.window < 1 for block in blocks):
        yield "it has a window of no items"
    yield from (reason for attention in attentions for reason in _irregular_attention(attention))


def _irregular_attention(attention: AttentionForm) -> Iterator[str]:
    read, heads, shared = attention.read, attention.num_heads, attention.key_heads
    if heads < 1 or shared < 1 or heads % shared:
        yield f"it has {heads} heads and {shared} heads of keys"
    if not isinstance(read.score, InnerProduct) or read.score.cap is not None:
        yield f"its score is {read.score}, not a plain inner product"
    if not isinstance(read.beta, float | int) or read.beta != 1:
        yield "its choice is not a plain softmax"
