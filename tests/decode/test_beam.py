import itertools
import math

import pytest
import torch

from regard.attention.masks import Padded
from regard.decode.beam import beam, stable_topk
from regard.decode.greedy import greedy
from regard.decode.hypothesis import Hypothesis
from tests.decode.toys import (
    BOS,
    EOS,
    IDS,
    PAD,
    HashStepper,
    NanStepper,
    NoGradStepper,
    Prefixes,
    TreeStepper,
    generated_ids,
    is_equal,
    padded,
    score,
    token_lists,
)

SENTENCES = [[5, 4, 6], [4], [6, 6, 5, 4, 5], [5, 5], [4, 6, 4, 4], [7, 5, 6]]


def every_output(
    stepper: HashStepper, source: Padded, *, most: int, alpha: float
) -> list[Hypothesis]:
    """Return all outputs of one sentence over ids 1, 3 (EOS), 4, 5, best first, by scores."""
    outputs = [
        (*words, EOS) for n in range(most) for words in itertools.product((1, 4, 5), repeat=n)
    ]
    outputs += list(itertools.product((1, 4, 5), repeat=most))
    many = Padded(source.items.expand(len(outputs), -1), source.lengths.expand(len(outputs)))
    scores = score(stepper, many, targets=outputs, bos=BOS).tolist()
    results = [
        Hypothesis(
            tokens=[token for token in output if token != EOS],
            score=log_prob / len(output) ** alpha,
            log_prob=log_prob,
            finished=output[-1] == EOS,
        )
        for output, log_prob in zip(outputs, scores, strict=True)
    ]
    return sorted(results, key=lambda hypothesis: -hypothesis.score)


