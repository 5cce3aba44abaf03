"""Output heads: losses by hand and by torch, and the units of predictions."""

import math

import pytest
import torch
from torch.nn import functional

from regard.attention.masks import Padded, Unpadded
from regard.layers.pool import MeanPooling
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.tags import NONE, TagWriter
from regard.models.writers.tracks import PathHead, TrackHidden, TrackWriter, constant_velocity
from tests.helpers import close

ROWS, DIM = 5, 7


def vectors() -> torch.Tensor:
    return torch.randn(ROWS, DIM, dtype=torch.float64)


def test_labels_are_sigmoids_and_their_loss_that_of_torch():
    writer, vector = LabelWriter(DIM, 3, label_smoothing=0.2).double(), vectors()
    target = torch.randint(0, 2, (ROWS, 3)).float()
    probabilities = writer.answer(vector)
    close(probabilities.detach(), torch.sigmoid(writer.scores(vector)).detach())
    plain = functional.binary_cross_entropy(probabilities, target.double(), reduction="sum")
    close(writer.eval().loss(vector, target).total, plain)
    smoothed = writer.train().loss(vector, target)
    expected = 0.8 * target.double() + 0.1
    close(smoothed.total, functional.binary_cross_entropy(probabilities, expected, reduction="sum"))
    close(smoothed.nll, plain)


@pytest.mark.parametrize("error", ["squared", "absolute"])
def test_numbers_are_in_the_units_of_their_targets_and_the_loss_in_deviations(error):
    writer = NumberWriter(DIM, means=(10.0, -2.0), deviations=(4.0, 0.5), error=error).double()
    vector, target = vectors(), torch.randn(ROWS, 2, dtype=torch.float64)
    off = (writer.answer(vector) - target) / torch.tensor([4.0, 0.5], dtype=torch.float64)
    expected = (off**2 if error == "squared" else off.abs()).sum() / 2
    close(writer.loss(vector, target).total, expected)
    torch.nn.init.zeros_(writer.output.weight)
    torch.nn.init.zeros_(writer.output.bias)
    close(writer.answer(vector), torch.tensor([[10.0, -2.0]] * ROWS, dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"means": ()}, "equally many and at least one, got 0 and 1"),
        ({"means": (1.0, 2.0)}, "equally many and at least one, got 2 and 1"),
        ({"deviations": (0.0,)}, "must be positive"),
        ({"error": "cubed"}, "squared or absolute, got 'cubed'"),
    ],
)
def test_numbers_reject_invalid_scales(settings, message):
    with pytest.raises(ValueError, match=message):
        NumberWriter(DIM, **settings)


def test_loss_of_tags_is_that_of_tagged_items_only():
    writer = TagWriter(DIM, 3, label_smoothing=0.3).double().eval()
    items = Padded(torch.randn(2, 4, DIM, dtype=torch.float64), torch.tensor([4, 2]))
    target = torch.tensor([[0, NONE, 2, 1], [1, 1, NONE, NONE]])
    log_p = writer.answer(items).log()
    expected = -(log_p[0, 0, 0] + log_p[0, 2, 2] + log_p[0, 3, 1] + log_p[1, 0, 1] + log_p[1, 1, 1])
    close(writer.loss(items, target).total, expected)
    assert writer.count(target) == 5
    smoothed = writer.train().loss(items, target)
    real = log_p.flatten(0, 1)[(target != NONE).flatten()]
    close(smoothed.nll, expected)
    close(smoothed.total, 0.7 * expected - 0.3 * real.mean(-1).sum())


def test_loss_of_tracks_is_their_mean_distance():
    writer = TrackWriter(DIM, 2).double()
    target = torch.tensor([[[3.0, 4], [0, 2]], [[0, 0], [6, 8]]], dtype=torch.float64)
    vector = vectors()[:2]
    assert not writer.answer(TrackHidden(vector, None)).any()
    close(
        writer.loss(TrackHidden(vector, None), target).total,
        torch.tensor((5 + 2) / 2 + 10 / 2, dtype=torch.float64),
    )


def test_the_best_of_several_paths_is_trained_and_the_likeliest_comes_first():
    head = PathHead(paths=2, predicted=1)
    outputs = torch.tensor([[3.0, 4, 0, 1, 0, math.log(3)]], dtype=torch.float64)
    outputs.requires_grad_()
    changes = head.changes(outputs)
    close(changes.detach(), torch.tensor([[[[3.0, 4]], [[0, 1]]]], dtype=torch.float64))
    loss = head.loss(outputs, torch.zeros(1, 1, 2, dtype=torch.float64))
    expected = 0.95 * 1 + 0.05 * (5 + 1) / 2 - math.log(3 / 4)
    close(loss.detach(), torch.tensor([expected], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    close(gradient[0, 3], torch.tensor(0.95 + 0.025, dtype=torch.float64))
    assert 0 < gradient[0, :2].norm() < 0.03  # the other path keeps a small gradient
    paths, probability = head.answer(outputs, changes)
    close(paths, changes.flip(1))
    close(probability.detach(), torch.tensor([[3 / 4, 1 / 4]], dtype=torch.float64))


def test_tracks_start_from_constant_velocity():
    writer = TrackWriter(DIM, 2).double()
    baseline = constant_velocity(torch.tensor([[[0.0, 1], [2, 1.5]]], dtype=torch.float64), 2)
    close(baseline, torch.tensor([[[2.0, 0.5], [4, 1]]], dtype=torch.float64))
    hidden = TrackHidden(vectors()[:1], baseline)
    close(writer.answer(hidden).detach(), baseline)
    target = torch.tensor([[[5.0, 4.5], [4, 1]]], dtype=torch.float64)  # 5 and 0 from the baseline
    close(writer.loss(hidden, target).total.detach(), torch.tensor(2.5, dtype=torch.float64))


@pytest.mark.parametrize("bias", [True, False])
def test_a_gelu_head_normalizes_after_the_hidden_layer(bias):
    tags = TagWriter(6, 3, head="gelu", bias=bias).double()
    classes = ClassWriter(6, 3, pool=MeanPooling(), head="gelu", bias=bias).double()
    with torch.no_grad():
        for weight in tags.parameters():
            weight.copy_(torch.randn_like(weight))
    classes.load_state_dict(tags.state_dict())
    assert (tags.dense.bias is None) == (tags.norm.bias is None) == (not bias)
    states = torch.randn(2, 5, 6, dtype=torch.float64)
    hidden = functional.gelu(functional.linear(states, tags.dense.weight, tags.dense.bias))
    scale, shift = tags.norm.weight, tags.norm.bias
    hidden = functional.layer_norm(hidden, (6,), scale, shift)
    expected = functional.linear(hidden, tags.output.weight, tags.output.bias)
    close(tags.answer(Unpadded.of(states)), expected.softmax(-1))
    close(classes.scores(states[:, 0]), expected[:, 0])
