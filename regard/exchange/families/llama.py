"""Llama, Qwen2 and Qwen3: causal language models with rotary positions. (touvron2023,
yang2024, yang2025)

    x = E[id];   x = x + attention(RMSNorm(x));   x = x + FFN(RMSNorm(x));   logits = RMSNorm(x) W^T
    FFN(x) = W_2 (f(W_g x) * (W_1 x))

Qwen2: biases of queries, keys and values alone; a run of ours with these is a Llama whose biases of
the output are 0, as Transformers 5 replaces the tokenizer of any Qwen2. Qwen3: norms of the queries
and keys of each head. Theirs rotate halves of a head, as ours do. Angles are those of the base
(default), divided by factor (linear), llama3 or yarn.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from regard.errors import UserError
from regard.exchange.families.family import ACTIVATIONS, Config, Family, Field, Tensors
from regard.exchange.rules import within
from regard.layers.positions.config import SCALINGS

_BLOCK = {
    "{input,post_attention}_layernorm": "{add_attention,add_feedforward}.norm",
    "self_attn.{q,k,v,o}_proj": "attention.{query,key,value,output}",
    "mlp.{gate,up,down}_proj": "feedforward.{gate,expand,contract}",
}
_OPTIONAL = ("beta_slow", "beta_fast", "attention_factor", "truncate")
_LENGTH = "original_max_position_embeddings"


def _setting(field: str) -> str:
    return f"core.positions.{field.replace(_LENGTH, 'original_max_length')}"


def _fields(scaling: str) -> list[str]:
    """Return the fields of a scaling of the angles."""
    return [name.replace("original_max_length", _LENGTH) for name in SCALINGS[scaling]]


class Llama(Family):
    """LlamaForCausalLM."""

    tasks: ClassVar[dict[str, str]] = {"ForCausalLM": "language"}
    fields: ClassVar[tuple[Field, ...]] = (
        Field("vocab_size", None, 32000),
        Field("hidden_size", "core.width", 4096),
        Field("intermediate_size", "core.feedforward", 11008),
        Field("num_hidden_layers", "core.layers", 32),
        Field("num_attention_heads", "core.heads", 32),
        Field("num_key_value_heads", "core.key_heads", None),
        Field("head_dim", "core.head_dim", None),
        Field("hidden_act", "core.activation", "silu", ACTIVATIONS),
        Field("max_position_embeddings", None, 2048),
        Field("rms_norm_eps", "core.norm_eps", 1e-6),
        Field("attention_bias", "core.attention_bias", False, {True: "all", False: "none"}),
        Field("mlp_bias", "core.bias", False),
        Field("tie_word_embeddings", "tie", False, {True: "target", False: "none"}),
    )
    positions_field = "max_position_embeddings"
    implied: ClassVar[dict[str, Any]] = {
        "core.gated": True,
        "core.norm": "rms",
        "core.positions": "rotary",
        "embedding_scale": "one",
    }
    fixed: ClassVar[dict[str, Any]] = {"is_causal": True}
    tensors: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "writer.inputs.table",
        **within("model.layers.*", "core.decoder.*", _BLOCK),
        "model.norm": "core.decoder_norm",
        "lm_head": "writer.output_table",
    }
    copies: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    ignored = r".*rotary_emb\.inv_freq"

    def complete(self, config: Config) -> dict[str, Any]:
        full = super().complete(config)
        kinds = set(full.get("layer_types") or ()) - {"full_attention"}
        if kinds:
            raise UserError(f"layer_types must be full_attention, got {', '.join(sorted(kinds))}")
        return full

    def read(self, config: Config) -> dict[str, Any]:
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(given, dict):
            raise UserError(f"rope_scaling must be an object, got {given!r}")
        kind = given.get("rope_type", given.get("type", "default"))
        scaling = "none" if kind == "default" else kind
        if scaling not in SCALINGS:
            raise UserError(f"rope_type must be default, linear, llama3 or yarn, got {kind!r}")
        if given.get("partial_rotary_factor", 1.0) != 1.0:
            raise UserError(f"partial_rotary_factor must be 1, got {given}")
        if scaling == "yarn" and (given.get("mscale") or given.get("mscale_all_dim")):
            raise UserError(f"mscale and mscale_all_dim have no place here, got {given}")
        missing = [name for name in _fields(scaling) if name not in (*given, *_OPTIONAL)]
        if missing:
            raise UserError(f"rope_parameters: {missing[0]} is missing, which {kind} needs")
        base = given.get("rope_theta", config.get("rope_theta", 10000.0))
        angles = {_setting(field): given[field] for field in _fields(scaling) if field in given}
        own = {_setting("base"): base, _setting("scaling"): scaling}
        return super().read(config) | angles | own

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        scaling, base = settings.get(_setting("scaling"), "none"), _setting("base")
        kind = "default" if scaling == "none" else scaling
        angles = {"rope_type": kind, "rope_theta": settings.get(base, 10000.0)}
        angles |= {field: settings[_setting(field)] for field in _fields(scaling)}
        return super().write(settings, num_positions, run) | {"rope_parameters": angles}

    def adapt(
        self, model: Any, tensors: Tensors, num_positions: int, run: Any
    ) -> tuple[Any, Tensors]:
        core = model.core
        if core.attention_bias != "qkv" or self.name != "Llama":
            return model, tensors
        zeros = {
            f"core.decoder.{layer}.attention.output.bias": torch.zeros(core.width)
            for layer in range(core.decoder_layers or core.layers)
        }
        return replace(model, core=replace(core, attention_bias="all")), {**tensors, **zeros}


class Qwen2(Llama):
    """Qwen2ForCausalLM."""

    fields: ClassVar[tuple[Field, ...]] = tuple(
        field for field in Llama.fields if not field.name.endswith("_bias")
    )
    implied: ClassVar[dict[str, Any]] = Llama.implied | {
        "core.bias": False,
        "core.attention_bias": "qkv",
    }
    fixed: ClassVar[dict[str, Any]] = Llama.fixed | {"use_sliding_window": False}


class Qwen3(Llama):
    """Qwen3ForCausalLM."""

    fields: ClassVar[tuple[Field, ...]] = tuple(
        field._replace(default=128) if field.name == "head_dim" else field
        for field in Llama.fields
        if field.name != "mlp_bias"
    )
    implied: ClassVar[dict[str, Any]] = Llama.implied | {
        "core.bias": False,
        "core.qk_norm": "rms",
    }
    fixed: ClassVar[dict[str, Any]] = Llama.fixed | {"use_sliding_window": False}
    tensors: ClassVar[dict[str, str]] = Llama.tensors | {
        "model.layers.*.self_attn.{q,k}_norm": "core.decoder.*.attention.{query,key}_norm",
    }
