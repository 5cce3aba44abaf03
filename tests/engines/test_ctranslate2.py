"""What the converted model answers is what the model answers: tokens, scores, order, ends, limits."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import narrowed
from regard.decode.search import search
from regard.engines.ctranslate2 import CTranslate2Engine
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare, refusal
from regard.errors import UserError
from regard.models.build import build, build_language_model
from regard.models.config import (
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.language import LanguageModel
from regard.models.model import Model

VOCAB = 19
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}
BANNED = [PAD, 1, BOS, EOS]
SMALL = TransformerConfig(layers=2, width=16, heads=4, feedforward=24)
CORES = {
    "pre": SMALL,
    "post": dataclasses.replace(SMALL, norm="post"),
    "gelu, learned positions": dataclasses.replace(SMALL, activation="gelu", positions="learned", max_positions=40),
    "inner product, no positions": dataclasses.replace(SMALL, score="dot", positions="none"),
    "deep decoder, odd sines": dataclasses.replace(SMALL, layers=1, decoder_layers=3, width=20),
}


def lively(model: Any) -> Any:
    """Weights so large that outputs differ and end at many lengths."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(1.6)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def translator(core: Any = SMALL, *, tie: str = "none", vocab: int = VOCAB) -> Model:
    torch.manual_seed(0)
    return lively(build(ModelConfig(core=core, tie=tie), source_vocab=vocab, target_vocab=vocab))


def continuer(core: Any = SMALL) -> LanguageModel:
    torch.manual_seed(0)
    return lively(build_language_model(LanguageModelConfig(core=core), vocab=VOCAB))


def sentences(count: int = 24, longest: int = 11) -> list[list[int]]:
    draw = torch.Generator().manual_seed(2)
    lengths = torch.randint(0, longest, (count,), generator=draw).tolist()
    return [[*torch.randint(4, VOCAB, (length,), generator=draw).tolist(), EOS] for length in lengths]


