"""Log-probabilities of answers by hand, and the signature of `look` in every recipe."""

import importlib
import inspect
import math

import pytest
import torch

from regard.data.text.labels import Labels
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.likelihood import answer_log_prob, set_log_prob
from regard.recipes.base.recipe import EmptyAnswerError, TrainedRun
from regard.recipes.base.text_to_text import TrainedTexts
from regard.recipes.registry import RECIPES
from regard.recipes.targets.labels import ClassTarget, LabelsTarget


def test_log_prob_of_a_class_is_that_of_its_probability():
    target = ClassTarget(Labels(("a", "b", "c")))
    log_p = answer_log_prob(target, torch.tensor([[0.2, 0.5, 0.3]]))
    assert float(log_p) == pytest.approx(math.log(0.5))


def test_log_prob_of_labels_is_that_of_the_predicted_ones():
    target = LabelsTarget(Labels(("a", "b", "c")))
    assert float(answer_log_prob(target, torch.tensor([[0.5, 0.8, 0.3]]))) == pytest.approx(math.log(0.5 * 0.8))
    with pytest.raises(EmptyAnswerError, match="no label is predicted for it"):
        answer_log_prob(target, torch.tensor([[0.4, 0.2, 0.1]]))


def test_log_prob_of_a_set_sums_its_elements_each_by_its_query():
    logits = torch.tensor([[[0.0, 2.0], [-1.0, 1.0], [3.0, -3.0]]], requires_grad=True)
    log_p = set_log_prob(SetPredictions(logits, torch.zeros(1, 3, 4)), [(2, 0), (0, 1)], "box")
    assert log_p.item() == pytest.approx(-math.log(1 + math.exp(-3)) - math.log(1 + math.exp(-2)))
    log_p.backward()
    assert logits.grad is not None
    assert (logits.grad[0] != 0).tolist() == [[False, True], [False, False], [True, False]]
    with pytest.raises(EmptyAnswerError, match="no box is detected in it"):
        set_log_prob(SetPredictions(logits, torch.zeros(1, 3, 4)), [], "box")


@pytest.mark.parametrize("method", ["look", "likelihood", "check_likelihood", "split_inputs"])
def test_every_recipe_has_the_same_arguments_of_look(method):
    expected = inspect.signature(getattr(TrainedRun, method)).parameters.values()
    kinds = {TrainedTexts}
    for entry in RECIPES.values():
        classes = inspect.getmembers(importlib.import_module(entry.module), inspect.isclass)
        kinds |= {kind for _, kind in classes if issubclass(kind, TrainedRun)}
    assert len(kinds) >= 10
    for kind in kinds:
        parameters = inspect.signature(getattr(kind, method)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in parameters] == [(p.name, p.kind, p.default) for p in expected]
