"""Conversion of a text Transformer to CTranslate2, a decoder in C++.

    queries, keys, values of self-attention      one matrix [W_q; W_k; W_v]
    of cross-attention                           W_q, and [W_k; W_v]
    positions                                    a table of the vectors that are added: sinusoidal,
                                                 learned, or zeros
    the score <q, k>                             a scale of 1 in place of 1 / sqrt(d)

The vocabularies are given, or else the ids written as numbers, so that tokenization is left to the
caller. CTranslate2 masks PAD and BOS before the softmax and not after it, so that a score is higher
by the -log(1 - p(banned)) of its tokens.
"""

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.biases import Alibi
from regard.attention.scores import InnerProduct
from regard.data.tokenizer import BOS, EOS, PAD, UNK
from regard.engines.engine import on_device
from regard.engines.lowering import UnsupportedModelError, lower, parts_of
from regard.layers import forms
from regard.layers.positions.sinusoidal import sinusoids

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
_NEVER = -1e4
"""Bias of the logit of a token that is never generated; float16 holds it, too."""


@dataclass(frozen=True, kw_only=True)
class Vocabularies:
    """Names of the tokens of sources and targets by id, and those of special tokens."""

    source: Sequence[str]
    target: Sequence[str]
    specials: Mapping[str, str]
    """Tokens by the names of CTranslate2's config: bos_token, eos_token, unk_token, and
    decoder_start_token of an encoder-decoder."""
    banned: Sequence[int] = ()
    """Ids of targets that are never generated, by a bias of their logits."""


def convert(
    model: Any,
    folder: str | Path,
    *,
    num_positions: int = 1024,
    vocabularies: Vocabularies | None = None,
    compute_type: str | None = None,
) -> None:
    """Write a model to an empty folder that `ctranslate2.Translator` or `Generator` opens.

    num_positions: number of positions to store, for positional encodings without a limit.
    vocabularies:  names of the tokens; by default the ids as text (`source_tokens`).
    compute_type:  of the stored weights, such as int8; float32 by default.
    Raises: UnsupportedModelError with the reason.
    """
    with on_device(torch.device("cpu")):
        form = lower(model)
        reason = next(_unsupported_features(form), None)
        if reason is not None:
            raise UnsupportedModelError(reason)
        if vocabularies is None:
            vocabularies = _number_tokens(form)
        spec = _build_specification(form, vocabularies, num_positions=num_positions)
        spec.optimize(compute_type)
        spec.save(str(folder))


def source_tokens(ids: Iterable[int]) -> list[str]:
    """Return the CTranslate2 tokens of source ids: the ids as text, with PAD and EOS swapped.

    CTranslate2 does not accept a source of only BOS and EOS; so PAD, which no source holds, is its
    EOS.
    """
    swapped = {PAD: EOS, EOS: PAD}
    return [str(swapped.get(i, i)) for i in ids]


def _number_tokens(form: forms.TextForm) -> Vocabularies:
    """Return the ids as names of the tokens."""
    source = () if form.source is None else source_tokens(range(len(form.source.weight)))
    specials = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK, "decoder_start_token": BOS}
    return Vocabularies(
        source=source,
        target=[str(i) for i in range(len(form.writer.output.weight))],
        specials={name: str(token) for name, token in specials.items()},
    )


