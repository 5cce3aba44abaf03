import math

import pytest
import torch

from regard.decode.greedy import greedy
from regard.decode.stepper import DecoderState, Stepper
from tests.decode.toys import (
    BOS,
    EOS,
    IDS,
    PAD,
    HashStepper,
    NanStepper,
    NoGradStepper,
    TreeStepper,
    generated_ids,
    is_equal,
    padded,
    score,
    token_lists,
)

SENTENCES = [[5, 4, 6], [4], [6, 6, 5, 4, 5], [5, 5], [4, 6, 4, 4], [7, 5, 6]]


def test_toys_are_steppers() -> None:
    stepper = HashStepper(7)
    assert isinstance(stepper, Stepper)
    assert isinstance(stepper.start(padded([[4]])), DecoderState)


def test_greedy_takes_the_likeliest_token_at_every_step(device: torch.device) -> None:
    stepper = HashStepper(11)
    for sentence in SENTENCES:
        source = padded([sentence], device)
        state = stepper.start(source)
        token, expected, total = BOS, [], 0.0
        while token != EOS and len(expected) < 9:
            logits, state = stepper.step(torch.tensor([token], device=device), state)
            log_probs = logits[0].double().log_softmax(-1)
            token = max((float(log_probs[i]), -i) for i in range(11) if i not in (PAD, BOS))[1] * -1
            expected.append(token)
            total += float(log_probs[token])
        ((hypothesis,),) = greedy(stepper, source, max_length=9, length_penalty=0.7, **IDS)
        assert generated_ids(hypothesis) == expected
        assert hypothesis.length == len(expected)
        assert math.isclose(hypothesis.log_prob, total, rel_tol=1e-5)
        assert math.isclose(hypothesis.score, total / len(expected) ** 0.7, rel_tol=1e-5)


def test_greedy_of_a_batch_equals_one_by_one_and_works_on_live_rows_only(
    device: torch.device,
) -> None:
    batched = HashStepper(11, spread=1.5)
    most = [7, 3, 12, 1, 12, 5]
    results = greedy(batched, padded(SENTENCES, device), max_length=most, **IDS)
    separate = []
    rows = [0] * 12
    for sentence, limit in zip(SENTENCES, most, strict=True):
        stepper = HashStepper(11, spread=1.5)
        separate += greedy(stepper, padded([sentence], device), max_length=limit, **IDS)
        for step, count in enumerate(stepper.rows):
            rows[step] += count
    assert is_equal(results, separate)
    assert len({hypothesis.length for (hypothesis,) in results}) > 3
    assert batched.rows == [count for count in rows if count]


def test_greedy_is_cut_unfinished_at_the_maximum_length() -> None:
    stepper = TreeStepper(
        {(): {4: 0.9, EOS: 0.1}, (4,): {4: 0.9, EOS: 0.1}, (4, 4): {4: 0.9, EOS: 0.1}}, vocab=5
    )
    ((cut,),) = greedy(stepper, padded([[4]]), max_length=3, **IDS)
    assert (cut.tokens, cut.finished, cut.length) == ([4, 4, 4], False, 3)
    ((complete,),) = greedy(stepper, padded([[4]]), max_length=4, **IDS)
    assert (complete.tokens, complete.finished, complete.length) == ([4, 4, 4], True, 4)
    assert complete.log_prob == pytest.approx(3 * math.log(0.9), rel=1e-5)
    assert complete.score == pytest.approx(3 * math.log(0.9) / 4, rel=1e-5)


def test_end_symbol_ends_the_output() -> None:
    # The tree has no node behind the end symbol: a further step would raise KeyError.
    stepper = TreeStepper({(): {4: 0.9, EOS: 0.1}, (4,): {EOS: 0.6, 4: 0.4}}, vocab=5)
    ((hypothesis,),) = greedy(stepper, padded([[4]]), max_length=9, **IDS)
    assert (hypothesis.tokens, hypothesis.finished) == ([4], True)
    assert generated_ids(hypothesis) == [4, EOS]


def test_greedy_takes_the_lower_id_of_equal_scores() -> None:
    stepper = TreeStepper(
        {(): {6: 0.25, 4: 0.25, 5: 0.25, EOS: 0.25}, (4,): {6: 0.5, 5: 0.5}}, vocab=7
    )
    assert token_lists(greedy(stepper, padded([[4]]), max_length=5, **IDS)) == [[[]]]
    assert token_lists(
        greedy(stepper, padded([[4]]), bos=BOS, eos=6, max_length=2, banned=(EOS,))
    ) == [[[4, 5]]]


def test_greedy_never_generates_banned_ids_and_does_not_renormalize() -> None:
    stepper = TreeStepper({(): {PAD: 0.6, BOS: 0.2, 4: 0.15, EOS: 0.05}}, vocab=5)
    ((hypothesis,),) = greedy(stepper, padded([[4]]), max_length=5, **IDS)
    assert hypothesis.tokens == [4]
    assert hypothesis.log_prob == pytest.approx(math.log(0.15), rel=1e-5)


class CoarseStepper(HashStepper):
    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return logits.bfloat16(), state


@pytest.mark.parametrize("kind", [HashStepper, CoarseStepper])
def test_greedy_log_prob_equals_rescoring(kind) -> None:
    stepper, source = kind(11), padded(SENTENCES)
    results = [hypothesis for (hypothesis,) in greedy(stepper, source, max_length=6, **IDS)]
    assert {hypothesis.finished for hypothesis in results} == {True, False}
    rescored = score(stepper, source, targets=[generated_ids(result) for result in results])
    log_probs = [hypothesis.log_prob for hypothesis in results]
    assert rescored.tolist() == pytest.approx(log_probs, rel=1e-5)


def test_greedy_of_an_empty_batch_is_empty() -> None:
    stepper = HashStepper(7)
    assert greedy(stepper, padded([]), max_length=5, **IDS) == []
    assert stepper.rows == []


def test_greedy_records_no_gradients_and_leaves_the_mode_as_it_was() -> None:
    greedy(NoGradStepper(7), padded([[4]]), max_length=5, **IDS)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": [3, 0, 2]}, r"max_length must be at least 1, got 0"),
        ({"max_length": [3, 3]}, r"max_length must be one number or 3 .*, got 2"),
        ({"banned": (-1,)}, r"eos and banned must be ids of the vocabulary of 7, got \[-1, 3\]"),
        ({"banned": (PAD, EOS)}, r"banned must not hold eos \(3\), got \[0, 3\]"),
        ({"banned": (9,)}, r"eos and banned must be ids of the vocabulary of 7, got \[3, 9\]"),
        ({"length_penalty": math.nan}, r"length_penalty must be from 0 to 5, got nan"),
    ],
)
def test_greedy_refuses(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        greedy(HashStepper(7), padded([[4], [5], [6]]), **{"max_length": 5, **IDS, **change})


def test_greedy_refuses_nan_with_step_and_sentence() -> None:
    with pytest.raises(ValueError, match="must not hold NaN, got one at step 2 of sentence 1"):
        greedy(NanStepper(7), padded([[4], [5], [6]]), max_length=5, **IDS)


def test_greedy_refuses_when_no_token_is_possible() -> None:
    stepper = TreeStepper({(): {4: 1.0}, (4,): {PAD: 1.0}}, vocab=5)
    with pytest.raises(ValueError, match="probability above 0, got none at step 2 of sentence 0"):
        greedy(stepper, padded([[4]]), max_length=5, **IDS)
