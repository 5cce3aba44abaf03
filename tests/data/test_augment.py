"""Augmentation of images: a function of seed and place; boxes follow pixels; mixup."""

import numpy as np
import pytest
import torch

from regard.data.images.augment import (
    OPERATIONS,
    _apply,
    augment_images,
    draw_numbers,
    move_boxes,
)
from regard.data.images.image_batches import ImageBatches
from regard.models.writers.classes import ClassWriter
from tests.helpers import close

MOVING = ("shift", "zoom", "crop", "flip", "flip-vertical", "randaugment")
ALL = (*MOVING, "color")


def make_images(count: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, 20, 28), np.uint8)


def operations_of(numbers: np.ndarray) -> np.ndarray:
    """Return the names of the operations of randaugment (rows, 2) for random numbers."""
    return np.array(OPERATIONS)[(numbers[:, [16, 18]] * len(OPERATIONS)).astype(int)]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_depend_on_seed_epoch_and_place_only(channels):
    data, labels = make_images(40, channels), np.arange(40) % 4

    def collate(epoch: int, rows: list[int], seed: int = 1):
        options = {"augment": ALL, "mixup": 0.5, "num_classes": 4}
        batches = ImageBatches(data, labels, rows=8, seed=seed, **options)
        batch = batches.collate(epoch, rows)
        return batch.source, batch.target

    rows = list(range(40))
    images, targets = collate(2, rows)
    for part in ([7], [33, 2, 7], rows[1::2]):
        some, some_targets = collate(2, part)
        assert (some == images[part]).all()
        assert (some_targets == targets[part]).all()
    for other, _ in (collate(3, rows), collate(2, rows, seed=2)):
        assert ((other - images).abs().flatten(1).amax(1) > 0.1).all()


def test_without_names_or_strength_images_are_as_they_were():
    data = make_images(60)
    numbers = draw_numbers(1, 0, range(60))
    for names, magnitude in (((), 0.3), (("randaugment",), 0.0)):
        images, planes = augment_images(data, names, numbers, magnitude=magnitude)
        assert (planes == np.eye(3)).all()
        same = (images.numpy() == data).all((1, 2, 3))
        if names:  # these two have no strength
            same |= np.isin(operations_of(numbers), ["autocontrast", "equalize"]).any(1)
        assert same.all()


@pytest.mark.parametrize("names", [("crop",), ("zoom", "flip"), ("randaugment",), MOVING])
def test_boxes_are_around_the_pixels_that_they_were_around(names):
    found = 0
    for seed in range(40):
        data = np.zeros((1, 1, 60, 80), np.uint8)
        data[0, 0, 21:38, 30:55] = 250
        boxes = np.array([[30.0, 21.0, 25.0, 17.0]])
        numbers = draw_numbers(seed, 0, [0])
        if "solarize" in operations_of(numbers)[0]:  # bright pixels become dark
            continue
        images, planes = augment_images(data, names, numbers)
        moved, is_visible = move_boxes(boxes, planes[0], (80, 60))
        bright = (images[0, 0] > 100).nonzero().numpy()
        if not is_visible[0]:
            assert len(bright) < 17 * 25 * 1.5
            continue
        x, y, width, height = moved[0]
        assert bright.min(0)[::-1] == pytest.approx([x, y], abs=1.6)
        assert bright.max(0)[::-1] + 1 == pytest.approx([x + width, y + height], abs=1.6)
        found += 1
    assert found > 20


def test_a_box_with_less_than_a_third_inside_is_dropped():
    plane = np.eye(3)
    plane[0, 2] = 1.0  # by half of the width to the left
    boxes = np.array([[20.0, 0, 30, 8], [20, 0, 28, 8], [40, 2, 30, 8], [0, 0, 40, 8]])
    moved, is_visible = move_boxes(boxes, plane, (80, 60))
    assert is_visible.tolist() == [True, False, True, False]
    np.testing.assert_allclose(moved[is_visible], [[0, 0, 10, 8], [0, 2, 30, 8]], atol=1e-9)


def test_operations_on_colors_by_hand():
    image = torch.tensor([[[[10.0, 20.0], [30.0, 200.0]]]])
    strength = torch.full((1, 1, 1, 1), 0.5)

    def values(name: str, image: torch.Tensor = image) -> list[float]:
        return _apply(name, image, strength).flatten().tolist()

    assert values("brightness") == pytest.approx([14.5, 29, 43.5, 290])
    assert values("contrast") == pytest.approx([65 + 1.45 * n for n in (-55, -45, -35, 135)])
    assert values("posterize") == [8, 20, 28, 200]
    assert values("solarize") == [10, 20, 30, 55]
    assert values("autocontrast") == pytest.approx([0, 2550 / 190, 5100 / 190, 255])
    assert values("equalize") == [0, 85, 170, 255]
    color = torch.tensor([30.0, 60.0, 90.0]).view(1, 3, 1, 1)
    assert values("saturation", color) == pytest.approx([60 - 43.5, 60, 60 + 43.5])
    flat = torch.full((1, 1, 3, 3), 26.0)
    assert values("sharpness", flat) == pytest.approx([26] * 9)
    flat[0, 0, 1, 1] = 39
    blurred = (8 * 26 + 5 * 39) / 13
    assert values("sharpness", flat)[4] == pytest.approx(blurred + 1.45 * (39 - blurred))


@pytest.mark.parametrize("class_weights", [(), (0.5, 2.0, 1.5)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_of_mixed_classes_is_the_weighted_sum_of_both(class_weights, smoothing):
    torch.manual_seed(1)
    writer = ClassWriter(5, 3, class_weights=class_weights, label_smoothing=smoothing).double()
    hidden = torch.randn(2, 5, dtype=torch.float64)
    for mode in (True, False):
        writer.train(mode)
        one = [writer.costs(hidden, torch.tensor(pair)).items[:, 0] for pair in ([0, 2], [1, 2])]
        share = torch.tensor([0.3, 0.9], dtype=torch.float64)
        target = torch.tensor([[0.3, 0.7, 0], [0, 0, 1]], dtype=torch.float64)
        close(writer.loss(hidden, target).total, (share * one[0] + (1 - share) * one[1]).sum())
    log_p = writer.answer(hidden).log()
    by_hand = -(0.3 * log_p[0, 0] + 0.7 * log_p[0, 1] + log_p[1, 2])
    close(writer.loss(hidden, target).nll, by_hand)
    with pytest.raises(ValueError, match="target of ClassWriter must have the shape"):
        writer.loss(hidden, target[:, :2])


def test_images_and_targets_are_mixed_with_one_share():
    levels = np.array([0, 50, 100, 250], np.uint8)
    data = np.tile(levels[:, None, None, None], (1, 1, 2, 2))
    for labels in (np.arange(4), np.eye(4, dtype=np.float32)):
        batches = ImageBatches(data, labels, rows=4, seed=3, mixup=1.0, num_classes=4)
        mixed = 0
        for epoch in range(5):
            batch = batches.collate(epoch, (0, 1, 2, 3))
            close(batch.target.sum(1), torch.ones(4))
            values = torch.tensor([0.0, 50, 100, 250]) / 255
            close(batch.source, (batch.target @ values).view(4, 1, 1, 1).expand(4, 1, 2, 2))
            mixed += int((batch.target.amax(1) < 0.99).sum())
        assert mixed > 5
