"""Converted models give the outputs of the model: tokens, scores, order, ends, limits."""

import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import filter_logits
from regard.decode.search import search
from regard.engines.ctranslate2.engine import CTranslate2Engine
from regard.engines.registry import prepare, refusal_reason
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.model import Model

VOCAB = 19
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}
BANNED = [PAD, 1, BOS, EOS]
SMALL = TransformerConfig(layers=2, width=16, heads=4, feedforward=24)
CORES = {
    "pre": SMALL,
    "post": dataclasses.replace(SMALL, norm_order="post"),
    "gelu, learned positions": dataclasses.replace(
        SMALL, activation="gelu", positions=LearnedConfig(max_length=40)
    ),
    "inner product, no positions": dataclasses.replace(
        SMALL, score="dot", positions=NoPositionsConfig()
    ),
    "deep decoder, odd sines": dataclasses.replace(SMALL, layers=1, decoder_layers=3, width=20),
}


def scale_weights(model: Any) -> Any:
    """Make the weights so large that outputs differ and have many lengths."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(1.6)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def encoder_decoder(core: Any = SMALL, *, tie: str = "none", vocab: int = VOCAB) -> Model:
    torch.manual_seed(0)
    return scale_weights(
        build(ModelConfig(core=core, tie=tie), source_vocab=vocab, target_vocab=vocab)
    )


def language_model(core: Any = SMALL) -> Model:
    torch.manual_seed(0)
    return scale_weights(build_language_model(LanguageModelConfig(core=core), vocab=VOCAB))


def sentences(count: int = 24, longest: int = 11) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(0, longest, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, VOCAB, (length,), generator=generator).tolist(), EOS]
        for length in lengths
    ]


class BanBeforeSoftmax(torch.nn.Module):
    """Model that excludes banned ids before the softmax, as CTranslate2 does."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def start(self, source: Padded) -> Any:
        return self.model.start(source)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        return logits.index_fill(1, torch.tensor([PAD, BOS]), -1e30), state


def assert_same(
    results: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]
) -> None:
    for name in ("tokens", "finished"):
        assert [
            [getattr(hypothesis, name) for hypothesis in hypotheses] for hypotheses in results
        ] == [[getattr(hypothesis, name) for hypothesis in hypotheses] for hypotheses in expected]
    pairs = zip(itertools.chain(*results), itertools.chain(*expected), strict=True)
    # Sums of at most 60 float32 log-probabilities, whose logits are a few hundred roundings away
    # from each other.
    for hypothesis, other in pairs:
        assert hypothesis.log_prob == pytest.approx(other.log_prob, rel=1e-5, abs=1e-4)
        assert hypothesis.score == pytest.approx(other.score, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", CORES)
def test_every_kind_of_transformer_gives_the_outputs_of_torch(name: str) -> None:
    model = encoder_decoder(CORES[name])
    config = DecodeConfig(beam=3, n_best=3, max_ratio=1.5, max_extra=6)
    results = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(results, search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL))
    assert len({hypothesis.length for hypotheses in results for hypothesis in hypotheses}) > 3


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (2, 1), (2, 2), (4, 3), (5, 5)])
def test_every_search_ends_like_that_of_torch(
    beam: int, n_best: int, length_penalty: float
) -> None:
    model = encoder_decoder(tie="all")
    config = DecodeConfig(
        beam=beam, n_best=n_best, length_penalty=length_penalty, max_ratio=2.5, max_extra=12
    )
    results = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(results, search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL))


def test_each_sentence_has_its_own_limit() -> None:
    model = encoder_decoder()
    with torch.no_grad():
        model.writer.output_table.weight[EOS] = 0  # seldom ends
        model.writer.output_table.weight[EOS, 0] = -1
    for beam in (1, 4):
        config = DecodeConfig(beam=beam, n_best=beam, max_ratio=1.0, max_extra=0)
        results = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
        assert_same(results, search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL))
        cut = [hypotheses[0] for hypotheses in results if not hypotheses[0].finished]
        assert len({hypothesis.length for hypothesis in cut}) > 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_and_workers_change_nothing(workers: int) -> None:
    model = encoder_decoder()
    config = DecodeConfig(beam=3, n_best=2, batch_tokens=60)
    engine = prepare("ctranslate2", model, threads=workers, workers=workers)
    assert engine.workers == workers
    results = engine.search(sentences(), config=config, **SPECIAL)
    assert_same(results, search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL))


