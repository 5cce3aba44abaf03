"""Log-probabilities of answers by hand."""

import math

import pytest
import torch

from regard.data.config import LabeledConfig
from regard.data.text.labels import Labels
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import EmptyAnswerError
from regard.recipes.base.scoring import set_log_prob
from regard.recipes.targets.labels import ClassTarget, LabelsTarget


def test_log_prob_of_a_class_is_that_of_its_probability():
    target = ClassTarget(Labels(("a", "b", "c")), LabeledConfig())
    assert float(target.log_prob(torch.tensor([0.2, 0.5, 0.3]))) == pytest.approx(math.log(0.5))


def test_log_prob_of_labels_is_that_of_the_predicted_ones():
    target = LabelsTarget(Labels(("a", "b", "c")), LabeledConfig(target="labels"))
    log_p = target.log_prob(torch.tensor([0.5, 0.8, 0.3]))
    assert float(log_p) == pytest.approx(math.log(0.5 * 0.8))
    with pytest.raises(EmptyAnswerError, match="no label is predicted"):
        target.log_prob(torch.tensor([0.4, 0.2, 0.1]))


def test_log_prob_of_a_set_sums_its_elements_each_by_its_query():
    logits = torch.tensor([[[0.0, 2.0], [-1.0, 1.0], [3.0, -3.0]]], requires_grad=True)
    log_p = set_log_prob(SetPredictions(logits, torch.zeros(1, 3, 4)), [(2, 0), (0, 1)], "box")
    assert log_p.item() == pytest.approx(-math.log(1 + math.exp(-3)) - math.log(1 + math.exp(-2)))
    log_p.backward()
    assert logits.grad is not None
    assert (logits.grad[0] != 0).tolist() == [[False, True], [False, False], [True, False]]
    with pytest.raises(EmptyAnswerError, match="no box is detected in it"):
        set_log_prob(SetPredictions(logits, torch.zeros(1, 3, 4)), [], "box")
