"""From a Transformer of this library to CTranslate2's specification of the same one.

    queries, keys, values of self-attention      one matrix [W_q; W_k; W_v]
    of attention to the source                   W_q, and [W_k; W_v]
    positions                                    a table of the vectors that are added: sines, learned, or noughts
    the score <q, k>                             a scale of 1 in place of 1 / sqrt(d)

What CTranslate2 has no place for is refused, with the reason: `refusal` looks at the parts that the model is made of
and needs no other package. Vocabularies are the ids written as numbers, so that tokenisers stay the caller's.
"""

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.choices import Soft
from regard.attention.positional import Alibi
from regard.attention.scores import Dot, ScaledDot
from regard.data.tokenise import BOS, EOS, PAD, UNK
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.feedforward import FeedForward
from regard.layers.multihead import MultiHead
from regard.layers.positions import Learned, Sinusoidal, sinusoids
from regard.models.cores.transformer import TransformerCore
from regard.models.language import LanguageModel
from regard.models.model import Model
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter

__all__ = ["most_positions", "refusal", "source_words", "specification"]


_SCORES = (Dot, ScaledDot)


def refusal(model: nn.Module) -> str | None:
    """Why CTranslate2 cannot run this model; None if it can."""
    if type(model) not in (Model, LanguageModel):
        return f"it writes no texts, but is a {type(model).__name__}"
    if not isinstance(model.core, TransformerCore):
        return f"its core is no Transformer, but a {type(model.core).__name__}"
    if type(model.reads) is not TokenReader:
        return f"it reads no tokens, but has a {type(model.reads).__name__}"
    if isinstance(model, Model) and (type(model.writes) is not TokenWriter or not model.core.in_order):
        return f"it writes no tokens in order, but has a {type(model.writes).__name__}"
    if next(model.parameters()).device.type != "cpu":
        return f"it is on {next(model.parameters()).device}, and the conversion is for the processor (device cpu)"
    return _of_blocks(model.core)


def _of_blocks(core: TransformerCore) -> str | None:
    alone = not len(core.encoder)
    for block in (*core.encoder.children(), *core.decoder.children()):
        if not isinstance(block, EncoderBlock | DecoderBlock):
            return "its encoder reads by way of inducing points"
        if isinstance(block, DecoderBlock) and block.window is not None:
            return f"its decoder sees a window of {block.window} targets"
        for attention in (block.attention, getattr(block, "cross", None)):
            if attention is not None and (reason := _of_attention(attention, core.width, alone=alone)):
                return reason
    return None