def plain_beam(
    stepper: HashStepper, source: Padded, *, width: int, most: int, alpha: float, n_best: int
) -> list[Hypothesis]:
    """Beam search of one sentence with plain lists, always up to the maximum length."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    vocab = stepper.table.shape[1]
    for step in range(1, most + 1):
        candidates = []
        for log_prob, tokens in live:
            state = stepper.start(source)
            for token in [BOS, *tokens]:
                logits, state = stepper.step(torch.tensor([token]), state)
            following = logits[0].double().log_softmax(-1).tolist()
            candidates += [
                (log_prob + following[token], [*tokens, token])
                for token in range(vocab)
                if token not in (PAD, BOS)
            ]
        candidates.sort(key=lambda candidate: -candidate[0])
        for log_prob, tokens in candidates[:width]:
            ends = tokens[-1] == EOS
            if ends or step == most:
                words = tokens[:-1] if ends else tokens
                finished.append(
                    Hypothesis(
                        tokens=words, score=log_prob / step**alpha, log_prob=log_prob, finished=ends
                    )
                )
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:width]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:n_best]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_beam_finds_the_best_of_all_outputs_when_it_is_wide_enough(
    alpha: float, device: torch.device
) -> None:
    stepper = HashStepper(6, spread=1.2)
    for sentence in SENTENCES[:3]:
        source = padded([sentence], device)
        expected = every_output(stepper, source, most=4, alpha=alpha)
        assert len(expected) == 121
        # At most 27 hypotheses of 3 tokens are live, each with 4 continuations.
        (results,) = beam(
            stepper, source, beam=121, max_length=4, length_penalty=alpha, n_best=121, **IDS
        )
        assert is_equal([results], [expected])
        (hypotheses,) = beam(
            stepper, source, beam=108, max_length=4, length_penalty=alpha, n_best=3, **IDS
        )
        assert is_equal([hypotheses], [expected[:3]])


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 3.0])
@pytest.mark.parametrize(("width", "n_best"), [(2, 1), (3, 3), (7, 2)])
def test_beam_stops_early_only_if_further_steps_cannot_change_the_result(
    width: int, n_best: int, alpha: float
) -> None:
    stepper = HashStepper(13, spread=2.5, seed=4)
    source = padded(SENTENCES)
    most = [9, 5, 11, 1, 8, 6]
    stepper.rows.clear()
    settings = {"length_penalty": alpha, "n_best": n_best}
    results = beam(stepper, source, beam=width, max_length=most, **settings, **IDS)
    assert stepper.rows[0] == len(SENTENCES)
    expected = [
        plain_beam(stepper, padded([sentence]), width=width, most=limit, alpha=alpha, n_best=n_best)
        for sentence, limit in zip(SENTENCES, most, strict=True)
    ]
    assert is_equal(results, expected)


def test_beam_stops_as_soon_as_no_hypothesis_can_beat_the_finished_ones() -> None:
    stepper = TreeStepper(
        {(): {EOS: 0.6, 4: 0.3, 5: 0.1}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}, vocab=6
    )
    beam(stepper, padded([[4]]), beam=2, max_length=9, length_penalty=0.0, **IDS)
    assert len(stepper.inputs) == 1
    stepper.inputs.clear()
    # The bound of 4 is log 0.3 / max_length: at 2 it stays below log 0.6, at 4 it does not.
    beam(stepper, padded([[4]]), beam=2, max_length=2, length_penalty=1.0, **IDS)
    assert len(stepper.inputs) == 1
    beam(stepper, padded([[4]]), beam=2, max_length=4, length_penalty=1.0, **IDS)
    assert len(stepper.inputs) > 2


def test_beam_ends_each_sentence_by_its_own_maximal_length() -> None:
    stepper = TreeStepper(
        {(): {EOS: 0.6, 4: 0.3, 5: 0.1}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}, vocab=6
    )
    beam(stepper, padded([[4], [5], [6]]), beam=2, max_length=[2, 4, 2], **IDS)
    assert [len(tokens) for tokens in stepper.inputs] == [3, 2, 2, 2]


def test_beam_ends_when_no_hypothesis_is_left() -> None:
    stepper = TreeStepper({(): {4: 0.7, 5: 0.3}, (4,): {PAD: 1.0}}, vocab=6)
    results = beam(stepper, padded([[4]]), beam=3, max_length=5, n_best=3, **IDS)
    assert token_lists(results) == [[[5]]]
    assert len(stepper.inputs) == 2


def test_beam_moves_the_source_memory_only_when_sentences_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selects = []
    select = Prefixes.select
    monkeypatch.setattr(
        Prefixes, "select", lambda self, index: selects.append(index) or select(self, index)
    )
    stepper = HashStepper(11)
    beam(stepper, padded(SENTENCES), beam=3, max_length=[7, 3, 12, 1, 12, 5], **IDS)
    changes = sum(before != after for before, after in itertools.pairwise(stepper.rows))
    assert len(selects) == changes
    assert len(stepper.rows) > changes + 2


def test_beam_continues_while_a_longer_output_may_score_better() -> None:
    tree = {(): {EOS: 0.5, 4: 0.4, 5: 0.1}, (4,): {4: 1.0}, (4, 4): {4: 1.0}, (4, 4, 4): {EOS: 1.0}}
    results = beam(TreeStepper(tree, vocab=6), padded([[4]]), beam=2, max_length=9, n_best=2, **IDS)
    assert token_lists(results) == [[[4, 4, 4], []]]
    assert results[0][0].score == pytest.approx(math.log(0.4) / 4, rel=1e-5)
    assert results[0][1].score == pytest.approx(math.log(0.5), rel=1e-5)


def test_beam_of_two_wins_where_greedy_fails() -> None:
    tree = {
        (): {4: 0.6, 5: 0.4},
        (4,): {6: 0.35, 7: 0.35, EOS: 0.3},
        (5,): {6: 0.9, EOS: 0.1},
        (4, 6): {EOS: 0.9, 7: 0.1},
        (5, 6): {EOS: 1.0},
    }
    stepper = TreeStepper(tree, vocab=8)
    ((first,),) = greedy(stepper, padded([[4]]), max_length=6, length_penalty=0.0, **IDS)
    assert first.tokens == [4, 6]
    assert first.log_prob == pytest.approx(math.log(0.6 * 0.35 * 0.9), rel=1e-5)
    results = beam(
        stepper, padded([[4]]), beam=2, max_length=6, length_penalty=0.0, n_best=2, **IDS
    )
    assert token_lists(results) == [[[5, 6], [4, 6]]]
    log_probs = [math.exp(hypothesis.log_prob) for hypothesis in results[0]]
    assert log_probs == pytest.approx([0.36, 0.6 * 0.35 * 0.9], rel=1e-5)


def test_finished_hypotheses_take_no_place_in_the_beam() -> None:
    # One of the two most likely first tokens ends; 4 and 5 must both stay live, as 5 leads to the
    # best output.
    tree = {
        (): {EOS: 0.4, 4: 0.35, 5: 0.25},
        (4,): {6: 0.5, 7: 0.5},
        (5,): {6: 1.0},
        (5, 6): {EOS: 1.0},
    }
    results = beam(TreeStepper(tree, vocab=8), padded([[4]]), beam=2, max_length=5, n_best=2, **IDS)
    assert token_lists(results)[0][0] == [5, 6]


def test_ends_outside_the_beam_do_not_count() -> None:
    # EOS is third, so it is outside a beam of two, though four candidates are selected.
    tree = {(): {4: 0.5, 5: 0.3, EOS: 0.2}, (4,): {4: 1.0}, (5,): {5: 1.0}}
    results = beam(TreeStepper(tree, vocab=8), padded([[4]]), beam=2, max_length=9, n_best=2, **IDS)
    assert token_lists(results) == [[[4, 4], [5, 5]]]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_of_one_equals_greedy(alpha: float) -> None:
    stepper = HashStepper(11)
    settings = {"max_length": 8, "length_penalty": alpha, **IDS}
    single = beam(stepper, padded(SENTENCES), beam=1, **settings)
    assert single == greedy(stepper, padded(SENTENCES), **settings)
    assert {hypothesis.finished for (hypothesis,) in single} == {True, False}


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_of_a_batch_equals_one_by_one_and_works_on_live_rows_only(alpha, device) -> None:
    most = [7, 3, 12, 1, 12, 5]
    settings = {"beam": 3, "n_best": 3, "length_penalty": alpha, **IDS}
    batched = HashStepper(11, spread=4)
    results = beam(batched, padded(SENTENCES, device), max_length=most, **settings)
    single, rows = [], [0] * 12
    for sentence, limit in zip(SENTENCES, most, strict=True):
        stepper = HashStepper(11, spread=4)
        single += beam(stepper, padded([sentence], device), max_length=limit, **settings)
        for step, count in enumerate(stepper.rows):
            rows[step] += count
    assert is_equal(results, single)
    assert batched.rows == [count for count in rows if count]
    assert len(set(batched.rows)) > 3


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_n_best_are_sorted_unique_and_as_probable_as_rescoring_says(alpha: float) -> None:
    stepper = HashStepper(17)
    results = beam(
        stepper, padded(SENTENCES), beam=5, max_length=7, n_best=5, length_penalty=alpha, **IDS
    )
    ends = set()
    for sentence, hypotheses in zip(SENTENCES, results, strict=True):
        assert len(hypotheses) == 5
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == 5
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        targets = [generated_ids(hypothesis) for hypothesis in hypotheses]
        rescored = score(stepper, padded([sentence] * 5), targets=targets, bos=BOS).tolist()
        assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
            rescored, rel=1e-5
        )
        expected = [
            log_prob / len(target) ** alpha
            for log_prob, target in zip(rescored, targets, strict=True)
        ]
        assert scores == pytest.approx(expected, rel=1e-5)
        assert not {PAD, BOS, EOS} & {t for hypothesis in hypotheses for t in hypothesis.tokens}
        ends |= {hypothesis.finished for hypothesis in hypotheses}
    assert ends == {True, False}


def test_smaller_n_best_is_a_prefix_of_a_larger_one() -> None:
    stepper = HashStepper(17)
    settings = {"beam": 4, "max_length": 9, **IDS}
    complete = beam(stepper, padded(SENTENCES), n_best=4, **settings)
    for n_best in (1, 2, 3):
        results = beam(stepper, padded(SENTENCES), n_best=n_best, **settings)
        assert is_equal(results, [hypotheses[:n_best] for hypotheses in complete])


@pytest.mark.parametrize("most", [1, 2, 6])
def test_beam_ends_at_its_maximal_length(most: int) -> None:
    stepper = HashStepper(9)
    results = beam(stepper, padded(SENTENCES), beam=4, max_length=most, n_best=4, **IDS)
    lengths = [hypothesis.length for hypotheses in results for hypothesis in hypotheses]
    assert max(lengths) == most
    assert len(stepper.rows) <= most
    cut = [hypothesis for found in results for hypothesis in found if not hypothesis.finished]
    assert {hypothesis.length for hypothesis in cut} == {most}


def test_beam_wider_than_the_vocabulary_returns_every_output() -> None:
    # The ids 3 (EOS) and 4 are allowed: outputs of at most 3 tokens are EOS, 4 EOS, 4 4 EOS, 4 4 4.
    settings = {"banned": (0, 1, 2), "bos": 2, "eos": 3}
    results = beam(HashStepper(5), padded([[1], [4]]), beam=9, max_length=3, n_best=7, **settings)
    outputs = [[], [4], [4, 4], [4, 4, 4]]
    assert [sorted(sentence) for sentence in token_lists(results)] == [outputs, outputs]


def test_equal_scores_go_to_the_earlier_beam_then_the_lower_id() -> None:
    vocab = 50
    even = dict.fromkeys(range(vocab), 1 / vocab)
    tree = {(): even, (0,): even, (1,): even, (0, 0): even, (0, 1): even}
    stepper = TreeStepper(tree, vocab=vocab)
    results = beam(stepper, padded([[4]]), beam=2, bos=BOS, eos=EOS, max_length=3, n_best=2)
    assert token_lists(results) == [[[0, 0, 0], [0, 0, 1]]]


@pytest.mark.parametrize("width", range(1, 10))
def test_stable_topk_is_a_stable_sort(width: int) -> None:
    scores = torch.tensor([-math.inf, -2.0, -1.0, 0.0])[torch.randint(4, (500, width))]
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    for count in range(1, width + 1):
        values, indices = stable_topk(scores, count)
        assert torch.equal(values, ordered[:, :count])
        assert torch.equal(indices, order[:, :count])


def test_stable_topk_is_a_stable_sort_when_many_scores_are_equal(device: torch.device) -> None:
    scores = torch.randint(-9, 0, (5, 20011), device=device).float()
    values, indices = stable_topk(scores, 7)
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(indices, order[:, :7])
    assert torch.equal(values, ordered[:, :7])


def test_beam_of_an_empty_batch_is_empty() -> None:
    stepper = HashStepper(7)
    assert beam(stepper, padded([]), beam=3, max_length=5, **IDS) == []
    assert beam(stepper, padded([]), beam=3, max_length=[], **IDS) == []
    assert stepper.rows == []


def test_beam_records_no_gradients() -> None:
    beam(NoGradStepper(7), padded([[4]]), beam=2, max_length=5, **IDS)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam": 0}, r"beam must be at least 1, got 0"),
        ({"n_best": 4}, r"n_best must be from 1 to beam \(3\), got 4"),
        ({"n_best": 0}, r"n_best must be from 1 to beam \(3\), got 0"),
        ({"max_length": [1, -1, 4]}, r"max_length must be at least 1, got -1"),
    ],
)
def test_beam_refuses(change: dict, message: str) -> None:
    settings = {"beam": 3, "max_length": 5, **IDS, **change}
    with pytest.raises(ValueError, match=message):
        beam(HashStepper(7), padded([[4], [5], [6]]), **settings)


@pytest.mark.parametrize("width", [2, 30])
def test_beam_refuses_nan(width: int) -> None:
    with pytest.raises(ValueError, match="logits must not hold NaN"):
        beam(NanStepper(7), padded([[4], [5], [6]]), beam=width, max_length=5, **IDS)


def test_beam_refuses_when_no_token_is_possible() -> None:
    tree = {(): {4: 1.0}, (4,): {PAD: 1.0}}
    with pytest.raises(ValueError, match="probability above 0, got none in sentence 0"):
        beam(TreeStepper(tree, vocab=6), padded([[4]]), beam=3, max_length=5, **IDS)
