"""Models converted to CTranslate2 give the outputs of torch."""

import dataclasses
from typing import Any

import ctranslate2
import pytest
import torch

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.search import search
from regard.engines.ctranslate2 import convert, source_tokens
from regard.engines.lowering import UnsupportedModelError
from regard.engines.torch import TorchEngine
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from tests.engines.small import SENTENCES, SMALL, encoder_decoder, language_model

BANNED = [[str(PAD)], [str(BOS)]]


def changed(**options: Any) -> Any:
    return dataclasses.replace(SMALL, **options)


class BannedTokens(torch.nn.Module):
    """Model that excludes banned ids before the softmax, as CTranslate2 does."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.start = model.start

    def step(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        return logits.index_fill(1, torch.tensor([PAD, BOS]), -1e30), state


@pytest.mark.parametrize(
    "core",
    [
        SMALL,
        changed(norm_order="post", activation="gelu", beta=2.0),
        changed(positions=LearnedConfig(max_length=40), norm="rms", gated=True, bias=False),
        changed(positions=NoPositionsConfig(), score="dot", layers=1, decoder_layers=3),
        changed(norm_order="post", final_norm=True, activation="gelu-tanh", norm_eps=0.5),
        changed(final_norm=False, activation="silu", attention_bias="qkv", norm_eps=0.5),
        changed(
            norm_order="post",
            positions=LearnedConfig(max_length=40),
            shared_positions=False,
            embedding_norm=True,
        ),
    ],
)
def test_converted_encoder_decoder_finds_the_outputs_of_torch(core: Any, tmp_path: Any) -> None:
    model = encoder_decoder(core, embedding_dim=5, output_bias=core.norm_order == "post")
    convert(model, tmp_path)
    translator = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    lengths = {"max_decoding_length": 6, "min_decoding_length": 0, "length_penalty": 1}
    settings = {"beam_size": 1, "suppress_sequences": BANNED, "return_scores": True, **lengths}
    results = translator.translate_batch([source_tokens(ids) for ids in SENTENCES], **settings)
    config = DecodeConfig(beam=1, n_best=1, max_length=6)
    expected = search(BannedTokens(model), SENTENCES, config=config, bos=BOS, eos=EOS, pad=PAD)
    for result, (hypothesis,) in zip(results, expected, strict=True):
        assert [int(token) for token in result.hypotheses[0]] == hypothesis.tokens
        assert result.scores[0] == pytest.approx(hypothesis.score, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": AlibiConfig()},
        {"positions": RotaryConfig(dim=2, interleaved=True, base=50.0)},
        {"positions": RotaryConfig(), "norm": "rms", "norm_eps": 0.5, "attention_bias": "qkv"},
        {"norm_order": "post", "final_norm": True, "embedding_norm": True, "norm_eps": 0.5},
        {"final_norm": False},
        {"positions": RotaryConfig(), "norm": "rms", "qk_norm": "rms", "norm_eps": 0.5},
    ],
)
@pytest.mark.parametrize("tie", ["target", "none"])
def test_converted_language_model_continues_like_torch(
    options: Any, tie: Any, tmp_path: Any
) -> None:
    model = language_model(changed(key_heads=1, **options), tie=tie, output_bias=tie == "none")
    convert(model, tmp_path)
    generator = ctranslate2.Generator(str(tmp_path), compute_type="float32")
    result = generator.generate_batch(
        [["5", "6"]],
        min_length=12,
        max_length=12,
        sampling_topk=1,
        suppress_sequences=BANNED,
        include_prompt_in_result=False,
        end_token=[],
    )
    config = SampleConfig(length=12, temperature=0)
    expected = TorchEngine(model).generate(
        [[5, 6]], config, window=None, seeds=[1], banned=[PAD, BOS]
    )
    assert [[int(token) for token in result[0].sequences[0]]] == expected


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (changed(window=4), "its self-attention has a window of 4 items"),
        (changed(window=5, pattern="S/L"), "its self-attention has a window of 5 items"),
        (changed(score="cosine"), "core.encoder.0.attention.read.score is a Cosine"),
        (changed(key_heads=1), "shares keys between heads"),
        (changed(positions=AlibiConfig()), "supports for language models only"),
        (changed(positions=RelativeConfig()), "its positional bias is RelativeBias"),
        (changed(positions=RotaryConfig()), "are rotary, which CTranslate2 supports for"),
        (changed(head_dim=8), "not as wide as the model"),
        (changed(pattern="L/D"), "its attention has a memory that is written"),
    ],
)
def test_unsupported_models_are_refused_with_the_reason(
    core: Any, reason: str, tmp_path: Any
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        convert(encoder_decoder(core), tmp_path)
