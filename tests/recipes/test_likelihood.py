"""How likely answers were: by hand; and every recipe is looked at by the same names and arguments."""

import importlib
import inspect
import math

import pytest
import torch

from regard.data.labeled import Labels
from regard.models.writes.sets import Found
from regard.recipes.likelihood import of_answer, of_found
from regard.recipes.registry import RECIPES
from regard.recipes.targets import ClassTarget, LabelsTarget
from regard.recipes.task import NothingSaidError, Trained
from regard.recipes.text_to_text import TrainedTexts


def test_a_class_is_as_likely_as_its_probability():
    target = ClassTarget(Labels(("a", "b", "c")))
    found = of_answer(target, torch.tensor([[0.2, 0.5, 0.3]]))
    assert float(found) == pytest.approx(math.log(0.5))


def test_labels_are_as_likely_as_those_that_are_said():
    target = LabelsTarget(Labels(("a", "b", "c")))
    assert float(of_answer(target, torch.tensor([[0.5, 0.8, 0.3]]))) == pytest.approx(math.log(0.5 * 0.8))
    with pytest.raises(NothingSaidError, match="no label is said of it"):
        of_answer(target, torch.tensor([[0.4, 0.2, 0.1]]))


def test_a_set_is_as_likely_as_what_was_found_each_by_its_query():
    logits = torch.tensor([[[0.0, 2.0], [-1.0, 1.0], [3.0, -3.0]]], requires_grad=True)
    found = of_found(Found(logits, torch.zeros(1, 3, 4)), [(2, 0), (0, 1)], "box")
    assert found.item() == pytest.approx(-math.log(1 + math.exp(-3)) - math.log(1 + math.exp(-2)))
    found.backward()
    assert logits.grad is not None
    assert (logits.grad[0] != 0).tolist() == [[False, True], [False, False], [True, False]]
    with pytest.raises(NothingSaidError, match="no box is found in it"):
        of_found(Found(logits, torch.zeros(1, 3, 4)), [], "box")


@pytest.mark.parametrize("method", ["look", "likelihood", "check_likelihood", "parts"])
def test_every_recipe_is_looked_at_by_the_same_arguments(method):
    wanted = inspect.signature(getattr(Trained, method)).parameters.values()
    kinds = {TrainedTexts}
    for one in RECIPES.values():
        found = inspect.getmembers(importlib.import_module(one.module), inspect.isclass)
        kinds |= {kind for _, kind in found if issubclass(kind, Trained)}
    assert len(kinds) >= 10
    for kind in kinds:
        own = inspect.signature(getattr(kind, method)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in own] == [(p.name, p.kind, p.default) for p in wanted]
