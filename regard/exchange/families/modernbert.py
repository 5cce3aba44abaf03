"""ModernBERT: encoder with windows and rotary positions, and a class for a text or for each token.
(warner2024)

    x = norm(E[id]);   x = x + attention(norm(x));   x = x + W_2 (gelu(W_g norm(x)) * (W_1 norm(x)))
    scores = W norm(gelu(V norm(x)_i)) + b       of a text: of the state of [CLS], or of the mean

The first block has no norm before its attention. Every third layer, from the first on, reads all
items; the others those at most local_attention // 2 away, with a rotary base of their own.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from regard.errors import UserError
from regard.exchange.families.bert import Bert
from regard.exchange.families.family import ACTIVATIONS, Config, Family, Field
from regard.exchange.rules import within

_KINDS = {"full_attention": "L", "sliding_attention": "S"}
"""Letters of `pattern` by their names."""
_BASES = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}
"""Fields of the rotary base in files of earlier years, and the base of files without them."""


class ModernBert(Bert):
    """Classifiers of texts and tokens, and encoders without one."""

    bases = ("Model", "ForMaskedLM")
    fields: ClassVar[tuple[Field, ...]] = (
        Field("vocab_size", None, 50368),
        Field("hidden_size", "core.width", 768),
        Field("num_hidden_layers", "core.layers", 22),
        Field("num_attention_heads", "core.heads", 12),
        Field("intermediate_size", "core.feedforward", 1152),
        Field("hidden_activation", "core.activation", "gelu", ACTIVATIONS),
        Field("embedding_dropout", "dropout", 0.0),
        Field("norm_bias", "core.bias", False),
        Field("mlp_bias", "core.bias", False),
        Field("attention_bias", "core.attention_bias", False, {True: "all", False: "none"}),
        Field("classifier_bias", "head_bias", False),
        Field("classifier_pooling", None, "cls"),
        Field("local_attention", "core.window", 128),
        Field("max_position_embeddings", None, 8192),
    )
    implied: ClassVar[dict[str, Any]] = {
        "core.embedding_norm": True,
        "core.first_norm": False,
        "core.gated": True,
        "core.positions": "rotary",
        "core.norm_eps": 1e-5,
        "embedding_scale": "one",
        "head": "gelu",
    }
    fixed: ClassVar[dict[str, Any]] = {"classifier_activation": "gelu", "norm_eps": 1e-5}
    special_ids = ("pad", "bos", "eos")
    inner: ClassVar[dict[str, str]] = {
        "embeddings.{tok_embeddings,norm}": "{reader.table,core.encoder_embedding_norm}",
        "final_norm": "core.encoder_norm",
    } | within(
        "layers.*",
        "core.encoder.*",
        {
            "{attn,mlp}_norm": "{add_attention,add_feedforward}.norm",
            "attn.Wqkv": "attention.query+key+value",
            "attn.Wo": "attention.output",
            "mlp.Wi": "feedforward.gate+expand",
            "mlp.Wo": "feedforward.contract",
        },
    )
    tensors: ClassVar[dict[str, str]] = {
        "head.{dense,norm}": "writer.{dense,norm}",
        "classifier": "writer.output",
    }
    unused = r"decoder\..*"
    folded = r"$^"

    def prefix(self, config: Config) -> str:
        return "" if self.task(config) == "Model" else "model."

    def complete(self, config: Config) -> dict[str, Any]:
        full = super().complete(config)
        if full["classifier_bias"] != full["norm_bias"]:
            raise UserError(
                f"classifier_bias must equal norm_bias={full['norm_bias']}, got "
                f"{full['classifier_bias']}"
            )
        for name in ("rope_scaling", "sliding_window"):
            if full.get(name) is not None:
                raise UserError(f"{name} has no place here, got {full[name]!r}")
        every, count = full.get("global_attn_every_n_layers", 3), full["num_hidden_layers"]
        default = [_name(i % every == 0) for i in range(count)]
        kinds = full["layer_types"] = full.get("layer_types") or default
        if len(kinds) != count or not set(kinds) <= set(_KINDS):
            known = " or ".join(_KINDS)
            raise UserError(f"layer_types must be {count} times {known}, got {kinds}")
        return full

    def read(self, config: Config) -> dict[str, Any]:
        settings, bases = Family.read(self, config), dict[str, Any]()
        for kind, (name, default) in _BASES.items():
            given = (config.get("rope_parameters") or {}).get(kind) or {}
            if given.get("rope_type", "default") != "default":
                raise UserError(f"rope_type must be default, got {given['rope_type']!r}")
            bases[kind] = given.get("rope_theta", config.get(name, default))
        whole = bases["full_attention"]
        local = whole if bases["sliding_attention"] is None else bases["sliding_attention"]
        letters = "".join(_KINDS[kind] for kind in config["layer_types"])
        settings |= {"core.pattern": letters, "core.positions.base": whole}
        if "S" not in letters:
            del settings["core.pattern"], settings["core.window"]
        elif "L" not in letters:
            settings["core.positions.base"] = local
        else:
            settings["core.positions.window_base"] = local
        if config["recipe"] == "reviews":
            settings["pool"] = config["classifier_pooling"]
        return settings

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        config = super().write(settings, num_positions, run)
        letters = settings["core.pattern"] or "L" * settings["core.layers"]
        base = settings.get("core.positions.base", 10_000.0)
        bases = base, settings.get("core.positions.window_base") or base
        return config | {
            "classifier_bias": config["norm_bias"],
            "classifier_pooling": settings.get("pool", "cls"),
            "local_attention": settings["core.window"] or 128,
            "layer_types": [_name(letter == "L") for letter in letters],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in zip(_BASES, bases, strict=True)
            },
        }


def _name(is_whole: bool) -> str:
    return "full_attention" if is_whole else "sliding_attention"
