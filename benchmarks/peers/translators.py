"""The same encoder-decoder in each library: post norm (x-transformers, JoeyNMT and OpenNMT-py:
pre), one tied table.

    peer(name, sizes, attention_dropout) -> (module, mean_loss)       mean_loss(Batch) -> scalar,
    label smoothing 0.1

Dropout is 0.1 in each library's default positions; `attention_dropout` is that of the attention
weights, which this library does not have. x-transformers cannot tie its output layer: more
parameters, the same arithmetic.
"""

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.material import VOCAB, inputs_and_targets
from regard.data.batches import PairBatch, count_target_tokens
from regard.models.cores.config import TransformerConfig

__all__ = ["DROPOUT", "PEERS", "SIZES", "SMOOTHING", "flops", "marian", "peer"]

SIZES = {
    "4+4 x 128": TransformerConfig(
        layers=4, width=128, heads=4, feedforward=256, norm_order="post"
    ),
    "6+6 x 512": TransformerConfig(
        layers=6, width=512, heads=8, feedforward=2048, norm_order="post"
    ),
}
DROPOUT, SMOOTHING = 0.1, 0.1
_LONGEST = 256

MeanLoss = Callable[[PairBatch], Tensor]


def flops(config: TransformerConfig, batch: PairBatch) -> float:
    """Return 6 N per token, N the parameters of the matrix products for it; without padding and
    attention scores."""
    width, inner, layers = config.width, int(config.feedforward), config.layers
    block = 4 * width**2 + 2 * width * inner
    source_weights = layers * (block + 2 * width**2)
    target_weights = layers * (block + 2 * width**2) + VOCAB * width
    return 6 * (
        source_weights * int(batch.source.lengths.sum())
        + target_weights * count_target_tokens(batch)
    )


def peer(
    name: str, config: TransformerConfig, attention_dropout: float = DROPOUT
) -> tuple[nn.Module, MeanLoss]:
    """Return a newly initialized model of a peer, and its loss."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    return PEERS[name](config, attention_dropout)


def _mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.flatten(),
        ignore_index=0,
        label_smoothing=SMOOTHING,
    )


class _Torch(nn.Module):
    """torch.nn.Transformer with a tied table and sinusoidal positions."""

    def __init__(self, config: TransformerConfig, attention_dropout: float):
        super().__init__()
        width, layers = config.width, config.layers
        self.table = nn.Embedding(VOCAB, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        angle = torch.arange(float(_LONGEST))[:, None] * torch.exp(
            torch.arange(0, width, 2) * (-math.log(1e4) / width)
        )
        self.register_buffer("positions", torch.cat((angle.sin(), angle.cos()), -1))
        self.dropout = nn.Dropout(DROPOUT)
        self.core = nn.Transformer(
            width, config.heads, layers, layers, int(config.feedforward), DROPOUT, batch_first=True
        )
        for module in self.core.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = attention_dropout

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(
            self.table(ids) * math.sqrt(self.table.embedding_dim) + self.positions[: ids.shape[1]]
        )

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        padding, length = source.eq(0), inputs.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=inputs.device).triu(1)
        hidden = self.core(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(hidden, self.table.weight)


def _torch(config: TransformerConfig, attention_dropout: float) -> tuple[nn.Module, MeanLoss]:
    model = _Torch(config, attention_dropout)

    def mean_loss(batch: PairBatch) -> Tensor:
        source, inputs, targets = inputs_and_targets(batch)
        return _mean_loss(model(source, inputs), targets)

    return model, mean_loss


def _settings(config: TransformerConfig, attention_dropout: float) -> dict[str, Any]:
    """Return the configuration of Transformers' encoder-decoders."""
    sizes = {"vocab_size": VOCAB, "d_model": config.width, "max_position_embeddings": _LONGEST}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": config.layers, f"{side}_attention_heads": config.heads}
        sizes |= {f"{side}_ffn_dim": int(config.feedforward)}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    rates = {"dropout": DROPOUT, "attention_dropout": attention_dropout, "activation_dropout": 0.0}
    form = {"activation_function": "relu", "scale_embedding": True, "forced_eos_token_id": None}
    return sizes | ids | rates | form


