"""What compiled loops find is what the torch engine finds, for every Transformer that they take."""

import dataclasses
import itertools

import pytest
import torch

from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.engines.engine import Engine
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare, refusal
from regard.errors import UserError
from regard.models.build import build
from regard.models.config import ModelConfig, RecurrentConfig, TransformerConfig
from regard.models.model import Model

PAD, BOS, EOS, VOCAB = 0, 1, 2, 90
IDS = {"bos": BOS, "eos": EOS, "pad": PAD}
SMALL = TransformerConfig(layers=2, width=32, heads=4, feedforward=48)
KINDS = {
    "pre": SMALL,
    "post": dataclasses.replace(SMALL, norm="post"),
    "gelu": dataclasses.replace(SMALL, activation="gelu"),
    "learned positions": dataclasses.replace(SMALL, positions="learned", max_positions=64),
    "no positions": dataclasses.replace(SMALL, positions="none"),
    "alibi": dataclasses.replace(SMALL, positions="alibi"),
    "relative": dataclasses.replace(SMALL, positions="relative"),
    "shared keys": dataclasses.replace(SMALL, key_heads=2),
    "plain dot": dataclasses.replace(SMALL, score="dot"),
    "window": dataclasses.replace(SMALL, window=3),
    "odd sizes": TransformerConfig(layers=1, decoder_layers=3, width=37, heads=3, head_value_dim=7, feedforward=50),
    "wide heads": TransformerConfig(layers=1, width=70, heads=2, feedforward=33),
}


def model_of(config: TransformerConfig, *, vocab: int = VOCAB, tie: str = "all") -> Model:
    torch.manual_seed(3)
    model = build(ModelConfig(core=config, tie=tie), source_vocab=vocab, target_vocab=vocab).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # As after training: weights of fresh models say nearly the same of everything.
            spread = float(parameter.std().nan_to_num()) or 1.0  # those that begin all alike, too
            parameter.add_(0.3 * spread * torch.randn_like(parameter))
    return model


def sentences(count: int = 23, longest: int = 19) -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def check_same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.finished for one in ours] == [one.finished for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=2e-4)
        assert [one.log_prob for one in ours] == pytest.approx([one.log_prob for one in theirs], abs=2e-4)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (3, 2)])
def test_finds_what_torch_finds(config, beam, n_best):
    model = model_of(config)
    decode = DecodeConfig(beam=beam, n_best=n_best, max_length=14)
    found = prepare("compiled", model, workers=2).search(sentences(), config=decode, **IDS)
    check_same(found, TorchEngine(model).search(sentences(), config=decode, **IDS))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("likelier", [8, 20])
def test_hypotheses_that_end_are_scored_and_kept_as_in_torch(alpha, likelier):
    model = model_of(KINDS["post"])
    with torch.no_grad():
        model.writes.output_table.weight[EOS] *= likelier  # so that many end, early and late
    decode = DecodeConfig(beam=5, n_best=5, max_length=12, length_penalty=alpha)
    found = prepare("compiled", model).search(sentences(40), config=decode, **IDS)
    wanted = TorchEngine(model).search(sentences(40), config=decode, **IDS)
    assert len({one.finished for some in wanted for one in some}) == 2
    check_same(found, wanted)


def test_tables_of_their_own_for_source_target_and_output():
    model = model_of(SMALL, tie="none")
    decode = DecodeConfig(beam=2, max_length=9)
    check_same(prepare("compiled", model).search(sentences(), config=decode, **IDS),
               TorchEngine(model).search(sentences(), config=decode, **IDS))  # fmt: skip


def test_long_and_many_sentences():
    model, decode = model_of(SMALL), DecodeConfig(beam=2, max_length=6)
    many = [*sentences(150, 40), list(range(3, 90)) * 8]
    check_same(prepare("compiled", model, workers=3).search(many, config=decode, **IDS),
               TorchEngine(model).search(many, config=decode, **IDS))  # fmt: skip