def test_no_sentences_give_no_outputs_and_empty_sentences_are_refused() -> None:
    engine = prepare("ctranslate2", encoder_decoder())
    assert engine.search([], config=DecodeConfig(), **SPECIAL) == []
    with pytest.raises(ValueError, match="got none in sentence 1"):
        engine.search([[4], []], config=DecodeConfig(), **SPECIAL)
    with pytest.raises(ValueError, match="bos and eos must be 2 and 3, got 4 and 3"):
        engine.search([[4]], config=DecodeConfig(), bos=4, eos=EOS, pad=PAD)
    with pytest.raises(TypeError, match="`generate` needs a language model"):
        engine.generate([[4]], SampleConfig(), window=None, seeds=[0], banned=[])


def test_beam_wider_than_the_vocabulary_has_fewer_hypotheses() -> None:
    model = encoder_decoder(vocab=6)
    config = DecodeConfig(beam=5, n_best=5, max_ratio=0, max_extra=2)
    results = prepare("ctranslate2", model).search([[4, 5, EOS]], config=config, **SPECIAL)
    assert_same(results, search(BanBeforeSoftmax(model), [[4, 5, EOS]], config=config, **SPECIAL))


def test_positions_without_a_limit_grow_with_the_input() -> None:
    model = encoder_decoder()
    long = [[4, 5, 6, 7] * 300]
    config = DecodeConfig(beam=2, max_length=4)
    assert_same(
        prepare("ctranslate2", model).search(long, config=config, **SPECIAL),
        search(BanBeforeSoftmax(model), long, config=config, **SPECIAL),
    )


def test_inputs_beyond_the_learned_positions_are_refused() -> None:
    engine = prepare("ctranslate2", encoder_decoder(CORES["gelu, learned positions"]))
    with pytest.raises(
        ValueError, match="position must be at most 40, the number of learned positions, got 41"
    ):
        engine.search([[4] * 41], config=DecodeConfig(max_length=4), **SPECIAL)
    with pytest.raises(
        ValueError, match="position must be at most 40, the number of learned positions, got 41"
    ):
        engine.search([[4] * 40], config=DecodeConfig(max_length=60), **SPECIAL)


def test_greedy_tokens_are_those_of_torch_and_scores_exclude_banned_ids() -> None:
    model = encoder_decoder()
    config = DecodeConfig(beam=1, max_extra=5, length_penalty=0)
    results = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    expected = search(model, sentences(), config=config, **SPECIAL)
    assert [hypotheses[0].tokens for hypotheses in results] == [
        hypotheses[0].tokens for hypotheses in expected
    ]
    # Of an output of one token: log(p / (1 - p(banned))) = log p - log(1 - p(banned)).
    one_token = DecodeConfig(beam=1, max_ratio=0, max_extra=1)
    (score,), (own,) = (
        engine.search([[4, EOS]], config=one_token, **SPECIAL)
        for engine in (prepare("ctranslate2", model), TorchEngine(model))
    )
    state = model.start(Padded(torch.tensor([[4, EOS]]), torch.tensor([2])))
    logits, _ = model.step(torch.tensor([BOS]), state)
    banned = float(logits.detach().softmax(-1)[0, [PAD, BOS]].sum())
    assert banned > 1e-3
    assert score[0].score - own[0].score == pytest.approx(-math.log1p(-banned), abs=1e-5)