def marian(config: TransformerConfig, attention_dropout: float = DROPOUT) -> Any:
    """Return Transformers' MarianMTModel with SDPA attention."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415  # each peer is imported only if needed

    return MarianMTModel._from_config(
        MarianConfig(**_settings(config, attention_dropout)), attn_implementation="sdpa"
    )


def _bart(config: TransformerConfig, attention_dropout: float) -> tuple[nn.Module, MeanLoss]:
    from transformers import BartConfig, BartForConditionalGeneration  # noqa: PLC0415

    settings = BartConfig(**_settings(config, attention_dropout))
    return _transformers(
        BartForConditionalGeneration._from_config(settings, attn_implementation="sdpa")
    )


def _transformers(model: Any) -> tuple[nn.Module, MeanLoss]:
    def mean_loss(batch: PairBatch) -> Tensor:
        source, inputs, targets = inputs_and_targets(batch)
        mask = source.ne(0).long()
        out = model(
            input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
        )
        return _mean_loss(out.logits, targets)

    return model, mean_loss


def _x_transformers(
    config: TransformerConfig, attention_dropout: float
) -> tuple[nn.Module, MeanLoss]:
    from x_transformers import XTransformer  # noqa: PLC0415

    side = {
        "num_tokens": VOCAB,
        "depth": config.layers,
        "heads": config.heads,
        "attn_dim_head": config.width // config.heads,
        "ff_mult": int(config.feedforward) // config.width,
        "max_seq_len": _LONGEST,
        "attn_flash": True,
        "attn_dropout": attention_dropout,
        "ff_dropout": DROPOUT,
        "emb_dropout": DROPOUT,
    }
    sides = {f"{name}_{key}": value for name in ("enc", "dec") for key, value in side.items()}
    model = XTransformer(dim=config.width, tie_token_emb=True, pad_value=0, ignore_index=0, **sides)

    def mean_loss(batch: PairBatch) -> Tensor:
        source, inputs, targets = inputs_and_targets(batch)
        mask = source.ne(0)
        read = model.encoder(source, mask=mask, return_embeddings=True)
        return _mean_loss(model.decoder.net(inputs, context=read, context_mask=mask), targets)

    return model, mean_loss


def _joeynmt(config: TransformerConfig, attention_dropout: float) -> tuple[nn.Module, MeanLoss]:
    from benchmarks.peers import joeynmt  # noqa: PLC0415

    if attention_dropout != DROPOUT:
        raise ValueError("JoeyNMT has one dropout rate for all layers")
    side = {
        "type": "transformer",
        "num_layers": config.layers,
        "num_heads": config.heads,
        "hidden_size": config.width,
    }
    side |= {
        "ff_size": int(config.feedforward),
        "dropout": DROPOUT,
        "layer_norm": "pre",
        "activation": "relu",
    }
    return joeynmt.model(VOCAB, side, side, width=config.width, smoothing=SMOOTHING)


def _opennmt(config: TransformerConfig, attention_dropout: float) -> tuple[nn.Module, MeanLoss]:
    import sys  # noqa: PLC0415

    for absent in ("spacy", "fasttext"):  # imported by its data transforms, which no model needs
        sys.modules.setdefault(absent, SimpleNamespace(__name__=absent))  # type: ignore[arg-type]
    from onmt.decoders.transformer import TransformerDecoder  # noqa: PLC0415
    from onmt.encoders.transformer import TransformerEncoder  # noqa: PLC0415
    from onmt.models import NMTModel  # noqa: PLC0415
    from onmt.modules.embeddings import Embeddings  # noqa: PLC0415

    width, heads, layers, inner = config.width, config.heads, config.layers, int(config.feedforward)
    encoder_embeddings, decoder_embeddings = (
        Embeddings(width, VOCAB, 0, position_encoding=True, dropout=DROPOUT) for _ in range(2)
    )
    decoder_embeddings.word_lut.weight = encoder_embeddings.word_lut.weight
    encoder = TransformerEncoder(
        layers, width, heads, inner, DROPOUT, attention_dropout, encoder_embeddings, 0, 0
    )
    sizes = (
        layers,
        width,
        heads,
        inner,
        False,
        "scaled-dot",
        DROPOUT,
        attention_dropout,
        decoder_embeddings,
    )
    model = NMTModel(encoder, TransformerDecoder(*sizes, 0, 0, False, False, None, 0))
    model.generator = nn.Linear(width, VOCAB)
    model.generator.weight = encoder_embeddings.word_lut.weight
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)

    def mean_loss(batch: PairBatch) -> Tensor:
        source, inputs, targets = inputs_and_targets(batch)
        target = torch.cat((inputs[:, :1], targets), 1)[..., None]
        hidden, _ = model(source[..., None], target, batch.source.lengths)
        return _mean_loss(model.generator(hidden.reshape(-1, width)), targets)

    return model, mean_loss


PEERS: dict[str, Callable[[TransformerConfig, float], tuple[nn.Module, MeanLoss]]] = {
    "torch.nn.Transformer": _torch,
    "Transformers, Marian": lambda config, rate: _transformers(marian(config, rate)),
    "Transformers, BART": _bart,
    "x-transformers, flash": _x_transformers,
    "JoeyNMT": _joeynmt,
    "OpenNMT-py": _opennmt,
}
"""Builders of each peer's model, given the sizes and the dropout of attention weights."""
