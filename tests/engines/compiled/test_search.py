"""Search by the compiled engine equals the torch engine's, for every supported Transformer."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.rules import NO_RULES, TokenRules
from regard.engines.engine import Engine
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model
from tests.engines.small import vary

PAD, BOS, EOS, VOCAB = 0, 1, 2, 90
IDS = {"bos": BOS, "eos": EOS, "pad": PAD}
SMALL = TransformerConfig(layers=2, width=32, heads=4, feedforward=48)


def change_core(**options: Any) -> TransformerConfig:
    return dataclasses.replace(SMALL, **options)


KINDS = {
    "pre": SMALL,
    "post": change_core(norm_order="post"),
    "gelu": change_core(activation="gelu"),
    "learned positions": change_core(positions=LearnedConfig(max_length=64)),
    "no positions": change_core(positions=NoPositionsConfig()),
    "alibi": change_core(positions=AlibiConfig()),
    "relative": change_core(positions=RelativeConfig()),
    "shared keys": change_core(key_heads=2),
    "plain dot": change_core(score="dot"),
    "window": change_core(window=3),
    "pattern": change_core(
        window=4, pattern="SL/LS", positions=RotaryConfig(window_base=50.0, interleaved=True)
    ),
    "written": change_core(pattern="L/DF", key_heads=2, head_value_dim=5, norm_eps=0.1),
    "windowed encoder": change_core(window=3, pattern="S/L", positions=AlibiConfig()),
    "rotary": change_core(positions=RotaryConfig(scaling="linear"), key_heads=2),
    "interleaved rotary": change_core(
        width=37, heads=3, head_dim=14, positions=RotaryConfig(dim=6, interleaved=True)
    ),
    "RMSNorm": change_core(norm="rms", norm_eps=1e-3),
    "SwiGLU": change_core(gated=True, activation="silu", feedforward=33, bias=False),
    "GeGLU": change_core(gated=True, activation="gelu-tanh"),
    "ReGLU": change_core(gated=True, norm="rms", norm_order="post"),
    "BART": change_core(
        norm_order="post",
        positions=LearnedConfig(max_length=24),
        shared_positions=False,
        embedding_norm=True,
        activation="gelu",
    ),
    "mBART": change_core(
        positions=LearnedConfig(max_length=24), shared_positions=False, embedding_norm=True
    ),
    "no final norm": change_core(final_norm=False, attention_bias="qkv"),
    "T5": change_core(
        head_dim=5,
        positions=RelativeConfig(buckets=6, max_distance=9),
        score="dot",
        norm="rms",
        norm_eps=1e-6,
        bias=False,
    ),
    "odd sizes": TransformerConfig(
        layers=1, decoder_layers=3, width=37, heads=3, head_value_dim=7, feedforward=50
    ),
    "wide heads": TransformerConfig(layers=1, width=70, heads=2, feedforward=33),
}


def make_model(config: TransformerConfig, *, vocab: int = VOCAB, tie: str = "all") -> Model:
    torch.manual_seed(3)
    return vary(build(ModelConfig(core=config, tie=tie), source_vocab=vocab, target_vocab=vocab))


def make_sentences(count: int = 23, longest: int = 19) -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def check_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        for hypothesis, other in zip(ours, theirs, strict=True):
            assert hypothesis.tokens == other.tokens
            assert hypothesis.finished == other.finished
            assert hypothesis.score == pytest.approx(other.score, abs=2e-4)
            assert hypothesis.log_prob == pytest.approx(other.log_prob, abs=2e-4)


def check_search(
    model: Model,
    sentences: list[list[int]],
    decode: DecodeConfig,
    *,
    workers: int = 1,
    rules: TokenRules = NO_RULES,
) -> list[list[Hypothesis]]:
    """Check that both engines find the same, and return it."""
    options: dict[str, Any] = {"config": decode, "rules": rules, **IDS}
    expected = TorchEngine(model).search(sentences, **options)
    engine = prepare("compiled", model, workers=workers)
    check_same(engine.search(sentences, **options), expected)
    return expected


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (3, 2)])
def test_search_equals_torch(config, beam, n_best):
    model = make_model(config)
    decode = DecodeConfig(beam=beam, n_best=n_best, max_length=14)
    check_search(model, make_sentences(), decode, workers=2)


RULES = {
    "min_length": TokenRules(eos=EOS, min_length=12),
    "ngrams": TokenRules(no_repeat_ngram_size=2),
    "penalty": TokenRules(repetition_penalty=1.8),
    "words": TokenRules(bad_words=(*((i,) for i in range(3, 70)), (75, 80), (80, 75), (81, 81))),
    "prefix": TokenRules(target_prefix=(20, 20, 21)),
    "all": TokenRules(
        eos=EOS,
        min_length=5,
        no_repeat_ngram_size=1,
        repetition_penalty=1.2,
        target_prefix=(20,),
        bad_words=((30,), (20, 40)),
    ),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("beam", [1, 3])
def test_rules_of_outputs_change_the_search_as_in_torch(rules, beam):
    model = make_model(KINDS["post"])
    with torch.no_grad():
        model.writer.output_table.weight[EOS] *= 8  # so that many finish
    decode = DecodeConfig(beam=beam, n_best=beam, max_length=14)
    found = check_search(model, make_sentences(), decode, workers=2, rules=rules)
    plain = check_search(model, make_sentences(), decode)
    assert sum(a[0].tokens != b[0].tokens for a, b in zip(found, plain, strict=True)) > 1


def test_rules_that_leave_no_token_are_named():
    model = make_model(SMALL, vocab=6)
    decode = DecodeConfig(beam=1, max_length=9, min_length=5, no_repeat_ngram_size=1)
    for engine in (prepare("compiled", model), TorchEngine(model)):
        with pytest.raises(UserError, match=r"sentence 1; relax one of .*: min_length, no_repeat"):
            engine.search([[3], [3, 4]], config=decode, **IDS)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("likelier", [8, 20])
def test_finished_hypotheses_are_scored_and_ranked_as_in_torch(alpha, likelier):
    model = make_model(KINDS["post"])
    with torch.no_grad():
        model.writer.output_table.weight[EOS] *= likelier  # so that many finish, early and late
    decode = DecodeConfig(beam=5, n_best=5, max_length=12, length_penalty=alpha)
    expected = check_search(model, make_sentences(40), decode)
    assert len({hypothesis.finished for hypotheses in expected for hypothesis in hypotheses}) == 2


def test_separate_embeddings_for_source_target_and_output():
    model = make_model(SMALL, tie="none")
    check_search(model, make_sentences(), DecodeConfig(beam=2, max_length=9))


def test_long_and_many_sentences():
    model, decode = make_model(SMALL), DecodeConfig(beam=2, max_length=6)
    many = [*make_sentences(150, 40), list(range(3, 90)) * 8]
    check_search(model, many, decode, workers=3)


@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_other_sentences_change_nothing_and_workspaces_are_reused(compute_type):
    engine = prepare("compiled", make_model(SMALL), compute_type=compute_type)
    decode = DecodeConfig(beam=3, n_best=3, max_length=10)
    together = engine.search(make_sentences(), config=decode, **IDS)
    alone = [engine.search([sentence], config=decode, **IDS)[0] for sentence in make_sentences()]
    assert together == alone


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("twin_distance", [1, VOCAB // 2])
def test_ties_are_broken_by_the_lower_token(beam, twin_distance):
    model, twin = make_model(KINDS["post"], tie="none"), torch.arange(VOCAB)
    if twin_distance == 1:
        twin[5::2] = twin[4::2]
    else:
        twin[twin_distance:] = twin[:twin_distance]
        twin[twin_distance : twin_distance + 3] = 4  # PAD, BOS and EOS have none
    with torch.no_grad():
        for table in (model.writer.inputs.table.weight, model.writer.output_table.weight):
            table.copy_(table[twin])
    decode, ties = DecodeConfig(beam=beam, n_best=beam, max_length=3), 0
    for actual in prepare("compiled", model).search(make_sentences(), config=decode, **IDS):
        for before, after in itertools.pairwise(actual):
            if before.score == after.score:
                assert before.tokens < after.tokens
                ties += 1
        assert beam > 1 or twin[actual[0].tokens].tolist() == actual[0].tokens
    assert beam == 1 or ties > 10


def test_a_beam_wider_than_the_vocabulary():
    model = make_model(SMALL, vocab=6)
    decode = DecodeConfig(beam=12, n_best=12, max_length=2)
    check_search(model, [[3, 4], [5]], decode)


@pytest.mark.parametrize(("compute_type", "correlation"), [("bfloat16", 0.999), ("int8", 0.99)])
def test_reduced_precision_is_close_to_float32(compute_type, correlation):
    model = make_model(KINDS["post"])
    decode = DecodeConfig(beam=1, max_length=1)
    exact = prepare("compiled", model).search(make_sentences(60), config=decode, **IDS)
    engine = prepare("compiled", model, compute_type=compute_type)
    rounded = engine.search(make_sentences(60), config=decode, **IDS)
    log_probs = torch.tensor([[found[0].log_prob for found in r] for r in (exact, rounded)])
    assert torch.corrcoef(log_probs)[0, 1] > correlation
    assert not torch.equal(*log_probs)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_nan_scores_raise(beam, compute_type):
    model = make_model(SMALL)
    with torch.no_grad():
        model.core.decoder[1].feedforward.contract.weight[3] = 3e38
        model.core.decoder[1].feedforward.contract.weight[4] = -3e38
    decode = DecodeConfig(beam=beam, max_length=4)
    for engine in (prepare("compiled", model, compute_type=compute_type), TorchEngine(model)):
        with pytest.raises(ValueError, match="logits must not hold NaN"):
            engine.search([[4, 5], [6]], config=decode, **IDS)


@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_overflow_raises_only_for_the_inputs_that_cause_it(compute_type):
    """1 / sqrt(variance) would be zero where the variance is infinite, which hides it."""
    model = make_model(SMALL)
    with torch.no_grad():
        model.reader.table.weight[5] *= 1e30
    engine = prepare("compiled", model, compute_type=compute_type)
    decode = DecodeConfig(max_length=1)
    expected = engine.search([[4], [6]], config=decode, **IDS)
    for _ in range(2):
        with pytest.raises(ValueError, match="logits must not hold NaN"):
            engine.search([[4], [5, 6]], config=decode, **IDS)
        assert engine.search([[4], [6]], config=decode, **IDS) == expected


def search_or_error(
    engine: Engine, sentence: list[int], decode: DecodeConfig
) -> list[Hypothesis] | str:
    """Return the hypotheses, or the error message."""
    try:
        return engine.search([sentence], config=decode, **IDS)[0]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_longer_than_learned_positions_raise_as_in_torch(beam):
    model = make_model(change_core(positions=LearnedConfig(max_length=10)))
    with torch.no_grad():
        model.writer.output_table.weight[EOS] *= 12
    decode, outcomes = DecodeConfig(beam=beam, max_length=30), set()
    for sentence in make_sentences(40, longest=12):
        expected = search_or_error(TorchEngine(model), sentence, decode)
        actual = search_or_error(prepare("compiled", model), sentence, decode)
        if isinstance(expected, str):
            assert actual == expected
            outcomes.add(expected)
        else:
            check_same([actual], [expected])
            outcomes.add("found")
    assert outcomes == {"found", "at most 10 positions were learned, got 11"}