@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_other_sentences_change_nothing_and_room_is_used_again(compute_type):
    engine, decode = (
        prepare("compiled", model_of(SMALL), compute_type=compute_type),
        DecodeConfig(beam=3, n_best=3, max_length=10),
    )
    together = engine.search(sentences(), config=decode, **IDS)
    alone = [engine.search([one], config=decode, **IDS)[0] for one in sentences()]
    assert together == alone


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("apart", [1, VOCAB // 2])
def test_of_equals_the_lower_token_comes_first(beam, apart):
    model, twin = model_of(KINDS["post"], tie="none"), torch.arange(VOCAB)
    if apart == 1:
        twin[5::2] = twin[4::2]
    else:
        twin[apart:] = twin[:apart]
        twin[apart : apart + 3] = 4  # PAD, BOS and EOS have none
    with torch.no_grad():
        for table in (model.writes.inputs.table.weight, model.writes.output_table.weight):
            table.copy_(table[twin])
    decode, ties = DecodeConfig(beam=beam, n_best=beam, max_length=3), 0
    for found in prepare("compiled", model).search(sentences(), config=decode, **IDS):
        for before, after in itertools.pairwise(found):
            if before.score == after.score:
                assert before.tokens < after.tokens
                ties += 1
        assert beam > 1 or twin[found[0].tokens].tolist() == found[0].tokens
    assert beam == 1 or ties > 10


def test_a_beam_wider_than_the_vocabulary():
    model = model_of(SMALL, vocab=6)
    decode = DecodeConfig(beam=12, n_best=12, max_length=2)
    some = [[3, 4], [5]]
    check_same(prepare("compiled", model).search(some, config=decode, **IDS),
               TorchEngine(model).search(some, config=decode, **IDS))  # fmt: skip


@pytest.mark.parametrize(("compute_type", "least"), [("bfloat16", 0.999), ("int8", 0.99)])
def test_fewer_bits_say_nearly_the_same(compute_type, least):
    model = model_of(KINDS["post"])
    decode = DecodeConfig(beam=1, max_length=1)
    exact = prepare("compiled", model).search(sentences(60), config=decode, **IDS)
    short = prepare("compiled", model, compute_type=compute_type).search(sentences(60), config=decode, **IDS)
    log_probs = torch.tensor([[some[0].log_prob for some in found] for found in (exact, short)])
    assert torch.corrcoef(log_probs)[0, 1] > least
    assert not torch.equal(*log_probs)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_scores_that_are_no_numbers(beam, compute_type):
    model = model_of(SMALL)
    with torch.no_grad():
        model.core.decoder[1].feedforward.contract.weight[3] = 3e38
        model.core.decoder[1].feedforward.contract.weight[4] = -3e38
    decode = DecodeConfig(beam=beam, max_length=4)
    for name in ("compiled", "torch"):
        with pytest.raises(ValueError, match="logits must not hold NaN"):
            prepare(name, model, compute_type=compute_type if name == "compiled" else None).search(
                [[4, 5], [6]], config=decode, **IDS
            )


@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_items_that_overflow_are_an_error_for_the_inputs_that_hold_them(compute_type):
    """1 / sqrt(variance) would be zero where the variance is infinite, which hides it."""
    model = model_of(SMALL)
    with torch.no_grad():
        model.reads.table.weight[5] *= 1e30
    engine, decode = prepare("compiled", model, compute_type=compute_type), DecodeConfig(max_length=1)
    expected = engine.search([[4], [6]], config=decode, **IDS)
    for _ in range(2):
        with pytest.raises(ValueError, match="logits must not hold NaN"):
            engine.search([[4], [5, 6]], config=decode, **IDS)
        assert engine.search([[4], [6]], config=decode, **IDS) == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("compute_type", ["float32", "bfloat16", "int8"])
def test_weights_that_are_not_finite_are_refused_by_name(number, compute_type):
    model = model_of(SMALL)
    with torch.no_grad():
        model.core.decoder[1].cross.key.bias[7] = number
    with pytest.raises(UserError, match=r"cross.key has a bias with numbers that are not finite"):
        prepare("compiled", model, compute_type=compute_type)


def test_an_empty_sentence_is_named():
    with pytest.raises(ValueError, match="got none in sentence 1"):
        prepare("compiled", model_of(SMALL)).search([[4], []], config=DecodeConfig(), **IDS)
    assert prepare("compiled", model_of(SMALL)).search([], config=DecodeConfig(), **IDS) == []


def outcome(engine: Engine, sentence: list[int], decode: DecodeConfig) -> list[Hypothesis] | str:
    """What is found, or what was wrong."""
    try:
        return engine.search([sentence], config=decode, **IDS)[0]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_that_end_before_learned_positions_do_are_found_and_others_refused(beam):
    model = model_of(dataclasses.replace(SMALL, positions="learned", max_positions=10))
    with torch.no_grad():
        model.writes.output_table.weight[EOS] *= 12
    decode, told = DecodeConfig(beam=beam, max_length=30), set()
    for sentence in sentences(40, longest=12):
        wanted = outcome(TorchEngine(model), sentence, decode)
        found = outcome(prepare("compiled", model), sentence, decode)
        if isinstance(wanted, str):
            assert found == wanted
            told.add(wanted)
        else:
            check_same([found], [wanted])
            told.add("found")
    assert told == {"found", "there are 10 learned positions, but position 11 was asked for"}


@pytest.mark.parametrize("index", [-1, VOCAB])
def test_ids_that_are_no_tokens_are_named(index):
    engine, decode = prepare("compiled", model_of(SMALL)), DecodeConfig(max_length=3)
    with pytest.raises(ValueError, match=f"0 .. {VOCAB - 1}, got {index} in sentence 1"):
        engine.search([[4], [5, index, 6]], config=decode, **IDS)
    with pytest.raises(ValueError, match=f"0 .. {VOCAB - 1}, got {index} in bos, eos, pad"):
        engine.search([[4]], config=decode, bos=index, eos=EOS, pad=PAD)


REFUSED = {
    "cosine": (dataclasses.replace(SMALL, score="cosine"), "Cosine"),
    "additive": (dataclasses.replace(SMALL, score="additive"), "Additive"),
    "capped": (dataclasses.replace(SMALL, soft_cap=5.0), "SoftCap"),
    "points": (dataclasses.replace(SMALL, inducing_points=2), "InducedBlock"),
    "recurrent": (RecurrentConfig(hidden=16, width=16), "RecurrentCore"),
}


@pytest.mark.parametrize(("config", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_run_is_refused_with_the_reason(config, reason):
    assert reason in refusal("compiled", model_of(config))
