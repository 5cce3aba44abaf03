"""Lowering of a model to its form, a frozen copy that engines compile.

A form is used only if it certainly describes the model: every module has exactly a class that is
known here, without hooks and without replaced methods; the weights are dense finite float32 tensors
on the CPU, of sizes that fit one another; every parameter is in the form. All other models need the
torch engine. That a form gives the logits of its model is shown by the tests.

Source: lattner2004 (lowering).
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.attention.biases import Alibi, DistanceBias, RelativeBias
from regard.attention.choices import Sigmoid, SinkSoft, Soft
from regard.attention.scores import Dot, InnerProduct, ScaledDot
from regard.compat.torch import has_global_hooks, has_hooks, is_compiled, parameters_of
from regard.layers import forms
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.norms import L2Norm, RMSNorm
from regard.layers.positions.base import AlibiPositions, NoPositions, RelativePositions
from regard.layers.positions.learned import Learned
from regard.layers.positions.rotary import Rotary
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.read import Read
from regard.layers.residual import Residual
from regard.layers.written import WrittenAttention, WrittenRead
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter

_MODELS = (Model, TokenReader, TokenWriter, Transformer, EncoderBlock, DecoderBlock)
_POSITIONS = (Sinusoidal, Learned, Rotary, AlibiPositions, RelativePositions, NoPositions)
_READS = (MultiHead, Read, Dot, ScaledDot, Soft, SinkSoft, Sigmoid, Alibi, RelativeBias)
_WRITTEN = (WrittenAttention, WrittenRead)
_LAYERS = (nn.Embedding, nn.ModuleList, Linear, nn.Linear, FeedForward, Residual, Dropout)
_NORMS = (nn.LayerNorm, nn.RMSNorm, RMSNorm, L2Norm, nn.Identity)
KNOWN: frozenset[type] = frozenset((*_MODELS, *_POSITIONS, *_READS, *_WRITTEN, *_LAYERS, *_NORMS))
"""Classes whose forms describe them exactly. Subclasses are not included."""


Part = TypeVar("Part")


class UnsupportedModelError(ValueError):
    """Error for a model without a form; the message is a clause that begins with "it" or "its"."""


@torch.no_grad()  # torch may deadlock if threads compute gradients of shared parameters
def lower(model: Any) -> forms.TextForm:
    """Return the form of an encoder-decoder or language model for text, with copies of its weights.

    Raises: UnsupportedModelError with the reason.
    """
    kind = type(model).__name__
    if type(model) is not Model:
        raise UnsupportedModelError(f"it is a {kind}, which only torch runs")
    if model.writer.part != "decoder":
        raise UnsupportedModelError(f"its writer {type(model.writer).__name__} generates no text")
    if has_global_hooks():
        raise UnsupportedModelError("there are global module hooks")
    names = {module: name for name, module in model.named_modules()}
    try:
        for module in names:
            _check_module(module)
        form = forms.form_of(model, forms.TextForm)
        _check_parameters(form, model)
        reason = next(_unsupported_features(form), None)
        if reason is not None:
            raise UnsupportedModelError(reason)
        return _freeze(form)
    except forms.NoFormError as error:
        name = names.get(error.module)
        raise UnsupportedModelError(f"its {name} {error}" if name else f"it {error}") from error


def parts_of(form: Any, kind: type[Part]) -> list[Part]:
    """Return all parts of a form that are of a kind, in the order of its fields."""
    if isinstance(form, kind):
        return [form]
    parts, children = [], ()
    if is_dataclass(form):
        children = [getattr(form, field.name) for field in fields(form)]
    elif type(form) is tuple:
        children = form
    for child in children:
        parts += parts_of(child, kind)
    return parts


def head_sizes(attention: forms.AttentionForm) -> tuple[int, int]:
    """Return the sizes of query and key heads, and of value heads."""
    size = len(attention.query.weight) // attention.num_heads
    return size, len(attention.value.weight) // attention.key_heads


def head_norms(attention: forms.AttentionForm) -> list[forms.NormForm]:
    """Return the norms of queries and keys."""
    return [norm for norm in (attention.query_norm, attention.key_norm) if norm is not None]


def _unsupported_features(form: forms.TextForm) -> Iterator[str]:
    """Yield the features of a form that only the torch engine supports."""
    core, blocks = form.core, parts_of(form, forms.BlockForm)
    if not core.decoder:
        yield "it has no decoder"
    if form.source is None and core.encoder:
        yield "it has an encoder and reads no source"
    if any((block.cross is None) != (form.source is None) for block in core.decoder):
        yield "it has decoder blocks without cross-attention"
    own = [block.attention for block in core.decoder]
    for attention in parts_of(form, forms.AttentionForm):
        yield from _unsupported_in_attention(attention)
        if attention.written is not None and attention not in own:
            yield "it has a memory that is written in an encoder or a cross-attention"
    for block in blocks:
        if block.cross is not None and block.cross.rotary is not None:
            yield "its cross-attention has rotary positions"
        if block.cross is not None and block.cross.register_keys is not None:
            yield "its cross-attention has registers"
        if block.cross is not None and block.cross.read.bias is not None:
            yield "its cross-attention has a positional bias"
        if block.window is not None and block.window < 1:
            yield "it has an empty window"
    yield from _differences(form)
    yield from _misfits(form)
    order, activation = blocks[0].add_attention.order, blocks[0].feedforward.activation
    if order not in ("pre", "post"):
        yield f"its order of norms is {order}, not pre or post"
    if activation not in ACTIVATIONS:
        yield f"its activation is {activation}, not one of {', '.join(ACTIVATIONS)}"


def _differences(form: forms.TextForm) -> Iterator[str]:
    """Yield the settings that differ between blocks."""
    core, blocks = form.core, parts_of(form, forms.BlockForm)
    attentions = parts_of(form, forms.AttentionForm)
    scored = [attention for attention in attentions if attention.written is None]
    own = [block.attention for block in blocks if block.attention in scored]
    rotary = [block.attention.rotary for block in blocks]
    equal: dict[str, list[Any]] = {
        "orders of norms": [residual.order for residual in parts_of(form, forms.AddNormForm)],
        "activations": [block.feedforward.activation for block in blocks],
        "kinds of feed-forward networks": [block.feedforward.gate is None for block in blocks],
        "kinds of norms": [norm.is_rms for norm in _norms_of_items(form)],
        "choices": [attention.read.is_sigmoid for attention in scored],
        "gates": [attention.gate is None for attention in scored],
        "numbers of registers": [count_registers(attention) for attention in own],
        "kinds of rotary positions": [(r.interleaved, len(r.rates)) for r in rotary if r],
        "numbers of heads": [attention.num_heads for attention in attentions],
        "numbers of heads of keys": [attention.key_heads for attention in scored],
        "sizes of heads": [head_sizes(attention) for attention in attentions],
        "positions in the encoder": [id(bias) for bias in _biases(core.encoder)],
        "positions in the decoder": [id(bias) for bias in _biases(core.decoder)],
    }
    for name, values in equal.items():
        if len(set(values)) > 1:
            yield f"its blocks have different {name}"


def count_registers(attention: forms.AttentionForm) -> int:
    """Return the number of registers."""
    return 0 if attention.register_keys is None else attention.register_keys.shape[1]


def _biases(stack: tuple[forms.BlockForm, ...]) -> list[DistanceBias]:
    biases = [block.attention.read.bias for block in stack]
    return [bias for bias in biases if bias is not None]


def _misfits(form: forms.TextForm) -> Iterator[str]:
    """Yield the sizes that do not fit the others, which compiled code does not check."""
    inputs, output = form.writer.inputs, form.writer.output
    width = inputs.weight.shape[1] if inputs.projection is None else len(inputs.projection)
    sizes: list[tuple[Tensor | None, tuple[int, ...]]] = []
    vocab = (len(inputs.weight),)
    sizes += [(output.weight[:, 0], vocab), (form.writer.bias, vocab)]
    for table in parts_of(form, forms.TableForm):
        dim = width if table.projection is None else table.projection.shape[1]
        sizes += [(table.weight[0], (dim,)), (table.projection, (width, dim))]
    for attention in parts_of(form, forms.AttentionForm):
        size, value_size = head_sizes(attention)
        heads, key_heads, rotary = attention.num_heads, attention.key_heads, attention.rotary
        sizes.append((attention.query.weight, (heads * size, width)))
        sizes.append((attention.key.weight, (key_heads * size, width)))
        sizes.append((attention.value.weight, (key_heads * value_size, width)))
        sizes.append((attention.output.weight, (width, heads * value_size)))
        sizes += [(norm.scale, (size,)) for norm in head_norms(attention)]
        count = count_registers(attention)
        sizes.append((attention.register_keys, (key_heads, count, size)))
        sizes.append((attention.register_values, (key_heads, count, value_size)))
        norms = parts_of(attention.written, forms.NormForm)
        gates = parts_of(attention.written, forms.LinearForm)
        sizes += [(norm.scale, (value_size,)) for norm in norms]
        sizes += [(gate.weight, (heads, width)) for gate in gates]
        if attention.gate is not None:
            gates = heads if len(attention.gate.weight) == heads else heads * value_size
            sizes.append((attention.gate.weight, (gates, width)))
        bias, distance = attention.read.bias, torch.zeros(1, 1, dtype=torch.int64)
        if bias is not None and len(bias.at(distance, torch.float32)) not in (1, heads):
            yield "its positional bias has another number of heads"
        if rotary is not None and 2 * len(rotary.rates) > size:
            yield f"its rotary positions have {2 * len(rotary.rates)} numbers, its heads {size}"
    for feedforward in parts_of(form, forms.FeedForwardForm):
        hidden = len(feedforward.expand.weight)
        sizes.append((feedforward.expand.weight, (hidden, width)))
        sizes.append((feedforward.contract.weight, (width, hidden)))
        if feedforward.gate is not None:
            sizes.append((feedforward.gate.weight, (hidden, width)))
    for linear in parts_of(form, forms.LinearForm):
        sizes.append((linear.bias, (len(linear.weight),)))
    for norm in _norms_of_items(form):
        sizes += [(norm.scale, (width,)), (norm.shift, (width,))]
    positions = form.core.encoder_positions, form.core.decoder_positions
    for dim in {added.dim for added in positions if added is not None} - {width}:
        yield f"its positions have {dim} numbers, its items {width}"
    for weight, shape in sizes:
        if weight is not None and weight.shape != shape:
            yield f"it has weights of shape {tuple(weight.shape)} where {shape} is expected"


def _norms_of_items(form: forms.TextForm) -> list[forms.NormForm]:
    of_heads = parts_of((*parts_of(form, forms.AttentionForm),), forms.NormForm)
    return [norm for norm in parts_of(form, forms.NormForm) if norm not in of_heads]


def _unsupported_in_attention(attention: forms.AttentionForm) -> Iterator[str]:
    norms, has_beta = head_norms(attention), attention.read.beta != 1
    if len(norms) == 1 or not all(norm.is_rms for norm in norms):
        yield "its norms of queries and keys are not both RMSNorm or L2Norm"
    if norms and (has_beta or attention.read.log_beta is not None):
        yield "its choice has a beta, and its queries are normalized"
    if attention.written is not None and not attention.written.norm.is_rms:
        yield "its norm of what is read from a memory is not RMSNorm or L2Norm"
    read, heads, key_heads = attention.read, attention.num_heads, attention.key_heads
    if heads < 1 or key_heads < 1 or heads % key_heads:
        yield f"it has {heads} heads and {key_heads} heads of keys"
    if not isinstance(read.score, InnerProduct) or read.score.cap is not None:
        yield f"its score is {read.score}, not a plain inner product"
    if not isinstance(read.beta, float | int):
        yield "its choice is no softmax or sigmoid with one beta, or a learned one for each head"
    if read.bias is not None and (read.beta != 1 or read.log_beta is not None):
        yield "its choice has a beta, by which its positional bias is multiplied"
    if isinstance(read.sink, Tensor) and len(read.sink) not in (1, heads):
        yield f"its choice has {len(read.sink)} sinks for {heads} heads"
    if read.log_beta is not None and read.log_beta.shape not in ((1,), (heads, 1, 1)):
        yield f"its choice learns a beta of shape {tuple(read.log_beta.shape)} for {heads} heads"


def _check_module(module: nn.Module) -> None:
    """Raise NoFormError for an unknown class, or a module that may compute something else."""
    if type(module) not in KNOWN:
        raise forms.NoFormError(module, f"is a {type(module).__name__}, which only torch runs")
    if has_hooks(module):
        raise forms.NoFormError(module, "has a hook")
    for name, value in vars(module).items():
        class_attribute = getattr(type(module), name, None)
        if value is not None and (callable(class_attribute) or hasattr(class_attribute, "__get__")):
            raise forms.NoFormError(module, f"has a replaced method {name}")
    for kind in type(module).__mro__:
        for name, function in vars(kind).items():
            is_ours = kind.__module__.startswith("regard.") or name in ("forward", "__call__")
            if is_ours and inspect.isfunction(function) and function.__module__ != kind.__module__:
                raise forms.NoFormError(module, f"has a replaced method {name} of {kind.__name__}")
    if is_compiled(module):
        raise forms.NoFormError(module, "was compiled by torch")
    for name, weight in parameters_of(module).items():
        detail = None if weight is None else _unsupported_weight(weight)
        if detail is not None:
            raise forms.NoFormError(module, f"has a {name} {detail}")
    if type(module) is Dropout and module.training and module.p > 0:
        raise forms.NoFormError(module, "is in training mode: call eval()")


def _unsupported_weight(weight: Tensor) -> str | None:
    if type(weight) not in (nn.Parameter, Tensor):
        return f"that is a {type(weight).__name__}, not a plain tensor"
    if weight.device.type != "cpu" or weight.layout != torch.strided:
        return f"on {weight.device} in {weight.layout}, not a dense one on the CPU"
    if weight.dtype != torch.float32:
        return f"in {weight.dtype}, not in float32"
    return None if weight.isfinite().all() else "with numbers that are not finite"


def _check_parameters(form: forms.TextForm, model: nn.Module) -> None:
    """Raise NoFormError for a parameter that the form does not have."""
    ids = {id(weight) for weight in parts_of(form, Tensor)}
    for bias in parts_of(form, DistanceBias):
        ids |= {id(weight) for weight in bias.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in ids:
            raise forms.NoFormError(model, f"has a parameter {name} that is not in its form")


def _freeze(form: forms.TextForm) -> forms.TextForm:
    """Return the form with copies of its tensors and biases, and queries multiplied by beta.

    What is shared stays shared. <beta q, k> = beta <q, k>, so that engines need no beta.
    """
    copies: dict[int, Any] = {}

    def copy_leaf(part: Any) -> Any:
        if isinstance(part, Tensor | DistanceBias):
            if id(part) not in copies:
                is_tensor = isinstance(part, Tensor)
                copies[id(part)] = part.detach().clone() if is_tensor else copy.deepcopy(part)
            return copies[id(part)]
        return _multiply_queries(part) if isinstance(part, forms.AttentionForm) else part

    with torch.inference_mode(mode=False), torch.no_grad():
        return _map_form(form, copy_leaf)


def _map_form(part: Any, function: Callable[[Any], Any]) -> Any:
    """Return function(part), called for the parts of each part first."""
    if is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in fields(part)]
        part = replace(part, **{name: _map_form(getattr(part, name), function) for name in names})
    elif type(part) is tuple:
        part = tuple(_map_form(item, function) for item in part)
    return function(part)


def _multiply_queries(attention: forms.AttentionForm) -> forms.AttentionForm:
    """Return the attention with queries and sinks multiplied by beta, and beta 1."""
    read, query = attention.read, attention.query
    if read.beta == 1 and read.log_beta is None:
        return attention
    beta = torch.as_tensor(read.beta, dtype=torch.float32)
    if read.log_beta is not None:
        beta = read.log_beta.exp()
    size = len(query.weight) // attention.num_heads
    rows = beta.flatten().expand(attention.num_heads).repeat_interleave(size)
    bias = None if query.bias is None else query.bias * rows
    query = replace(query, weight=query.weight * rows[:, None], bias=bias)
    sink = read.sink if read.sink is None else torch.as_tensor(read.sink).flatten() * beta.flatten()
    read = replace(read, beta=1.0, log_beta=None, sink=sink)
    return replace(attention, query=query, read=read)
