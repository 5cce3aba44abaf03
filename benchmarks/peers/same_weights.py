"""The same random weights in every library: this library's, converted to Transformers, converted to
CTranslate2.

    translator   Marian's architecture: post norm, tied table times sqrt(d), sinusoidal positions
    (copied from ours)
    GPT          pre norm, learned positions, gelu, tied table without a factor

Rows of PAD, BOS and EOS in the translator's table are zero: their scores are 0, the best of the
10,000 others is always higher, and so every search generates the maximum number of tokens without
banned tokens, which would cost CTranslate2 and Transformers time. Attention weights are scaled up,
feed-forward weights too, cross-attention weights down, so that an output does not repeat one token
(three distinct ones in twenty), yet is not decided by rounding errors.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.gpt_own import Sizes
from benchmarks.peers.material import VOCAB
from benchmarks.peers.translators import marian
from regard.data.tokenizer import BOS, EOS, PAD
from regard.layers.positions.sinusoidal import sinusoids
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model

__all__ = [
    "as_gpt2",
    "as_marian",
    "our_gpt",
    "our_translator",
    "save_for_ctranslate2",
    "save_gpt_for_ctranslate2",
    "token_name",
]

_ATTENTION_SCALE = {"query": 2.0, "key": 2.0}
_CROSS_SCALE, _OTHER_SCALE = 0.3, 4.0


@torch.no_grad()
def our_translator(config: TransformerConfig, seed: int = 1) -> Model:
    """Return a translator with random weights that never ends a sentence."""
    torch.manual_seed(seed)
    sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB}
    model = build(ModelConfig(core=config, dropout=0.0), **sizes).eval()
    writer: Any = model.writer
    writer.output_table.weight[[PAD, BOS, EOS]] = 0.0
    for name, module in model.core.named_modules():
        if isinstance(module, nn.Linear):
            other = _CROSS_SCALE if ".cross." in name else _OTHER_SCALE
            module.weight.mul_(_ATTENTION_SCALE.get(name.rpartition(".")[2], other))
            nn.init.normal_(module.bias, std=0.02)
    return model


@torch.no_grad()
def our_gpt(config: TransformerConfig, *, vocab: int, seed: int = 1) -> Model:
    """Return a language model with random weights."""
    torch.manual_seed(seed)
    model = build_language_model(LanguageModelConfig(core=config), vocab=vocab).eval()
    for module in model.core.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.02)
    return model


@torch.no_grad()
def as_marian(model: Any, config: TransformerConfig) -> Any:
    """Return Transformers' Marian with these weights."""
    marian_model = marian(config).eval()
    marian_model.model.shared.weight.copy_(model.writer.output_table.weight)
    for side in (marian_model.model.encoder, marian_model.model.decoder):
        side.embed_tokens.weight = marian_model.model.shared.weight
        side.embed_positions.weight.copy_(
            sinusoids(0, side.embed_positions.weight.shape[0], config.width)
        )
    marian_model.lm_head.weight = marian_model.model.shared.weight
    marian_model.final_logits_bias.zero_()
    for block, layer in zip(
        model.core.encoder.children(), marian_model.model.encoder.layers, strict=True
    ):
        _copy_attention(block.attention, layer.self_attn)
        _copy(layer.self_attn_layer_norm, block.add_attention.norm)
        _copy_feedforward(block, layer)
    for block, layer in zip(
        model.core.decoder.children(), marian_model.model.decoder.layers, strict=True
    ):
        _copy_attention(block.attention, layer.self_attn)
        _copy(layer.self_attn_layer_norm, block.add_attention.norm)
        _copy_attention(block.cross, layer.encoder_attn)
        _copy(layer.encoder_attn_layer_norm, block.add_cross.norm)
        _copy_feedforward(block, layer)
    return marian_model


@torch.no_grad()
def as_gpt2(model: Any, sizes: Sizes) -> Any:
    """Return Transformers' GPT-2 with these weights."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  # imported only if needed

    shape = {
        "n_positions": sizes.context,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
    }
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    settings = GPT2Config(vocab_size=sizes.vocab, **shape, **ends, activation_function="gelu")
    gpt2 = GPT2LMHeadModel._from_config(settings, attn_implementation="sdpa").eval()
    body = gpt2.transformer
    body.wte.weight.copy_(model.writer.output_table.weight)
    body.wpe.weight.copy_(model.core.positions.weight[: sizes.context])
    for block, target in zip(model.core.decoder.children(), body.h, strict=True):
        _copy(target.ln_1, block.add_attention.norm)
        _copy(target.ln_2, block.add_feedforward.norm)
        three = [getattr(block.attention, part) for part in ("query", "key", "value")]
        _copy_transposed(
            target.attn.c_attn,
            torch.cat([part.weight for part in three]),
            torch.cat([p.bias for p in three]),
        )
        _copy_transposed(
            target.attn.c_proj, block.attention.output.weight, block.attention.output.bias
        )
        _copy_transposed(
            target.mlp.c_fc, block.feedforward.expand.weight, block.feedforward.expand.bias
        )
        _copy_transposed(
            target.mlp.c_proj, block.feedforward.contract.weight, block.feedforward.contract.bias
        )
    _copy(body.ln_f, model.core.decoder_norm)
    return gpt2


def save_for_ctranslate2(marian_model: Any, folder: Path) -> None:
    """Write a Marian as a CTranslate2 model, for any compute type.

    Uses the loader for BART, because that for Marian drops the last row as padding.
    """
    from ctranslate2.converters.transformers import BartLoader  # noqa: PLC0415  # imported only if needed

    marian_model.config.normalize_before = marian_model.config.normalize_embedding = False
    spec: Any = BartLoader().get_model_spec(marian_model)
    tokens = [token_name(number) for number in range(VOCAB)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = token_name(BOS)
    spec.config.eos_token, spec.config.unk_token = token_name(EOS), token_name(1)
    _save(spec, folder)


def save_gpt_for_ctranslate2(gpt2: Any, folder: Path, *, vocab: int) -> None:
    """Write a GPT-2 as a CTranslate2 model. Its EOS is not used: a fixed number of tokens is
    generated."""
    from ctranslate2.converters.transformers import GPT2Loader  # noqa: PLC0415

    spec: Any = GPT2Loader().get_model_spec(gpt2)
    spec.register_vocabulary([token_name(number + 4) for number in range(vocab)])
    spec.config.unk_token = spec.config.bos_token = spec.config.eos_token = token_name(4)
    _save(spec, folder)


def token_name(number: int) -> str:
    """Return the name of a token, for libraries that take names."""
    return ("<pad>", "<unk>", "<s>", "</s>")[number] if number < 4 else f"t{number}"


def _save(spec: Any, folder: Path) -> None:
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _copy(target: Any, source: Any) -> None:
    target.weight.copy_(source.weight)
    target.bias.copy_(source.bias)


def _copy_transposed(target: Any, weight: Tensor, bias: Tensor) -> None:
    target.weight.copy_(weight.t())
    target.bias.copy_(bias)


def _copy_attention(source: Any, target: Any) -> None:
    for part, name in (
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("output", "out_proj"),
    ):
        _copy(getattr(target, name), getattr(source, part))


def _copy_feedforward(source: Any, target: Any) -> None:
    _copy(target.fc1, source.feedforward.expand)
    _copy(target.fc2, source.feedforward.contract)
    _copy(target.final_layer_norm, source.add_feedforward.norm)