class Without(torch.nn.Module):
    """A model that gives banned ids no share of the softmax, which is where CTranslate2 bans them."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def start(self, source: Padded) -> Any:
        return self.model.start(source)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        return logits.index_fill(1, torch.tensor([PAD, BOS]), -1e30), state


def assert_same(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    assert [[one.tokens for one in few] for few in found] == [[one.tokens for one in few] for few in expected]
    assert [[one.finished for one in few] for few in found] == [[one.finished for one in few] for few in expected]
    pairs = [(a, b) for few, many in zip(found, expected, strict=True) for a, b in zip(few, many, strict=True)]
    # Sums of at most 60 float32 log-probabilities, whose logits are a few hundred roundings away from each other.
    for one, other in pairs:
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5, abs=1e-4)
        assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", CORES)
def test_every_kind_of_transformer_is_searched_alike(name: str) -> None:
    model = translator(CORES[name])
    config = DecodeConfig(beam=3, n_best=3, max_ratio=1.5, max_extra=6)
    found = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(found, search(Without(model), sentences(), config=config, **SPECIAL))
    assert len({one.length for few in found for one in few}) > 3


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (2, 1), (2, 2), (4, 3), (5, 5)])
def test_every_search_ends_alike(beam: int, n_best: int, length_penalty: float) -> None:
    model = translator(tie="all")
    config = DecodeConfig(beam=beam, n_best=n_best, length_penalty=length_penalty, max_ratio=2.5, max_extra=12)
    found = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(found, search(Without(model), sentences(), config=config, **SPECIAL))


def test_each_sentence_has_its_own_limit() -> None:
    model = translator()
    with torch.no_grad():
        model.writes.output_table.weight[EOS] = 0  # seldom ends
        model.writes.output_table.weight[EOS, 0] = -1
    for beam in (1, 4):
        config = DecodeConfig(beam=beam, n_best=beam, max_ratio=1.0, max_extra=0)
        found = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
        assert_same(found, search(Without(model), sentences(), config=config, **SPECIAL))
        cut = [few[0] for few in found if not few[0].finished]
        assert len({one.length for one in cut}) > 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_and_workers_change_nothing(workers: int) -> None:
    model = translator()
    config = DecodeConfig(beam=3, n_best=2, batch_tokens=60)
    engine = prepare("ctranslate2", model, threads=workers, workers=workers)
    assert engine.workers == workers
    found = engine.search(sentences(), config=config, **SPECIAL)
    assert_same(found, search(Without(model), sentences(), config=config, **SPECIAL))


def test_no_sentence_has_no_answer_and_no_ids_are_refused() -> None:
    engine = prepare("ctranslate2", translator())
    assert engine.search([], config=DecodeConfig(), **SPECIAL) == []
    with pytest.raises(ValueError, match="got none in sentence 1"):
        engine.search([[4], []], config=DecodeConfig(), **SPECIAL)
    with pytest.raises(ValueError, match="bos and eos must be 2 and 3, got 4 and 3"):
        engine.search([[4]], config=DecodeConfig(), bos=4, eos=EOS, pad=PAD)
    with pytest.raises(TypeError, match="is no language model"):
        engine.generate([[4]], SampleConfig(), window=None, seeds=[0], banned=[])


def test_a_beam_wider_than_the_vocabulary_has_fewer_hypotheses() -> None:
    model = translator(vocab=6)
    config = DecodeConfig(beam=5, n_best=5, max_ratio=0, max_extra=2)
    found = prepare("ctranslate2", model).search([[4, 5, EOS]], config=config, **SPECIAL)
    assert_same(found, search(Without(model), [[4, 5, EOS]], config=config, **SPECIAL))


def test_positions_without_a_limit_grow_with_what_is_asked() -> None:
    model = translator()
    long = [[4, 5, 6, 7] * 300]
    config = DecodeConfig(beam=2, max_length=4)
    assert_same(
        prepare("ctranslate2", model).search(long, config=config, **SPECIAL),
        search(Without(model), long, config=config, **SPECIAL),
    )


def test_learned_positions_refuse_what_they_cannot_serve() -> None:
    engine = prepare("ctranslate2", translator(CORES["gelu, learned positions"]))
    with pytest.raises(ValueError, match="there are 40 learned positions, but position 41 was asked for"):
        engine.search([[4] * 41], config=DecodeConfig(max_length=4), **SPECIAL)
    with pytest.raises(ValueError, match="there are 40 learned positions, but position 41 was asked for"):
        engine.search([[4] * 40], config=DecodeConfig(max_length=60), **SPECIAL)


def test_greedy_tokens_are_those_of_the_model_itself_and_scores_lack_the_banned_share() -> None:
    model = translator()
    config = DecodeConfig(beam=1, max_extra=5, length_penalty=0)
    found = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    expected = search(model, sentences(), config=config, **SPECIAL)
    assert [few[0].tokens for few in found] == [few[0].tokens for few in expected]
    # Of an output of one token: log(p / (1 - p(banned))) = log p - log(1 - p(banned)).
    one = DecodeConfig(beam=1, max_ratio=0, max_extra=1)
    (score,), (own,) = (
        engine.search([[4, EOS]], config=one, **SPECIAL)
        for engine in (prepare("ctranslate2", model), TorchEngine(model))
    )
    state = model.start(Padded(torch.tensor([[4, EOS]]), torch.tensor([2])))
    logits, _ = model.step(torch.tensor([BOS]), state)
    banned = float(logits.detach().softmax(-1)[0, [PAD, BOS]].sum())
    assert banned > 1e-3
    assert score[0].score - own[0].score == pytest.approx(-math.log1p(-banned), abs=1e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "alibi", "none"])
@pytest.mark.parametrize("window", [None, 7, 8, 40])
def test_texts_go_on_alike(positions: Any, window: int | None) -> None:
    norm = "post" if positions == "none" else "pre"
    model = continuer(dataclasses.replace(SMALL, positions=positions, norm=norm, activation="gelu", max_positions=60))
    prompts = [[5, 6, 7], [8], [9, 10] * 10, [4, 5, 6, 7, 8, 9], [10] * 8, [11, 12]]
    how: dict[str, Any] = {"window": window, "seeds": [1] * 6, "banned": BANNED}
    config = SampleConfig(length=40, temperature=0)
    found = prepare("ctranslate2", model).generate(prompts, config, **how)
    assert found == TorchEngine(model).generate(prompts, config, **how)
    assert [len(tokens) for tokens in found] == [40] * 6


def test_an_end_symbol_that_is_not_banned_is_a_token_like_others() -> None:
    model = continuer()
    with torch.no_grad():
        model.core.decoder_norm.bias[0] = 5
        model.reads.table.weight[EOS, 0] = 5
    how: dict[str, Any] = {"window": 8, "seeds": [1], "banned": []}
    config = SampleConfig(length=12, temperature=0)
    found = prepare("ctranslate2", model).generate([[5, 6]], config, **how)
    assert found == TorchEngine(model).generate([[5, 6]], config, **how)
    assert EOS in found[0]


def test_draws_follow_the_seed_and_the_distribution() -> None:
    model = continuer()
    engine = prepare("ctranslate2", model, threads=2)
    config = SampleConfig(length=20)
    how: dict[str, Any] = {"window": 8, "banned": BANNED}
    prompts = [[5, 6, 7], [8]]
    first, again, other = (engine.generate(prompts, config, seeds=[seed, 7], **how) for seed in (1, 1, 2))
    assert first == again != other
    state = model.begin(1)
    for token in (5, 6):
        logits, state = model.step(torch.tensor([token]), state)
    logits = logits.detach().index_fill(1, torch.tensor(BANNED), -math.inf)
    count = 4000
    for wanted in (SampleConfig(length=1, temperature=1.0), SampleConfig(length=1, top_k=4, top_p=0.8)):
        drawn = torch.tensor(engine.generate([[5, 6]] * count, wanted, seeds=[1] * count, **how))[:, 0]
        shares = torch.bincount(drawn, minlength=VOCAB) / count
        # Five standard deviations of a share of one half.
        assert (shares - narrowed(logits, wanted)[0]).abs().max() < 5 * 0.5 / math.sqrt(count)


def test_prompts_must_hold_something_and_translators_are_no_language_models() -> None:
    engine = prepare("ctranslate2", continuer())
    assert engine.generate([], SampleConfig(temperature=0), window=None, seeds=[], banned=[]) == []
    with pytest.raises(ValueError, match="got none in prompt 1"):
        engine.generate([[4], []], SampleConfig(), window=None, seeds=[0, 0], banned=[])
    with pytest.raises(TypeError, match="this model reads no source"):
        engine.search([[4]], config=DecodeConfig(), **SPECIAL)


def int8_scores() -> list[tuple[bool, float, float]]:
    """For each sentence: whether int8 gives the same tokens as torch, and the scores of both."""
    model = translator()
    engine = prepare("ctranslate2", model, compute_type="int8")
    assert engine.compute_type == "int8"
    config = DecodeConfig(beam=1, max_ratio=0, max_extra=1)
    found = engine.search(sentences(), config=config, **SPECIAL)
    expected = search(Without(model), sentences(), config=config, **SPECIAL)
    pairs = zip(found, expected, strict=True)
    return [(one.tokens == other.tokens, one.score, other.score) for (one,), (other,) in pairs]


def test_int8_stays_near() -> None:
    # In a process of its own with MKL: the products of oneDNN saturate on processors without VNNI (docs/engines.md).
    code = "import json; from tests.engines.test_ctranslate2 import int8_scores; print(json.dumps(int8_scores()))"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=True, capture_output=True, cwd=root, env=os.environ | {"CT2_USE_MKL": "1"})
    scores = json.loads(done.stdout)
    # Rows of weights have 127 steps to their largest entry; two layers of that move a score by some hundredths.
    assert all(not is_same or score == pytest.approx(exact, abs=0.5) for is_same, score, exact in scores)
    assert sum(is_same for is_same, _, _ in scores) > 0.9 * len(scores)


def test_weights_that_change_do_not_reach_a_conversion() -> None:
    model = translator()
    engine = prepare("ctranslate2", model)
    config = DecodeConfig(beam=2)
    before = engine.search(sentences(), config=config, **SPECIAL)
    with torch.no_grad():
        model.writes.output_table.weight.mul_(-1)
    assert engine.search(sentences(), config=config, **SPECIAL) == before
    found = prepare("ctranslate2", model).search(sentences(), config=config, **SPECIAL)
    assert_same(found, search(Without(model), sentences(), config=config, **SPECIAL))
    assert found != before


REFUSED: dict[str, tuple[Any, str]] = {
    "recurrent": (RecurrentConfig(width=8, hidden=8), "its core is a RecurrentCore"),
    "self-attentive": (SelfAttentiveConfig(width=8, hidden=8), "its core is a SelfAttentiveCore"),
    "window": (dataclasses.replace(SMALL, window=4), "a window of 4 targets"),
    "cosine": (dataclasses.replace(SMALL, score="cosine"), "core.encoder.0.attention.read.score is a Cosine"),
    "additive": (dataclasses.replace(SMALL, score="additive"), "read.score is a BareAdditive"),
    "capped": (dataclasses.replace(SMALL, soft_cap=3.0), "read.score is a SoftCap"),
    "shared keys": (dataclasses.replace(SMALL, key_heads=2), "its 4 heads share 2 heads of keys and values"),
    "alibi": (dataclasses.replace(SMALL, positions="alibi"), "known there for language models alone"),
    "relative": (dataclasses.replace(SMALL, positions="relative"), "its positions are RelativeBias"),
    "points": (dataclasses.replace(SMALL, inducing_points=3), "core.encoder.0 is a InducedBlock"),
    "wide heads": (dataclasses.replace(SMALL, head_dim=8), "not as wide as the model"),
    "wide values": (dataclasses.replace(SMALL, head_value_dim=8), "not as wide as the model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_with_the_reason(name: str) -> None:
    core, reason = REFUSED[name]
    assert reason in (refusal("ctranslate2", translator(core)) or "")


def test_other_models_are_refused() -> None:
    assert "it is a Linear, not a model that writes a text" in (refusal("ctranslate2", torch.nn.Linear(2, 2)) or "")
    assert refusal("ctranslate2", translator()) is None
    assert refusal("ctranslate2", continuer(dataclasses.replace(SMALL, positions="alibi"))) is None


def test_unknown_compute_types_are_told_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"computes in .*float32.* here, not in 'float3'"):
        prepare("ctranslate2", translator(), compute_type="float3")
    assert isinstance(prepare("ctranslate2", translator()), CTranslate2Engine)
