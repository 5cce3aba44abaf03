"""BERT, RoBERTa and DistilBERT: encoders with a class for a text or for each token. (devlin2019,
liu2019, sanh2019)

    x = norm(E[id] + P + T[0]);   x = norm(x + attention(x));   x = norm(x + FFN(x))
    scores = W f(V x_1 + c) + b     of a text, from the state of [CLS]; f = tanh, relu in DistilBERT
    scores = W x_i + b              of each token

One segment is read, so that its vector T[0] is folded into the positions P. Those of RoBERTa begin
at the id of padding plus one.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.exchange.families.family import ACTIVATIONS, ENCODER_FIELDS, Config, Family, Field
from regard.exchange.rules import within

_OURS = "core.encoder.*"
_EMBEDDINGS = {
    "embeddings.{word,position}_embeddings": "{reader.table,core.positions}",
    "embeddings.LayerNorm": "core.encoder_embedding_norm",
}
_BLOCK = {
    "attention.self.{query,key,value}": "attention.{query,key,value}",
    "attention.output.{dense,LayerNorm}": "{attention.output,add_attention.norm}",
    "intermediate.dense": "feedforward.expand",
    "output.{dense,LayerNorm}": "{feedforward.contract,add_feedforward.norm}",
}
_DISTIL_BLOCK = {
    "attention.{q,k,v,out}_lin": "attention.{query,key,value,output}",
    "{sa,output}_layer_norm": "{add_attention,add_feedforward}.norm",
    "ffn.{lin1,lin2}": "feedforward.{expand,contract}",
}


_ENCODER = _EMBEDDINGS | within("encoder.layer.*", _OURS, _BLOCK)


class Bert(Family):
    """Classifiers of texts and tokens, and encoders without one."""

    tasks: ClassVar[dict[str, str]] = {
        "ForSequenceClassification": "reviews",
        "ForTokenClassification": "tags",
    }
    bases = ("Model", "ForMaskedLM", "ForPreTraining")
    fields: ClassVar[tuple[Field, ...]] = (
        *ENCODER_FIELDS,
        Field("vocab_size", None, 30522),
        Field("hidden_dropout_prob", "dropout", 0.1),
        Field("type_vocab_size", None, 2),
        Field("max_position_embeddings", None, 512),
    )
    positions_field = "max_position_embeddings"
    offset: ClassVar[int] = 0
    """Position of the first token."""
    implied: ClassVar[dict[str, Any]] = {
        "core.norm_order": "post",
        "core.embedding_norm": True,
        "core.positions": "learned",
        "embedding_scale": "one",
        "head_norm": False,
    }
    head: ClassVar[str] = "tanh"
    fixed: ClassVar[dict[str, Any]] = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    inner: ClassVar[dict[str, str]] = _ENCODER | {"pooler.dense": "writer.dense"}
    tensors: ClassVar[dict[str, str]] = {"classifier": "writer.output"}
    unused = r"(cls|lm_head|vocab_\w+|(\w+\.)?pooler)\..*"
    renamed: ClassVar[dict[str, str]] = {
        r"LayerNorm\.gamma$": "LayerNorm.weight",
        r"LayerNorm\.beta$": "LayerNorm.bias",
    }
    ignored = r".*\.position_ids"
    folded = r".*\.(position|token_type)_embeddings\.weight"

    def read(self, config: Config) -> dict[str, Any]:
        settings = super().read(config)
        settings["core.positions.max_length"] = config[self.positions_field] - self.offset
        if config["recipe"] == "reviews":
            settings |= {"pool": "cls", "head": self.head}
        return settings

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        return super().write(settings, num_positions + self.offset, run)

    def run_settings(self, config: Config) -> dict[str, Any]:
        return {"data": {"max_length": config[self.positions_field] - self.offset}}

    def fold(self, theirs: dict[str, Tensor], config: Config) -> None:
        for name in [name for name in theirs if name.endswith(".token_type_embeddings.weight")]:
            positions = name.replace("token_type", "position")
            theirs[positions] = theirs[positions][self.offset :] + theirs.pop(name)[0]

    def unfold(self, theirs: dict[str, Tensor], config: Config) -> None:
        for name in [name for name in theirs if name.endswith(".position_embeddings.weight")]:
            positions, width = theirs[name], theirs[name].shape[1]
            theirs[name] = torch.cat((positions.new_zeros(self.offset, width), positions))
            if "type_vocab_size" in config:
                segments = positions.new_zeros(config["type_vocab_size"], width)
                theirs[name.replace("position", "token_type")] = segments


class Roberta(Bert):
    """RoBERTa: another classification head, and positions that begin at the third row."""

    offset = 2
    inner: ClassVar[dict[str, str]] = _ENCODER
    fixed: ClassVar[dict[str, Any]] = Bert.fixed | {"pad_token_id": 1}

    def table(self, config: Config) -> Mapping[str, str]:
        table = {**super().table(config)}
        if config["recipe"] == "reviews":
            del table["classifier"]
            table["classifier.{dense,out_proj}"] = "writer.{dense,output}"
        return table


class DistilBert(Bert):
    """DistilBERT: no segments, and relu in the classification head."""

    fields: ClassVar[tuple[Field, ...]] = (
        Field("vocab_size", None, 30522),
        Field("dim", "core.width", 768),
        Field("n_layers", "core.layers", 6),
        Field("n_heads", "core.heads", 12),
        Field("hidden_dim", "core.feedforward", 3072),
        Field("activation", "core.activation", "gelu", ACTIVATIONS),
        Field("dropout", "dropout", 0.1),
        Field("max_position_embeddings", None, 512),
    )
    implied: ClassVar[dict[str, Any]] = Bert.implied | {"core.norm_eps": 1e-12}
    head = "relu"
    fixed: ClassVar[dict[str, Any]] = {"sinusoidal_pos_embds": False}
    inner = _EMBEDDINGS | within("transformer.layer.*", _OURS, _DISTIL_BLOCK)
    tensors: ClassVar[dict[str, str]] = {"{pre_classifier,classifier}": "writer.{dense,output}"}
