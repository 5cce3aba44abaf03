import math

import pytest
import torch

from regard.decode.stepper import score
from tests.decode.toys import BOS, EOS, HashStepper, TreeStepper, padded


def test_score_adds_the_log_probabilities_of_the_target() -> None:
    tree = {(): {4: 0.6, 5: 0.4}, (4,): {5: 0.25, EOS: 0.75}, (5,): {4: 0.125, EOS: 0.875}}
    results = score(
        TreeStepper(tree, vocab=6), padded([[4]] * 4), targets=[[4, 5], [5, EOS], [4], []], bos=BOS
    )
    expected = [math.log(0.6 * 0.25), math.log(0.4 * 0.875), math.log(0.6), 0.0]
    assert results.tolist() == pytest.approx(expected, rel=1e-5)


def test_scores_of_all_continuations_sum_to_one() -> None:
    targets = [[first, second] for first in range(7) for second in range(7)]
    total = score(HashStepper(7), padded([[4, 5]] * 49), targets=targets, bos=BOS).exp().sum()
    assert float(total) == pytest.approx(1.0, rel=1e-5)


def test_score_can_be_trained() -> None:
    stepper = HashStepper(7)
    stepper.table.requires_grad_()
    score(stepper, padded([[4], [5]]), targets=[[4, EOS], [5, 6, EOS]], bos=BOS).sum().backward()
    assert stepper.table.grad is not None
    assert int((stepper.table.grad.abs().sum(1) > 0).sum()) == 5


def test_score_of_an_empty_batch_is_empty() -> None:
    assert score(HashStepper(7), padded([]), targets=[], bos=BOS).shape == torch.Size([0])


def test_score_refuses_another_number_of_targets() -> None:
    with pytest.raises(
        ValueError, match=r"targets must be one per sentence of the source \(2\), got 1"
    ):
        score(HashStepper(7), padded([[4], [5]]), targets=[[4]], bos=BOS)
