"""Lowering of a model to its form, a frozen copy that engines compile.

A form is used only if it certainly describes the model: every module has exactly a class that is
known here, without hooks and without replaced methods; the weights are dense finite float32 tensors
on the CPU; every parameter is in the form; and the form gives the logits of the model for a few
steps (regard.engines.interpret). All other models need the torch engine.

Source: lattner2004 (lowering).
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.biases import Alibi, DistanceBias, RelativeBias
from regard.attention.choices import Soft
from regard.attention.scores import Dot, InnerProduct, ScaledDot
from regard.compat.torch import buffers_of, has_global_hooks, has_hooks, is_compiled, parameters_of
from regard.engines.interpret import probe
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from regard.layers.forms import (
    AddNormForm,
    AttentionForm,
    BlockForm,
    NoFormError,
    NormForm,
    RotaryForm,
    TextForm,
    form_leaves,
    form_of,
)
from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.norms import RMSNorm
from regard.layers.positions.base import AlibiPositions, NoPositions, RelativePositions
from regard.layers.positions.learned import Learned
from regard.layers.positions.rotary import Rotary
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.read import Read
from regard.layers.residual import Residual
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter

KNOWN: frozenset[type] = frozenset(
    {
        Model, TokenReader, TokenWriter, nn.Embedding, Transformer, nn.ModuleList, EncoderBlock,
        DecoderBlock, Sinusoidal, Learned, Rotary, AlibiPositions, RelativePositions, NoPositions, Residual, Dropout,
        nn.LayerNorm, nn.RMSNorm, RMSNorm, nn.Identity, FeedForward, GatedFeedForward, Linear,
        nn.Linear, MultiHead, Read, Dot, ScaledDot, Soft, Alibi, RelativeBias,
    }
)  # fmt: skip
"""Classes whose forms describe them exactly. Subclasses are not included."""


class UnsupportedModelError(ValueError):
    """Error for a model that an engine does not support; the message is a clause that begins with
    "it" or "its"."""


def lower(
    model: Any, unsupported_reason: Callable[[TextForm], str | None], *, largest: float = math.inf
) -> TextForm:
    """Return the form of an encoder-decoder or language model for text, with copies of its weights.

    unsupported_reason: returns why the engine does not support a form, or None.
    largest:            largest item that the engine computes without an overflow that it does not
    report.
    Raises: UnsupportedModelError with the reason.
    """
    if type(model) is not Model:
        raise UnsupportedModelError(
            f"it is a {type(model).__name__}, not a model that generates text"
        )
    if model.writer.part != "decoder":
        raise UnsupportedModelError(
            f"the writer {type(model.writer).__name__}, which does not generate text"
        )
    if has_global_hooks():
        raise UnsupportedModelError("there are global module hooks")
    names = {module: name for name, module in model.named_modules()}
    try:
        for module in names:
            _check_module(module)
        form = form_of(model, TextForm)
        _check_parameters(form, model)
        if (
            reason := next(unsupported_features(form), None) or unsupported_reason(form)
        ) is not None:
            raise UnsupportedModelError(reason)
        form = _with_beta_in_queries(_freeze(form))
        probe(form, model, largest=largest)
    except NoFormError as error:
        name = names.get(error.module)
        raise UnsupportedModelError(f"its {name} {error}" if name else f"it {error}") from error
    return form


def block_forms(form: TextForm) -> list[BlockForm]:
    """Return all blocks, those of the encoder first."""
    return [*form.core.encoder, *form.core.decoder]


def attention_forms(form: TextForm) -> list[AttentionForm]:
    """Return all attentions, block by block."""
    both = [(block.attention, block.cross) for block in block_forms(form)]
    return [attention for pair in both for attention in pair if attention is not None]


def residual_forms(form: TextForm) -> list[AddNormForm]:
    """Return all residual connections with their norms, block by block."""
    groups = [
        (block.add_attention, block.add_cross, block.add_feedforward) for block in block_forms(form)
    ]
    return [residual for group in groups for residual in group if residual is not None]


def norm_forms(form: TextForm) -> list[NormForm]:
    """Return all norms."""
    last = (form.core.encoder_norm, form.core.decoder_norm)
    return [residual.norm for residual in residual_forms(form)] + [
        norm for norm in last if norm is not None
    ]


def rotary_key(rotary: RotaryForm | None) -> tuple[Any, ...] | None:
    """Return what determines a rotary encoding, to compare it with others."""
    return None if rotary is None else (rotary.interleaved, *rotary.rates.tolist())


def unsupported_features(form: TextForm) -> Iterator[str]:
    """Yield the features of a form that only the torch engine supports: blocks that differ, or
    unknown parts."""
    core, blocks, attentions = form.core, block_forms(form), attention_forms(form)
    if not core.decoder:
        yield "it has no decoder"
    if form.source is None and core.encoder:
        yield "it has an encoder and reads no source"
    if any((block.cross is None) != (form.source is None) for block in core.decoder):
        yield "it has decoder blocks without cross-attention"
    settings: dict[str, list[Any]] = {
        "orders of norms": [residual.order for residual in residual_forms(form)],
        "activations": [block.feedforward.activation for block in blocks],
        "numbers of heads": [attention.num_heads for attention in attentions],
        "kinds of feed-forward networks": [block.feedforward.gate is None for block in blocks],
        "kinds of norms": [norm.is_rms for norm in norm_forms(form)],
        "rotary positions": [rotary_key(block.attention.rotary) for block in blocks],
    }
    yield from (
        f"its blocks have different {name}"
        for name, values in settings.items()
        if len(set(values)) > 1
    )
    order, activation = settings["orders of norms"][0], settings["activations"][0]
    if order not in ("pre", "post"):
        yield f"its order of norms is {order}, not pre or post"
    last = (
        (core.decoder_norm, core.encoder_norm) if form.source is not None else (core.decoder_norm,)
    )
    if any((norm is None) == (order == "pre") for norm in last):
        yield f"its stacks of {order}-norm blocks {'do not end' if order == 'pre' else 'end'} in a norm"
    if activation not in ACTIVATIONS:
        yield f"its activation is {activation}, not one of {', '.join(ACTIVATIONS)}"
    if any(block.cross is not None and block.cross.rotary is not None for block in blocks):
        yield "its cross-attention has rotary positions"
    if any(block.cross is not None and block.cross.read.bias is not None for block in blocks):
        yield "its cross-attention has a positional bias"
    if any(block.window is not None and block.window < 1 for block in blocks):
        yield "it has an empty window"
    yield from (
        reason for attention in attentions for reason in _unsupported_in_attention(attention)
    )


def _check_module(module: nn.Module) -> None:
    """Raise NoFormError for a module of an unknown class, or one that may not compute what its
    class does."""
    error = partial(NoFormError, module)
    if type(module) not in KNOWN:
        raise error(f"is a {type(module).__name__}, which only torch runs")
    if has_hooks(module):
        raise error("has a hook")
    for name, value in vars(module).items():
        class_attribute = getattr(type(module), name, None)
        if value is not None and (callable(class_attribute) or hasattr(class_attribute, "__get__")):
            raise error(f"has a replaced method {name}")
    if is_compiled(module):
        raise error("was compiled by torch")
    for name, weight in parameters_of(module).items():
        if weight is not None:
            _check_weight(weight, lambda detail, name=name: error(f"has a {name} {detail}"))
    if type(module) is Dropout and module.training and module.p > 0:
        raise error("is in training mode: call eval()")


def _check_weight(weight: Tensor, error: Callable[[str], NoFormError]) -> None:
    if type(weight) not in (nn.Parameter, Tensor):
        raise error(f"that is a {type(weight).__name__}, not a plain tensor")
    if weight.device.type != "cpu" or weight.layout != torch.strided:
        raise error(f"on {weight.device} in {weight.layout}, not a dense one on the CPU")
    if weight.dtype != torch.float32:
        raise error(f"in {weight.dtype}, not in float32")
    if not bool(weight.isfinite().all()):
        raise error("with numbers that are not finite")


def _check_parameters(form: TextForm, model: nn.Module) -> None:
    """Raise NoFormError for a parameter that is not in the form, so that the form may not describe
    the model."""
    ids = {id(leaf) for leaf in form_leaves(form)}
    ids |= {
        id(weight)
        for leaf in form_leaves(form)
        if isinstance(leaf, DistanceBias)
        for weight in leaf.parameters()
    }
    for name, parameter in model.named_parameters():
        if id(parameter) not in ids:
            raise NoFormError(model, f"has a parameter {name} that is not in its form")


def _freeze(form: TextForm) -> TextForm:
    """Return the form with copies of its tensors; tensors and biases that are shared stay
    shared."""
    copies: dict[int, Any] = {}

    def copy_part(part: Any) -> Any:
        if isinstance(part, Tensor | DistanceBias):
            if id(part) not in copies:
                copies[id(part)] = (
                    part.detach().clone() if isinstance(part, Tensor) else _freeze_bias(part)
                )
            return copies[id(part)]
        if is_dataclass(part) and not isinstance(part, type):
            return replace(
                part, **{field.name: copy_part(getattr(part, field.name)) for field in fields(part)}
            )
        if isinstance(part, tuple):
            parts = tuple(map(copy_part, part))
            return type(part)(*parts) if hasattr(part, "_fields") else parts
        return part

    with torch.inference_mode(mode=False), torch.no_grad():
        return copy_part(form)


def _with_beta_in_queries(part: Any) -> Any:
    """Return the form with queries multiplied by beta: <beta q, k> = beta <q, k>, so that engines
    need no beta."""
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        return tuple(map(_with_beta_in_queries, part))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    if not isinstance(part, AttentionForm):
        return replace(
            part,
            **{
                entry.name: _with_beta_in_queries(getattr(part, entry.name))
                for entry in fields(part)
            },
        )
    read, query = part.read, part.query
    if read.beta == 1 and read.log_beta is None:
        return part
    with torch.inference_mode(mode=False), torch.no_grad():
        beta = (
            torch.as_tensor(read.beta, dtype=torch.float32)
            if read.log_beta is None
            else read.log_beta.exp()
        )
        rows = (
            beta.flatten()
            .expand(part.num_heads)
            .repeat_interleave(len(query.weight) // part.num_heads)
        )
        bias = None if query.bias is None else query.bias * rows
        query = replace(query, weight=query.weight * rows[:, None], bias=bias)
    return replace(part, query=query, read=replace(read, beta=1.0, log_beta=None))


def _freeze_bias(bias: DistanceBias) -> DistanceBias:
    """Return a copy of a bias with its parameters as buffers."""
    frozen = copy.copy(bias)
    tensors = {**parameters_of(bias), **buffers_of(bias)}
    frozen.__dict__ |= {
        "_parameters": {},
        "_buffers": {
            name: None if weight is None else weight.detach().clone()
            for name, weight in tensors.items()
        },
    }
    return frozen


def _unsupported_in_attention(attention: AttentionForm) -> Iterator[str]:
    read, heads, key_heads = attention.read, attention.num_heads, attention.key_heads
    if heads < 1 or key_heads < 1 or heads % key_heads:
        yield f"it has {heads} heads and {key_heads} heads of keys"
    if not isinstance(read.score, InnerProduct) or read.score.cap is not None:
        yield f"its score is {read.score}, not a plain inner product"
    if not isinstance(read.beta, float | int):
        yield "its choice is not a softmax with one beta, or a learned one for each head"
    if read.bias is not None and (read.beta != 1 or read.log_beta is not None):
        yield "its choice has a beta, by which its positional bias is multiplied"
    if read.log_beta is not None and read.log_beta.shape not in ((), (heads, 1, 1)):
        yield f"its choice learns a beta of shape {tuple(read.log_beta.shape)} for {heads} heads"
