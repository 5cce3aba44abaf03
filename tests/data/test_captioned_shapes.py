"""Scenes of shapes: a pure function of (split, seed, index), sentences true of the pixels."""

import numpy as np
import pytest

from regard.data.config import CaptionsConfig
from regard.data.embedded.captioned_shapes import _COLORS, CaptionedShapes
from regard.errors import UserError

CONFIG = CaptionsConfig(width=60, height=40, epoch_size=200, test_size=7)


def centers(pixels: np.ndarray, color: str) -> tuple[float, float]:
    """Return x and y of the middle of the pixels of a color, as shares of the sides."""
    rows, columns = np.nonzero((pixels == _COLORS[color]).all(-1))
    middle = (columns.min() + columns.max() + 1) / 2, (rows.min() + rows.max() + 1) / 2
    return middle[0] / pixels.shape[1], middle[1] / pixels.shape[0]


def is_true(sentence: str, pixels: np.ndarray) -> bool:
    """Compare a sentence about shapes of different colors with the pixels."""
    words = sentence.split()
    colors = [word for word in words if word in _COLORS]
    places = [centers(pixels, color) for color in colors]
    if len(places) == 1:
        x, y = places[0]
        column = "left" if x < 1 / 3 else "right" if x > 2 / 3 else ""
        row = "top" if y < 1 / 3 else "bottom" if y > 2 / 3 else ""
        names = {
            (True, True): f"in the {row} {column}",
            (True, False): f"at the {row}",
            (False, True): f"on the {column}",
            (False, False): "in the middle",
        }
        return names[bool(row), bool(column)] in sentence
    if len(places) == 3:
        xs = [x for x, _ in places]
        return xs == sorted(xs, reverse=sentence.endswith("right to left"))
    (x, y), (right, below) = places
    tests = {"left": x < right, "right": x > right, "above": y < below, "below": y > below}
    (word,) = [word for word in words if word in tests]
    return tests[word]


def test_sentences_are_true_of_the_pixels():
    scenes, seen = CaptionedShapes("train", 3, CONFIG), set()
    for index in scenes.epoch(0):
        sentences, pixels = scenes.captions(index), scenes.pixels(index)
        colors = [word for word in sentences[0].split() if word in _COLORS]
        assert len(sentences) == len(set(sentences)) == 2
        if len(set(colors)) == len(colors):
            assert all(is_true(sentence, pixels) for sentence in sentences), sentences
            seen |= {len(colors), *sentences[0].split()}
        present = {color for color in _COLORS if (pixels == _COLORS[color]).all(-1).any()}
        assert present == set(colors)
    assert {1, 2, 3, "left", "above", "below", "middle"} <= seen


def test_scenes_depend_on_split_seed_and_index_alone():
    drawn = []
    for split, seed in (("train", 1), ("train", 1), ("train", 2), ("val", 1)):
        scenes = CaptionedShapes(split, seed, CONFIG)
        drawn.append([(scenes.captions(i), scenes.pixels(i).tobytes()) for i in (5, 3)])
    assert drawn[0] == drawn[1]
    assert drawn[2] != drawn[0] != drawn[3]


def test_epochs_of_training_are_new_and_others_are_fixed():
    train, val, test = (CaptionedShapes(split, 1, CONFIG) for split in ("train", "val", "test"))
    assert train.epoch(2) == range(400, 600)
    assert val.epoch(0) == val.epoch(3) == range(4)
    assert test.epoch(1) == range(7)
    assert test.name(3) == "test-3"


def test_small_scenes_are_refused():
    with pytest.raises(UserError, match="at least 24 for drawn scenes"):
        CaptionsConfig(width=20, height=40)
