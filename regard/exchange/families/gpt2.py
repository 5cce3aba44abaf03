"""GPT-2: causal language model with learned positions. (radford2019)

    x = E[id] + P;   x = x + attention(norm(x));   x = x + FFN(norm(x));   logits = norm(x) E^T

Theirs: matrices of blocks are (in, out), those of queries, keys and values are one. gelu_new is our
gelu-tanh. Without scale_attn_weights scores are not divided by the root of the head's size.
"""

from typing import Any, ClassVar

from regard.exchange.families.family import ACTIVATIONS, Config, Family, Field
from regard.exchange.rules import within

_BLOCK = {
    "{ln_1,ln_2}": "{add_attention,add_feedforward}.norm",
    "attn.{c_attn,c_proj}^T": "attention.{query+key+value,output}",
    "mlp.{c_fc,c_proj}^T": "feedforward.{expand,contract}",
}


class GPT2(Family):
    """GPT2LMHeadModel."""

    tasks: ClassVar[dict[str, str]] = {"LMHeadModel": "language"}
    fields = (
        Field("vocab_size", None, 50257),
        Field("n_positions", "core.positions.max_length", 1024),
        Field("n_embd", "core.width", 768),
        Field("n_layer", "core.layers", 12),
        Field("n_head", "core.heads", 12),
        Field("n_inner", "core.feedforward", None),
        Field("activation_function", "core.activation", "gelu_new", ACTIVATIONS),
        Field("resid_pdrop", "dropout", 0.1),
        Field("layer_norm_epsilon", "core.norm_eps", 1e-5),
        Field("scale_attn_weights", "core.score", True, {True: "scaled-dot", False: "dot"}),
    )
    positions_field = "n_positions"
    implied: ClassVar[dict[str, Any]] = {
        "core.positions": "learned",
        "embedding_scale": "one",
    }
    fixed: ClassVar[dict[str, Any]] = {
        "add_cross_attention": False,
        "is_causal": True,
        "reorder_and_upcast_attn": False,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }
    tensors: ClassVar[dict[str, str]] = {
        "transformer.{wte,wpe}": "{writer.inputs.table,core.positions}",
        **within("transformer.h.*", "core.decoder.*", _BLOCK),
        "transformer.ln_f": "core.decoder_norm",
    }
    copies: ClassVar[dict[str, str]] = {"lm_head.weight": "transformer.wte.weight"}
    renamed: ClassVar[dict[str, str]] = {r"^(?!transformer\.|lm_head\.)": "transformer."}
    ignored = r"transformer\.h\.\d+\.attn\.(masked_)?bias"

    def read(self, config: Config) -> dict[str, Any]:
        return {"core.feedforward": 4 * config["n_embd"]} | super().read(config)