def _build_specification(
    form: forms.TextForm, vocabularies: Vocabularies, *, num_positions: int
) -> Any:
    specs = importlib.import_module("ctranslate2.specs.transformer_spec")
    kinds = importlib.import_module("ctranslate2.specs.common_spec").Activation
    core, block = form.core, form.core.decoder[0]
    options = {
        "layernorm_embedding": True,  # this and the last norm are deleted if there are none
        "activation": getattr(kinds, _ACTIVATIONS[block.feedforward.activation]),
        "ffn_glu": block.feedforward.gate is not None,
        "rms_norm": block.add_attention.norm.is_rms,
    }
    heads = block.attention.num_heads
    if form.source is None:
        options["alibi"] = block.attention.read.bias is not None
        options["qk_norm"] = block.attention.query_norm is not None
        if block.attention.key_heads != heads:
            options["num_heads_kv"] = block.attention.key_heads
        if (rotary := block.attention.rotary) is not None:
            options["rotary_dim"] = 2 * len(rotary.rates)
            options["rotary_interleave"] = rotary.interleaved
            options["rotary_base"] = _base_of(rotary)
        spec = specs.TransformerDecoderModelSpec.from_config(len(core.decoder), heads, **options)
        spec.register_vocabulary(list(vocabularies.target))
    else:
        layers = len(core.encoder), len(core.decoder)
        spec = specs.TransformerSpec.from_config(layers, heads, **options)
        spec.register_source_vocabulary(list(vocabularies.source))
        spec.register_target_vocabulary(list(vocabularies.target))
        _set_table(spec.encoder, spec.encoder.embeddings[0], form.source)
        norms = core.encoder_embedding_norm, core.encoder_norm
        _set_stack(spec.encoder, core.encoder, norms, core.encoder_positions, num_positions)
    for name, token in vocabularies.specials.items():
        if hasattr(spec.config, name):
            setattr(spec.config, name, token)
    spec.config.add_attribute("layer_norm_epsilon", block.add_feedforward.norm.eps)
    _set_table(spec.decoder, spec.decoder.embeddings, form.writer.inputs)
    spec.decoder.projection.weight = _array(form.writer.output.matrix)
    banned, bias = list(vocabularies.banned), form.writer.bias
    if bias is not None or banned:
        bias = _or_constant(bias, 0, len(form.writer.output.weight)).clone()
        bias[banned] = _NEVER
        spec.decoder.projection.bias = _array(bias)
    norms = core.decoder_embedding_norm, core.decoder_norm
    _set_stack(spec.decoder, core.decoder, norms, core.decoder_positions, num_positions)
    spec.validate()
    return spec


def _unsupported_features(form: forms.TextForm) -> Iterator[str]:
    """Yield the features of a lowered form that CTranslate2 cannot express."""
    width = form.writer.output.matrix.shape[1]
    for attention in parts_of(form, forms.AttentionForm):
        bias, heads = attention.read.bias, attention.num_heads
        if bias is not None and type(bias) is not Alibi:
            yield f"its positional bias is {type(bias).__name__}, which CTranslate2 lacks"
        if type(bias) is Alibi and not torch.equal(bias.slopes, Alibi(heads).slopes):
            yield "its alibi bias has other slopes than those of its number of heads"
        parts = {
            "a sink": attention.read.sink is not None,
            "sigmoids for weights": attention.read.is_sigmoid,
            "gates": attention.gate is not None,
            "registers": attention.register_keys is not None,
            "a memory that is written": attention.written is not None,
            "norms of length 1": attention.query_norm is not None and attention.query_norm.is_l2,
        }
        for name in (name for name, is_there in parts.items() if is_there):
            yield f"its attention has {name}, which CTranslate2 lacks"
        if {len(attention.query.weight), len(attention.output.weight[0])} != {width}:
            yield "its heads together are not as wide as the model"
        if form.source is None:
            continue
        if attention.query_norm is not None:
            yield "it normalizes queries and keys, which CTranslate2 does in language models only"
        if bias is not None:
            yield "it has a positional bias, which CTranslate2 supports for language models only"
        if attention.key_heads != heads:
            yield "it shares keys between heads, which CTranslate2 does in language models only"
    if len({norm.eps for norm in parts_of(form, forms.NormForm)}) > 1:
        yield "its norms have different eps, and CTranslate2 supports one eps only"
    for window in {block.window for block in parts_of(form, forms.BlockForm)} - {None}:
        yield f"its self-attention has a window of {window} items"
    yield from _unsupported_positions(form)


def _unsupported_positions(form: forms.TextForm) -> Iterator[str]:
    rotary, kinds = form.core.decoder[0].attention.rotary, set()
    for block in parts_of(form, forms.BlockForm):
        own = block.attention.rotary
        kinds.add(
            (
                own and tuple(own.rates.tolist()),
                own and own.factor,
                block.attention.read.bias is None,
            )
        )
    if len(kinds) > 1:
        yield "its blocks have different positions"
    if rotary is not None and form.source is not None:
        yield "its positions are rotary, which CTranslate2 supports for language models only"
    if rotary is not None and (_base_of(rotary) is None or rotary.factor != 1):
        yield "its rotary positions are scaled"


