"""T5: encoder-decoder with relative positions. (raffel2020)

    x = E[id];   x = x + attention(RMSNorm(x));   x = x + FFN(RMSNorm(x));   logits = W RMSNorm(x)

Scores are not divided by the root of the head's size, and one table of biases by distance is shared
by the blocks of a stack. v1.0: W = E / sqrt(d), where the factor is folded into the last norm;
v1.1: W of its own, and a gated FFN with gelu_new. Transformers 5 writes tie_word_embeddings true in
both, and scale_decoder_outputs false for v1.1.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import UserError
from regard.exchange.families.family import Config, Family, Field
from regard.exchange.rules import within

_SHARED, _INPUTS = "shared.weight", "decoder.embed_tokens.weight"
_NORM, _HEAD = "decoder.final_layer_norm.weight", "lm_head.weight"
_PROJECTIONS = {"gated-gelu": "gelu-tanh", "gated-silu": "silu", "relu": "relu"}


_THEIRS, _OURS = "{encoder,decoder}", "core.{encoder,decoder}"
_LAST = "{encoder.block.*.layer.1,decoder.block.*.layer.2}"
"""The layer of the feed-forward network of each block."""
_FEEDFORWARD = {"{wi,wo}": "{expand,contract}"}
_GATED = {"{wi_0,wi_1,wo}": "{gate,expand,contract}"}
_SELF = {
    "SelfAttention.{q,k,v,o}": "attention.{query,key,value,output}",
    "layer_norm": "add_attention.norm",
}
_CROSS = {
    "EncDecAttention.{q,k,v,o}": "cross.{query,key,value,output}",
    "layer_norm": "add_cross.norm",
}
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight^T"


class T5(Family):
    """T5ForConditionalGeneration."""

    tasks: ClassVar[dict[str, str]] = {"ForConditionalGeneration": "translate"}
    fields = (
        Field("vocab_size", None, 32128),
        Field("d_model", "core.width", 512),
        Field("d_kv", "core.head_dim", 64),
        Field("d_ff", "core.feedforward", 2048),
        Field("num_layers", "core.layers", 6),
        Field("num_decoder_layers", "core.decoder_layers", None),
        Field("num_heads", "core.heads", 8),
        Field("relative_attention_num_buckets", "core.positions.buckets", 32),
        Field("relative_attention_max_distance", "core.positions.max_distance", 128),
        Field("dropout_rate", "dropout", 0.1),
        Field("layer_norm_epsilon", "core.norm_eps", 1e-6),
        Field("feed_forward_proj", "core.activation", "relu", _PROJECTIONS),
        Field("tie_word_embeddings", "tie", True, {True: "all", False: "none"}),
    )
    positions_field = "n_positions"
    implied: ClassVar[dict[str, Any]] = {
        "core.bias": False,
        "core.norm": "rms",
        "core.score": "dot",
        "core.positions": "relative",
        "embedding_scale": "one",
    }
    tensors: ClassVar[dict[str, str]] = {
        "shared": "reader.table",
        "decoder.embed_tokens": "writer.inputs.table",
        "lm_head": "writer.output_table",
        **within(f"{_THEIRS}.block.*.layer.0", f"{_OURS}.*", _SELF),
        **within("decoder.block.*.layer.1", "core.decoder.*", _CROSS),
        f"{_LAST}.layer_norm": f"{_OURS}.*.add_feedforward.norm",
        f"{_THEIRS}.final_layer_norm": f"{_OURS}_norm",
        f"{_THEIRS}.{_BIAS}": f"{_OURS}.0.attention.read.bias.table",
    }
    copies: ClassVar[dict[str, str]] = {
        "encoder.embed_tokens.weight": _SHARED,
        _INPUTS: _SHARED,
        _HEAD: _SHARED,
    }
    ignored = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    folded = r"(shared|lm_head)\.weight|decoder\.final_layer_norm\.weight"

    def complete(self, config: Config) -> dict[str, Any]:
        is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
        full = super().complete({**config, "tie_word_embeddings": is_scaled})
        *gated, last = full["feed_forward_proj"].split("-")
        name = "gelu_new" if gated and last == "gelu" else last
        for field, expected in {"dense_act_fn": name, "is_gated_act": bool(gated)}.items():
            if full.get(field, expected) != expected:
                raise UserError(f"{field} must be {expected!r} by feed_forward_proj")
        return full

    def table(self, config: Config) -> Mapping[str, str]:
        is_gated = config["feed_forward_proj"].startswith("gated")
        names = _GATED if is_gated else _FEEDFORWARD
        return self.tensors | within(f"{_LAST}.DenseReluDense", f"{_OURS}.*.feedforward", names)

    def read(self, config: Config) -> dict[str, Any]:
        is_gated = config["feed_forward_proj"].startswith("gated")
        return super().read(config) | {"core.gated": is_gated}

    def run_settings(self, config: Config) -> dict[str, Any]:
        return {"decode": {"max_ratio": 0, "max_extra": 512}}

    def fold(self, theirs: dict[str, Tensor], config: Config) -> None:
        if not config["tie_word_embeddings"]:
            if _SHARED in theirs:
                theirs[_INPUTS] = theirs[_SHARED].clone()
                theirs.setdefault(_HEAD, theirs[_SHARED].clone())
        elif _NORM in theirs:
            theirs[_NORM] = theirs[_NORM] * config["d_model"] ** -0.5

    def unfold(self, theirs: dict[str, Tensor], config: Config) -> None:
        if config["tie_word_embeddings"]:
            theirs[_NORM] = theirs[_NORM] * config["d_model"] ** 0.5
        elif not torch.equal(theirs[_SHARED], theirs.pop(_INPUTS)):
            raise UserError("T5 has one table of embeddings, and this run one for each stack")