def _of_attention(attention: MultiHead, width: int, *, alone: bool) -> str | None:
    score, choose, bias = attention.read.score, attention.read.choose, attention.read.bias
    is_plain = type(choose) is Soft and isinstance(choose.beta, float | int) and choose.beta == 1
    sizes = {attention.query.out_features, attention.value.out_features, width}
    reasons = {
        f"its score is {type(score).__name__}, and only inner products are known there": type(score) not in _SCORES,
        f"its choice is {choose}, and only a plain softmax is known there": not is_plain,
        "its encoder has positions by distance (alibi), which are known there for language models alone": (
            type(bias) is Alibi and not alone
        ),
        f"its positions are {type(bias).__name__}, which is not what is known there": (
            bias is not None and type(bias) is not Alibi
        ),
        f"its {attention.num_heads} heads share {attention.key_heads} heads of keys and values": (
            attention.key_heads != attention.num_heads
        ),
        "its heads together are not as wide as the model (head_dim or head_value_dim was given)": len(sizes) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def most_positions(model: Any) -> int | None:
    """Places that learned positions serve; None where there is no limit."""
    positions = model.core.positions
    return positions.weight.shape[0] if isinstance(positions, Learned) else None


def source_words(ids: Iterable[int]) -> list[str]:
    """What the ids of a source are called there: their numbers, but PAD and EOS swapped.

    CTranslate2 does not read a source of BOS and EOS alone; PAD, which no source holds, is what it takes for EOS.
    """
    other = {PAD: EOS, EOS: PAD}
    return [str(other.get(i, i)) for i in ids]


def specification(model: Any, *, places: int) -> Any:
    """CTranslate2's specification of a model that is not refused, with float32 weights; save(folder) writes it.

    places: how many positions there are, for kinds without a limit.
    """
    specs = importlib.import_module("ctranslate2.specs.transformer_spec")
    is_alone = isinstance(model, LanguageModel)
    core: TransformerCore = model.core
    block = next(core.decoder.children())
    assert isinstance(block, DecoderBlock)
    how = {"pre_norm": block.add_attention.order == "pre", "activation": _activation(block.feedforward)}
    heads = block.attention.num_heads
    vocabulary = [str(i) for i in range(_target_table(model).shape[0])]
    if is_alone:
        how["alibi"] = block.attention.read.bias is not None
        spec = specs.TransformerDecoderModelSpec.from_config(len(core.decoder), heads, **how)
        spec.register_vocabulary(vocabulary)
    else:
        spec = specs.TransformerSpec.from_config((len(core.encoder), len(core.decoder)), heads, **how)
        spec.register_source_vocabulary(source_words(range(model.reads.table.num_embeddings)))
        spec.register_target_vocabulary(vocabulary)
        spec.config.decoder_start_token = str(BOS)
        spec.encoder.embeddings[0].weight = _array(model.reads.table.weight)
        _stack(spec.encoder, core.encoder, core.encoder_norm, _positions(core, places))
    for name, token in (("bos", BOS), ("eos", EOS), ("unk", UNK)):
        setattr(spec.config, f"{name}_token", str(token))
    spec.decoder.embeddings.weight = _array(model.reads.table.weight if is_alone else model.writes.inputs.table.weight)
    spec.decoder.projection.weight = _array(_target_table(model))
    _stack(spec.decoder, core.decoder, core.decoder_norm, _positions(core, places))
    spec.validate()
    spec.optimize()
    return spec


def _target_table(model: Any) -> Tensor:
    return model.reads.table.weight if isinstance(model, LanguageModel) else model.writes.output_table.weight


def _activation(feedforward: FeedForward) -> Any:
    kinds = importlib.import_module("ctranslate2.specs.common_spec").Activation
    return {"relu": kinds.RELU, "gelu": kinds.GELU}[feedforward.activation]


def _positions(core: TransformerCore, places: int) -> NDArray[Any]:
    if isinstance(core.positions, Sinusoidal):
        return sinusoids(0, places, core.width).numpy()
    if isinstance(core.positions, Learned):
        return _array(core.positions.weight)
    return torch.zeros(places, core.width).numpy()


def _stack(spec: Any, blocks: nn.ModuleList, norm: nn.Module, positions: NDArray[Any]) -> None:
    """A stack of blocks, its positions and its last norm."""
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = positions
    if isinstance(norm, nn.LayerNorm):
        _norm(spec.layer_norm, norm)
    for layer, block in zip(spec.layer, blocks.children(), strict=True):
        assert isinstance(block, EncoderBlock | DecoderBlock)
        own = block.attention
        _attention(layer.self_attention, own, (own.query, own.key, own.value))
        _norm(layer.self_attention.layer_norm, block.add_attention.norm)
        if isinstance(block, DecoderBlock) and block.cross is not None and block.add_cross is not None:
            cross = block.cross
            _attention(layer.attention, cross, (cross.query,), (cross.key, cross.value))
            _norm(layer.attention.layer_norm, block.add_cross.norm)
        _norm(layer.ffn.layer_norm, block.add_feedforward.norm)
        _linear(layer.ffn.linear_0, block.feedforward.expand)
        _linear(layer.ffn.linear_1, block.feedforward.contract)


def _attention(spec: Any, attention: MultiHead, *inputs: tuple[nn.Linear, ...]) -> None:
    for place, parts in zip(spec.linear, (*inputs, (attention.output,)), strict=True):
        _linear(place, *parts)
    if isinstance(attention.read.score, Dot):
        spec.queries_scale = 1.0


def _linear(spec: Any, *parts: nn.Linear) -> None:
    """Linear maps of the same input, stacked."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    if parts[0].bias is not None:
        spec.bias = _array(torch.cat([part.bias for part in parts]))


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(weight: Tensor) -> NDArray[Any]:
    return weight.detach().float().numpy()