def _base_of(rotary: forms.RotaryForm) -> float | None:
    """Return the base of the angles base^(-2j/d); None if they are scaled."""
    pairs = len(rotary.rates)
    base = 10000.0 if pairs == 1 else float(rotary.rates[1]) ** -pairs
    expected = base ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    return base if torch.allclose(rotary.rates, expected, rtol=1e-9, atol=0) else None


def _position_table(
    positions: forms.SinusoidsForm | forms.LearnedForm | None, count: int, width: int
) -> NDArray[Any]:
    match positions:
        case forms.SinusoidsForm(dim):
            return sinusoids(0, count, dim).float().numpy()
        case forms.LearnedForm(weight):
            return _array(weight)
        case None:
            return torch.zeros(count, width, dtype=torch.float32).numpy()


def _set_stack(
    spec: Any,
    blocks: Sequence[forms.BlockForm],
    norms: tuple[forms.NormForm | None, forms.NormForm | None],
    positions: forms.SinusoidsForm | forms.LearnedForm | None,
    num_positions: int,
) -> None:
    width = blocks[0].add_feedforward.norm.size
    if hasattr(spec, "position_encodings"):
        table = _position_table(positions, num_positions, width)
        spec.position_encodings.encodings = table
    spec.pre_norm = blocks[0].add_attention.order == "pre"
    for name, norm in zip(("layernorm_embedding", "layer_norm"), norms, strict=True):
        if norm is None:
            delattr(spec, name)
        else:
            _set_norm(getattr(spec, name), norm)
    for layer, block in zip(spec.layer, blocks, strict=True):
        own, cross = block.attention, block.cross
        _set_attention(layer.self_attention, own, (own.query, own.key, own.value))
        _set_norm(layer.self_attention.layer_norm, block.add_attention.norm)
        if own.query_norm is not None and own.key_norm is not None:
            _set_norm(layer.self_attention.q_norm, own.query_norm)
            _set_norm(layer.self_attention.k_norm, own.key_norm)
        if cross is not None and block.add_cross is not None:
            _set_attention(layer.attention, cross, (cross.query,), (cross.key, cross.value))
            _set_norm(layer.attention.layer_norm, block.add_cross.norm)
        _set_norm(layer.ffn.layer_norm, block.add_feedforward.norm)
        feedforward = block.feedforward
        if feedforward.gate is None:
            _set_linear(layer.ffn.linear_0, feedforward.expand)
        else:
            _set_linear(layer.ffn.linear_0, feedforward.gate)
            _set_linear(layer.ffn.linear_0_noact, feedforward.expand)
        _set_linear(layer.ffn.linear_1, feedforward.contract)


def _set_table(spec: Any, embeddings: Any, table: forms.TableForm) -> None:
    """Set the embeddings of a stack: CTranslate2 scales by the root of the width, or not at all."""
    matrix = table.matrix
    spec.scale_embeddings = table.scale == math.sqrt(matrix.shape[1])
    embeddings.weight = _array(matrix if spec.scale_embeddings else matrix * table.scale)


def _set_attention(
    spec: Any, attention: forms.AttentionForm, *inputs: tuple[forms.LinearForm, ...]
) -> None:
    for linear, parts in zip(spec.linear, (*inputs, (attention.output,)), strict=True):
        _set_linear(linear, *parts)
    score = attention.read.score
    assert isinstance(score, InnerProduct)
    if score.scale != 1 / math.sqrt(len(attention.query.weight) // attention.num_heads):
        spec.queries_scale = score.scale


def _set_linear(spec: Any, *parts: forms.LinearForm) -> None:
    """Set the stacked weights and biases of linear maps of the same input."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    if any(part.bias is not None for part in parts):
        biases = [_or_constant(part.bias, 0, len(part.weight)) for part in parts]
        spec.bias = _array(torch.cat(biases))


def _set_norm(spec: Any, norm: forms.NormForm) -> None:
    spec.gamma = _array(_or_constant(norm.scale, 1, norm.size))
    if not norm.is_rms:
        spec.beta = _array(_or_constant(norm.shift, 0, norm.size))


def _or_constant(weight: Tensor | None, value: float, size: int) -> Tensor:
    return torch.full((size,), float(value), dtype=torch.float32) if weight is None else weight


def _array(weight: Tensor) -> NDArray[Any]:
    return weight.detach().numpy()