@pytest.mark.parametrize(
    "positions",
    [
        SinusoidalConfig(),
        LearnedConfig(max_length=60),
        AlibiConfig(),
        NoPositionsConfig(),
        RotaryConfig(),
        RotaryConfig(dim=2, interleaved=True, base=50.0),
    ],
)
@pytest.mark.parametrize("window", [None, 7, 8, 40])
def test_generated_texts_are_those_of_torch(positions: Any, window: int | None) -> None:
    norm = "post" if positions == NoPositionsConfig() else "pre"
    model = language_model(
        dataclasses.replace(SMALL, positions=positions, norm_order=norm, activation="gelu")
    )
    prompts = [[5, 6, 7], [8], [9, 10] * 10, [4, 5, 6, 7, 8, 9], [10] * 8, [11, 12]]
    options: dict[str, Any] = {"window": window, "seeds": [1] * 6, "banned": BANNED}
    config = SampleConfig(length=40, temperature=0)
    engine = prepare("ctranslate2", model)
    results = engine.generate(prompts, config, **options)
    assert results == TorchEngine(model).generate(prompts, config, **options)
    assert [len(tokens) for tokens in results] == [40] * 6
    last = dataclasses.replace(config, length=12, context="last")
    assert engine.generate(prompts, last, **options) == TorchEngine(model).generate(
        prompts, last, **options
    )


def test_a_context_that_slides_is_refused_with_the_engines_that_can() -> None:
    model = language_model(dataclasses.replace(SMALL, positions=RotaryConfig()))
    options: dict[str, Any] = {"window": 7, "seeds": [1], "banned": BANNED}
    sliding = SampleConfig(length=9, context="slide")
    message = "context must be restart or last, since engine 'ctranslate2' cannot drop keys and values (engines"
    with pytest.raises(ValueError, match=re.escape(message)):
        prepare("ctranslate2", model).generate([[5]], sliding, **options)
    for engine in (TorchEngine(model), prepare("compiled", model)):
        assert len(engine.generate([[5]], sliding, **options)[0]) == 9


def test_eos_that_is_not_banned_is_a_token_like_others() -> None:
    model = language_model()
    with torch.no_grad():
        model.core.decoder_norm.bias[0] = 5
        model.writer.output_table.weight[EOS, 0] = 5
    options: dict[str, Any] = {"window": 8, "seeds": [1], "banned": []}
    config = SampleConfig(length=12, temperature=0)
    results = prepare("ctranslate2", model).generate([[5, 6]], config, **options)
    assert results == TorchEngine(model).generate([[5, 6]], config, **options)
    assert EOS in results[0]


def test_samples_follow_the_seed_and_the_distribution() -> None:
    model = language_model()
    engine = prepare("ctranslate2", model, threads=2)
    config = SampleConfig(length=20)
    options: dict[str, Any] = {"window": 8, "banned": BANNED}
    prompts = [[5, 6, 7], [8]]
    first, repeated, other = (
        engine.generate(prompts, config, seeds=[seed, 7], **options) for seed in (1, 1, 2)
    )
    assert first == repeated != other
    state = model.start()
    for token in (5, 6):
        logits, state = model.step(torch.tensor([token]), state)
    logits = logits.detach().index_fill(1, torch.tensor(BANNED), -math.inf)
    count = 4000
    for settings in (
        SampleConfig(length=1, temperature=1.0),
        SampleConfig(length=1, top_k=4, top_p=0.8),
    ):
        samples = torch.tensor(
            engine.generate([[5, 6]] * count, settings, seeds=[1] * count, **options)
        )[:, 0]
        frequencies = torch.bincount(samples, minlength=VOCAB) / count
        # Five standard deviations of a frequency of one half.
        assert (frequencies - filter_logits(logits, settings)[0]).abs().max() < 5 * 0.5 / math.sqrt(
            count
        )


def test_empty_prompts_and_search_with_a_language_model_are_refused() -> None:
    engine = prepare("ctranslate2", language_model())
    assert engine.generate([], SampleConfig(temperature=0), window=None, seeds=[], banned=[]) == []
    with pytest.raises(ValueError, match="got none in prompt 1"):
        engine.generate([[4], []], SampleConfig(), window=None, seeds=[0, 0], banned=[])
    with pytest.raises(TypeError, match="`search` needs an encoder-decoder"):
        engine.search([[4]], config=DecodeConfig(), **SPECIAL)


def int8_scores() -> list[tuple[bool, float, float]]:
    """Return, for each sentence, True if int8 gives the tokens of torch, and the scores of both."""
    model = encoder_decoder()
    engine = prepare("ctranslate2", model, compute_type="int8")
    assert engine.compute_type == "int8"
    config = DecodeConfig(beam=1, max_ratio=0, max_extra=1)
    results = engine.search(sentences(), config=config, **SPECIAL)
    expected = search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL)
    pairs = zip(results, expected, strict=True)
    return [
        (hypothesis.tokens == other.tokens, hypothesis.score, other.score)
        for (hypothesis,), (other,) in pairs
    ]


