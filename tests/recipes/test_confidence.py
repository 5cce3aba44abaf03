"""Probabilities of classes: calibration error, temperature, and answers below a threshold."""

import pytest
import torch

from regard.data.config import LabeledConfig
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.models.writers.classes import ClassWriter
from regard.recipes.metrics.vectors import calibration_error, class_scores, label_scores
from regard.recipes.targets.labels import ClassTarget, LabelsTarget
from regard.recipes.targets.numbers import NumberTarget, Scales
from regard.recipes.targets.temperature import divide_by_temperature, fit_temperature

DATA = LabeledConfig()
NAMES = Labels(("a", "b", "c"))
ROW = torch.tensor([0.5, 0.3, 0.2])


def test_calibration_error_by_hand():
    best = torch.tensor([0.9, 0.88, 0.55, 1.0, 0.65, 2 / 3], dtype=torch.float64)
    probabilities = torch.stack((best, 1 - best), 1)
    target = torch.tensor([0, 1, 0, 0, 0, 1])
    # Of 15 bins closed above: 0.9 and 0.88 are in one, and so are 0.65 and 2/3.
    gaps = abs(1 - 0.9 - 0.88), abs(1 - 0.55), 0.0, abs(1 - 0.65 - 2 / 3)
    assert calibration_error(probabilities, target) == pytest.approx(100 * sum(gaps) / 6)


@pytest.mark.parametrize("scale", [2.5, 0.4])
def test_temperature_recovers_a_known_scale(scale):
    generator = torch.Generator().manual_seed(1)
    scores = 2 * torch.randn(20_000, 4, generator=generator)
    target = scores.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    wrong = (scale * scores).softmax(-1)
    temperature = fit_temperature(wrong, target)
    assert temperature == pytest.approx(scale, rel=0.03)
    right = divide_by_temperature(wrong, temperature)
    torch.testing.assert_close(right, (scale / temperature * scores).softmax(-1))
    assert calibration_error(right, target) < 1
    assert calibration_error(wrong, target) > 5


def test_confidence_of_inputs_that_are_all_right_is_that_of_one_error_more():
    right = torch.tensor([[0.8, 0.2]]).expand(98, 2)
    temperature = fit_temperature(right, torch.zeros(98, dtype=torch.int64))
    assert divide_by_temperature(right, temperature)[0, 0].item() == pytest.approx(0.99, abs=1e-4)


def test_scores_are_divided_whatever_the_head():
    for head in ("linear", "gelu"):
        writer = ClassWriter(5, 3, head=head).double().eval()
        torch.nn.init.normal_(writer.output.bias)
        vector = torch.randn(4, 5, dtype=torch.float64)
        with torch.no_grad():
            before = writer.scores(vector)
            writer.divide_scores(1.7)
            torch.testing.assert_close(writer.scores(vector), before / 1.7)


def test_class_below_the_threshold_is_rejected():
    target = ClassTarget(NAMES, DATA)
    for threshold in (None, 0.0, 0.5):
        assert target.answer(ROW, threshold=threshold).value == "a"
    rejected = target.answer(ROW, 2, threshold=0.51)
    assert rejected.value == "<reject>"
    assert rejected.lines == ["<reject>"]
    assert rejected.ranked == [("<reject>", 0.5)]
    shown = {"a": 0.5, "b": pytest.approx(0.3)}
    assert rejected.json == {"label": "<reject>", "probability": 0.5, "labels": shown}


def test_threshold_of_labels_is_that_of_each_label():
    target, output = LabelsTarget(NAMES, DATA), torch.tensor([0.9, 0.6, 0.2])
    for threshold, names in ((None, "ab"), (0.7, "a"), (0.95, ""), (0.1, "abc")):
        assert target.answer(output, threshold=threshold).value == tuple(names)
    truth = torch.tensor([[1.0, 0, 0]])
    assert label_scores(output[None], truth, NAMES.names, threshold=0.7)["exact_match"] == 100
    assert target.metrics(output[None], truth)["exact_match"] == 0
    assert target.metrics(output[None], truth, 0.7)["exact_match"] == 100
    likely = float(target.log_prob(output, 0.7))
    assert likely == pytest.approx(float(output[0].log()))


def test_coverage_and_accuracy_of_the_answered_by_hand():
    rows = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.55, 0.45]])
    target = torch.tensor([0, 1, 0, 0])
    scores = class_scores(rows, target, ("a", "b"), threshold=0.6)
    assert scores["accuracy"] == 50
    assert scores["coverage"] == 75
    assert scores["answered_accuracy"] == pytest.approx(100 / 3)
    nothing = class_scores(rows, target, ("a", "b"), threshold=0.95)
    assert nothing["coverage"] == 0
    assert "answered_accuracy" not in nothing
    assert "coverage" not in class_scores(rows, target, ("a", "b"))


def test_numbers_have_no_threshold():
    target = NumberTarget(Scales((1.0,), (2.0,)), DATA)
    for call in (target.answer, lambda row, **options: target.metrics(row, row, **options)):
        with pytest.raises(UserError, match="--threshold is for classes and labels"):
            call(ROW[:1], threshold=0.5)
