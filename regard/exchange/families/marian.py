"""Marian and Pegasus: encoder-decoders of texts. (junczysdowmunt2018, zhang2020)

    x = c E[id] + P;   logits = h E^T + b
    Marian    x = norm(x + f(x))                     norm order post
    Pegasus   x = x + f(norm(x)), norm(x) at last    norm order pre

Theirs: positions are sines in the first half of a vector, cosines in the second; files of Marian
leave them out. Here they are learned positions, whose number limits the length of a text. c is the
root of the width (scale_embedding) or 1.

A run with two vocabularies that were trained here is written with one: that of the targets, then
that of the sources, of which b is so low that none is generated.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.exchange.families.family import ACTIVATIONS, Config, Family, Field, Tensors
from regard.exchange.rules import within

_NEVER = -1e4
"""Bias of the logit of a token that is never generated; float16 holds it, too."""
_BLOCK = {
    "self_attn.{q,k,v,out}_proj": "attention.{query,key,value,output}",
    "encoder_attn.{q,k,v,out}_proj": "cross.{query,key,value,output}",
    "{self,encoder}_attn_layer_norm": "{add_attention,add_cross}.norm",
    "{fc1,fc2}": "feedforward.{expand,contract}",
    "final_layer_norm": "add_feedforward.norm",
}
_READER, _WRITER, _BIAS = "reader.table.weight", "writer.inputs.table.weight", "writer.output_bias"


def sines(length: int, dim: int) -> Tensor:
    """Return Marian's positions: the sines of all angles, then their cosines."""
    # As Marian computes them, for the same bits.
    angles = np.arange(length)[:, None] / np.power(10000, 2 * (np.arange(dim) // 2) / dim)
    halves = np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])
    return torch.from_numpy(np.concatenate(halves, axis=1)).float()


class Marian(Family):
    """MarianMTModel."""

    tasks: ClassVar[dict[str, str]] = {"MTModel": "translate"}
    fields = (
        Field("vocab_size", None, 58101),
        Field("max_position_embeddings", "core.positions.max_length", 1024),
        Field("d_model", "core.width", 1024),
        Field("encoder_layers", "core.layers", 12),
        Field("decoder_layers", "core.decoder_layers", 12),
        Field("encoder_attention_heads", "core.heads", 16),
        Field("decoder_attention_heads", "core.heads", 16),
        Field("encoder_ffn_dim", "core.feedforward", 4096),
        Field("decoder_ffn_dim", "core.feedforward", 4096),
        Field("activation_function", "core.activation", "gelu", ACTIVATIONS),
        Field("scale_embedding", "embedding_scale", False, {True: "root", False: "one"}),
        Field("dropout", "dropout", 0.1),
        Field("share_encoder_decoder_embeddings", "tie", True, {True: "all", False: "target"}),
    )
    positions_field = "max_position_embeddings"
    implied: ClassVar[dict[str, Any]] = {
        "core.norm_order": "post",
        "core.positions": "learned",
        "output_bias": True,
    }
    fixed: ClassVar[dict[str, Any]] = {"tie_word_embeddings": True}
    tensors: ClassVar[dict[str, str]] = {
        "model.decoder.embed_tokens": "writer.inputs.table",
        "final_logits_bias^1": _BIAS,
        "model.encoder.embed_positions": "core.positions",
        "model.decoder.embed_positions": "core.positions",
        **within("model.{encoder,decoder}.layers.*", "core.{encoder,decoder}.*", _BLOCK),
        "model.{encoder,decoder}.layer_norm": "core.{encoder,decoder}_norm",
    }
    copies: ClassVar[dict[str, str]] = {
        f"{name}.weight": "model.shared.weight"
        for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    }

    def table(self, config: Config) -> Mapping[str, str]:
        is_shared = config["share_encoder_decoder_embeddings"]
        name = "model.shared" if is_shared else "model.encoder.embed_tokens"
        return self.tensors | {name: "reader.table"}

    def run_settings(self, config: Config) -> dict[str, Any]:
        longest = config[self.positions_field]
        decode = {"max_ratio": 0, "max_extra": longest, "max_length": longest}
        return {"data": {"max_length": longest - 1}, "decode": decode}

    def computed(self, config: Config) -> Tensors:
        table = sines(config["max_position_embeddings"], config["d_model"])
        return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}

    def adapt(
        self, model: Any, tensors: Tensors, num_positions: int, run: Any
    ) -> tuple[Any, Tensors]:
        model, tensors = super().adapt(model, tensors, num_positions, run)
        own = dict(tensors)
        if not model.output_bias:
            own[_BIAS] = torch.zeros(len(own.get(_WRITER, own[_READER])))
        is_given = getattr(getattr(run, "tokenizer", None), "kind", None) == "pretrained"
        if model.tie == "target" and not is_given:
            sources = own[_READER]
            own[_READER] = torch.cat((own.pop(_WRITER), sources))
            own[_BIAS] = torch.cat((own[_BIAS], torch.full((len(sources),), _NEVER)))
            model = replace(model, tie="all")
        return replace(model, output_bias=True), own


class Pegasus(Marian):
    """PegasusForConditionalGeneration."""

    tasks: ClassVar[dict[str, str]] = {"ForConditionalGeneration": "translate"}
    implied: ClassVar[dict[str, Any]] = Marian.implied | {"core.norm_order": "pre"}

    def computed(self, config: Config) -> Tensors:
        return {}
