"""From a model's form to CTranslate2's specification of the same one.

    queries, keys, values of self-attention      one matrix [W_q; W_k; W_v]
    of attention to the source                   W_q, and [W_k; W_v]
    positions                                    a table of the vectors that are added: sines, learned, or zeros
    the score <q, k>                             a scale of 1 in place of 1 / sqrt(d)

What CTranslate2 cannot express is refused, with the reason: `unsupported` looks at the form alone.
Vocabularies are the ids written as numbers, so that tokenizers stay the caller's.
"""

import importlib
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.positional import Alibi
from regard.attention.scores import InnerProduct
from regard.data.tokenize import BOS, EOS, PAD, UNK
from regard.engines.lowering import attentions_of, norms_of
from regard.layers.forms import (
    AttentionForm,
    BlockForm,
    LearnedForm,
    LinearForm,
    NormForm,
    SinusoidsForm,
    TextForm,
    TransformerForm,
)
from regard.layers.positions import sinusoids

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU"}


def unsupported(form: TextForm) -> str | None:
    """Return why CTranslate2 cannot compute a form, as the end of a sentence; None if it can."""
    attentions, width = attentions_of(form), form.writes.output.shape[1]
    of_attentions = (_of_attention(attention, width) for attention in attentions)
    return next(chain(chain.from_iterable(of_attentions), _of_whole(form, attentions, width)), None)


def _of_whole(form: TextForm, attentions: list[AttentionForm], width: int) -> Iterator[str]:
    if len({norm.eps for norm in norms_of(form)}) > 1:
        yield "its norms have several eps, and only one is known there"
    if any(table.scale != math.sqrt(width) for table in (form.source, form.writes.inputs) if table is not None):
        yield "its embeddings are not scaled by the root of their size"
    windows = [block.window for block in form.core.decoder if block.window is not None]
    if windows:
        yield f"its decoder sees a window of {windows[0]} targets"
    has_bias = {attention.read.bias is not None for attention in attentions}
    if form.source is not None and has_bias != {False}:
        yield "it has positions by distance (alibi), which are known there for language models alone"
    if len(has_bias) > 1:
        yield "its blocks have positions that differ"


def _of_attention(attention: AttentionForm, width: int) -> Iterator[str]:
    bias, heads = attention.read.bias, attention.num_heads
    if bias is not None and type(bias) is not Alibi:
        yield f"its positions are {type(bias).__name__}, which is not what is known there"
    if type(bias) is Alibi and not torch.equal(bias.slopes, Alibi(heads).slopes):
        yield "its positions by distance have other slopes than those of its number of heads"
    if attention.key_heads != heads:
        yield f"its {heads} heads share {attention.key_heads} heads of keys and values"
    if {len(attention.query.weight), len(attention.value.weight)} != {width}:
        yield "its heads together are not as wide as the model (head_dim or head_value_dim was given)"


def source_words(ids: Iterable[int]) -> list[str]:
    """What the ids of a source are called there: their numbers, but PAD and EOS swapped.

    CTranslate2 does not read a source of BOS and EOS alone; PAD, which no source holds, is what it takes for EOS.
    """
    other = {PAD: EOS, EOS: PAD}
    return [str(other.get(i, i)) for i in ids]


def specification(form: TextForm, *, places: int) -> Any:
    """CTranslate2's specification of a form that it can compute; save(folder) writes it.

    places: how many positions there are, for kinds without a limit.
    """
    specs = importlib.import_module("ctranslate2.specs.transformer_spec")
    kinds = importlib.import_module("ctranslate2.specs.common_spec").Activation
    core, block = form.core, form.core.decoder[0]
    how = {
        "pre_norm": block.add_attention.order == "pre",
        "activation": getattr(kinds, _ACTIVATIONS[block.feedforward.activation]),
    }
    heads = block.attention.num_heads
    vocabulary = [str(i) for i in range(len(form.writes.output))]
    if form.source is None:
        how["alibi"] = block.attention.read.bias is not None
        spec = specs.TransformerDecoderModelSpec.from_config(len(core.decoder), heads, **how)
        spec.register_vocabulary(vocabulary)
    else:
        spec = specs.TransformerSpec.from_config((len(core.encoder), len(core.decoder)), heads, **how)
        spec.register_source_vocabulary(source_words(range(len(form.source.weight))))
        spec.register_target_vocabulary(vocabulary)
        spec.config.decoder_start_token = str(BOS)
        spec.encoder.embeddings[0].weight = _array(form.source.weight)
        _stack(spec.encoder, core.encoder, core.encoder_norm, _positions(core, places))
    for name, token in (("bos", BOS), ("eos", EOS), ("unk", UNK)):
        setattr(spec.config, f"{name}_token", str(token))
    spec.config.add_attribute("layer_norm_epsilon", block.add_feedforward.norm.eps)
    spec.decoder.embeddings.weight = _array(form.writes.inputs.weight)
    spec.decoder.projection.weight = _array(form.writes.output)
    _stack(spec.decoder, core.decoder, core.decoder_norm, _positions(core, places))
    spec.validate()
    spec.optimize()
    return spec


def _positions(core: TransformerForm, places: int) -> NDArray[Any]:
    match core.positions:
        case SinusoidsForm(dim):
            return sinusoids(0, places, dim).numpy()
        case LearnedForm(weight):
            return _array(weight)
        case None:
            width = core.decoder[0].add_feedforward.norm.size
            return torch.zeros(places, width, dtype=torch.float32).numpy()


def _stack(spec: Any, blocks: Iterable[BlockForm], norm: NormForm | None, positions: NDArray[Any]) -> None:
    """A stack of blocks, its positions and its last norm."""
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = positions
    if norm is not None:
        _norm(spec.layer_norm, norm)
    for layer, block in zip(spec.layer, blocks, strict=True):
        own, cross = block.attention, block.cross
        _attention(layer.self_attention, own, (own.query, own.key, own.value))
        _norm(layer.self_attention.layer_norm, block.add_attention.norm)
        if cross is not None and block.add_cross is not None:
            _attention(layer.attention, cross, (cross.query,), (cross.key, cross.value))
            _norm(layer.attention.layer_norm, block.add_cross.norm)
        _norm(layer.ffn.layer_norm, block.add_feedforward.norm)
        _linear(layer.ffn.linear_0, block.feedforward.expand)
        _linear(layer.ffn.linear_1, block.feedforward.contract)


def _attention(spec: Any, attention: AttentionForm, *inputs: tuple[LinearForm, ...]) -> None:
    for place, parts in zip(spec.linear, (*inputs, (attention.output,)), strict=True):
        _linear(place, *parts)
    score = attention.read.score
    assert isinstance(score, InnerProduct)
    if score.scale != 1 / math.sqrt(len(attention.query.weight) // attention.num_heads):
        spec.queries_scale = score.scale


def _linear(spec: Any, *parts: LinearForm) -> None:
    """Linear maps of the same input, stacked."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    if any(part.bias is not None for part in parts):
        spec.bias = _array(torch.cat([_or(part.bias, 0, len(part.weight)) for part in parts]))


def _norm(spec: Any, norm: NormForm) -> None:
    spec.gamma, spec.beta = _array(_or(norm.scale, 1, norm.size)), _array(_or(norm.shift, 0, norm.size))


def _or(weight: Tensor | None, number: float, size: int) -> Tensor:
    return torch.full((size,), float(number), dtype=torch.float32) if weight is None else weight


def _array(weight: Tensor) -> NDArray[Any]:
    return weight.detach().numpy()