def test_int8_is_close_to_float32() -> None:
    # In a separate process with MKL: the products of oneDNN saturate on processors without VNNI
    # (docs/engines.md).
    code = "import json; from tests.engines.test_ctranslate2 import int8_scores; print(json.dumps(int8_scores()))"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    process = subprocess.run(
        command, check=True, capture_output=True, cwd=root, env=os.environ | {"CT2_USE_MKL": "1"}
    )
    scores = json.loads(process.stdout)
    # Rows of weights have 127 steps to their largest entry; two layers of that move a score by some
    # hundredths.
    assert all(
        not is_same or score == pytest.approx(exact, abs=0.5) for is_same, score, exact in scores
    )
    assert sum(is_same for is_same, _, _ in scores) > 0.9 * len(scores)


def test_conversion_does_not_follow_changes_of_the_weights() -> None:
    model = encoder_decoder()
    engine = prepare("ctranslate2", model)
    config = DecodeConfig(beam=2)
    before = engine.search(sentences(), config=config, **SPECIAL)
    with torch.no_grad():
        model.writer.output_table.weight.mul_(-1)
    assert engine.search(sentences(), config=config, **SPECIAL) == before
    results = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(results, search(BanBeforeSoftmax(model), sentences(), config=config, **SPECIAL))
    assert results != before


REFUSED: dict[str, tuple[Any, str]] = {
    "recurrent": (RecurrentConfig(width=8, hidden=8), "its core is a Recurrent"),
    "self-attentive": (SelfAttentiveConfig(width=8, hidden=8), "its core is a SelfAttentive"),
    "window": (dataclasses.replace(SMALL, window=4), "a window of 4 targets"),
    "cosine": (
        dataclasses.replace(SMALL, score="cosine"),
        "core.encoder.0.attention.read.score is a Cosine",
    ),
    "additive": (dataclasses.replace(SMALL, score="additive"), "read.score is a BareAdditive"),
    "capped": (dataclasses.replace(SMALL, soft_cap=3.0), "read.score is a SoftCap"),
    "shared keys": (
        dataclasses.replace(SMALL, key_heads=2),
        "grouped-query attention, which CTranslate2 supports for",
    ),
    "alibi": (
        dataclasses.replace(SMALL, positions=AlibiConfig()),
        "supports for language models only",
    ),
    "relative": (
        dataclasses.replace(SMALL, positions=RelativeConfig()),
        "its positional bias is RelativeBias",
    ),
    "points": (dataclasses.replace(SMALL, inducing_points=3), "core.encoder.0 is a InducedBlock"),
    "rotary": (
        dataclasses.replace(SMALL, positions=RotaryConfig()),
        "are rotary, which CTranslate2 supports for",
    ),
    "wide heads": (dataclasses.replace(SMALL, head_dim=8), "not as wide as the model"),
    "wide values": (dataclasses.replace(SMALL, head_value_dim=8), "not as wide as the model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_models_are_refused_with_the_reason(name: str) -> None:
    core, reason = REFUSED[name]
    assert reason in (refusal_reason("ctranslate2", encoder_decoder(core)) or "")


def test_other_models_are_refused() -> None:
    assert "it is a Linear, not a model that generates text" in (
        refusal_reason("ctranslate2", torch.nn.Linear(2, 2)) or ""
    )
    assert refusal_reason("ctranslate2", encoder_decoder()) is None
    assert (
        refusal_reason(
            "ctranslate2", language_model(dataclasses.replace(SMALL, positions=AlibiConfig()))
        )
        is None
    )


def test_unknown_compute_types_are_refused_with_the_supported_ones() -> None:
    with pytest.raises(
        UserError,
        match=r"engine 'ctranslate2' must be one of .*float32.* on this machine, got 'float3'",
    ):
        prepare("ctranslate2", encoder_decoder(), compute_type="float3")
    assert isinstance(prepare("ctranslate2", encoder_decoder()), CTranslate2Engine)
