"""Scenes are pure functions of (seed, split, number) with correct texts; users' captions."""

import json

import numpy as np
import pytest
from PIL import Image

from regard.data.config import ScenesConfig
from regard.data.embedded.scenes import (
    NOTHING,
    DrawnScene,
    SceneDataset,
    class_names,
    load_test_canvases,
    load_training_canvases,
    split_cells,
)
from regard.data.images.dataset import ImageDataset
from regard.data.text.labels import Labels
from regard.errors import UserError

NAMES = ("bag", "eel", "shoe")


def make_dataset(split="train", seed=1, **settings) -> SceneDataset:
    """Return scenes of images of 2 x 3 pixels with the constant value 10 (class + 1)."""
    numbers = [0, 1, 2, 0, 1, 2, 2]
    pixels = np.stack([np.full((1, 2, 3), 10 * (number + 1), np.uint8) for number in numbers])
    images = ImageDataset(
        pixels, tuple(map(str, numbers)), "constant images", tuple(map(str, range(7)))
    )
    return SceneDataset(images, numbers, NAMES, ScenesConfig(**settings), seed=seed, split=split)


def test_scenes_depend_on_seed_split_and_number_alone():
    first, second = make_dataset(), make_dataset()
    for index in (5, 3, 5):
        assert first.scene(index) == second.scene(index)
        assert np.array_equal(first.canvas(index), second.canvas(index))
    texts = [first.text(i) for i in range(30)]
    for other in (make_dataset(seed=2), make_dataset(split="test")):
        assert [other.text(i) for i in range(30)] != texts


def test_epochs_have_new_scenes_and_tests_the_same():
    train, val, test = (
        make_dataset(split, epoch_size=7, test_size=5) for split in ("train", "val", "test")
    )
    assert list(train.epoch(2)) == list(range(14, 21))
    assert list(val.epoch(0)) == list(val.epoch(4)) == [0, 1, 2]
    assert list(test.epoch(0)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sides", [(1, 2, 2), (2, 2, 4), (2, 1, 1)])
def test_canvas_agrees_with_items_and_text(sides):
    rows, columns, max_items = sides
    scenes = make_dataset(rows=rows, columns=columns, max_items=max_items)
    has_relation = set()
    for index in range(200):
        scene, canvas = scenes.scene(index), scenes.canvas(index)
        assert canvas.shape == scenes.shape == (1, 2 * rows, 3 * columns)
        values = split_cells(canvas[None], rows, columns).reshape(rows * columns, -1)
        assert (values == values[:, :1]).all()
        items = tuple(int(value) // 10 - 1 if value else NOTHING for value in values[:, 0])
        assert items == scene.items
        assert scene.matches(items)
        present = [number for number in items if number != NOTHING]
        assert 1 <= len(present) <= max_items
        for number in set(present):
            count, name = present.count(number), NAMES[number]
            words = {1: f"an {name}" if name == "eel" else f"a {name}", 2: f"two {name}s"}
            assert words.get(count, f"{name}s") in scene.text
        has_relation.add(" of " in scene.text or "above" in scene.text or "below" in scene.text)
    assert has_relation == ({False} if max_items == 1 else {True, False})


def test_order_matters_only_if_the_text_states_it():
    plain = DrawnScene("a bag and a shoe", (0, 2), (0, 0), columns=2)
    assert plain.matches((2, 0))
    assert not plain.matches((2, 2))
    assert not plain.matches((0, NOTHING))
    ordered = DrawnScene("a bag left of a shoe", (0, 2), (0, 0), named=(0, 2), columns=2)
    assert ordered.matches((0, 2))
    assert not ordered.matches((2, 0))
    cells = (0, NOTHING, 2, NOTHING)
    wide = DrawnScene("a bag above a shoe", cells, (0, 0, 0, 0), named=(0, 2), columns=2)
    assert wide.matches((NOTHING, 0, NOTHING, 2))
    assert not wide.matches((0, 2, NOTHING, NOTHING))


def test_digits_are_named_in_words_and_names_must_match_the_classes():
    train, val, labels = load_training_canvases(ScenesConfig(), seed=1)
    assert train.shape == val.shape == (1, 8, 16)
    assert labels is not None
    assert class_names(labels, ScenesConfig())[:2] == ("zero", "one")
    with pytest.raises(UserError, match="`names` must have 10 entries, one for each class, got 2"):
        class_names(labels, ScenesConfig(names=("a", "b")))
    with pytest.raises(UserError, match="names of classes must differ"):
        class_names(Labels(("a_b", "a b")), ScenesConfig(train=("x",)))
    names = class_names(Labels(("ankle_boot", "bag")), ScenesConfig(train=("x",)))
    assert names == ("ankle boot", "bag")
    with pytest.raises(UserError, match="`max_items` must be at most the 2 cells"):
        ScenesConfig(max_items=3)


def save_image(path, width=6, value=9):
    Image.fromarray(np.full((4, width), value, np.uint8)).save(path)


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_captions_of_the_users_images(tmp_path, ending):
    texts = {"a red cat": 50, "two dogs": 100, "again": 50, "and again": 100}
    lines = []
    for text, value in texts.items():
        save_image(tmp_path / f"{value}.png", value=value)
        row = {"image": f"{value}.png", "text": text}
        lines.append(json.dumps(row) if ending == "jsonl" else "\t".join(row.values()))
    file = tmp_path / f"all.{ending}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = ScenesConfig(train=(str(file),), val_share=0.25)
    train, val, labels = load_training_canvases(config, seed=1)
    assert labels is None
    assert (len(train.epoch(0)), len(val.epoch(0))) == (3, 1)
    found = {}
    for data in (train, val):
        for i in data.epoch(0):
            found[data.text(i)] = int(data.canvas(i).max())
    assert found == texts


def test_bad_captions_are_reported_with_their_line(tmp_path):
    save_image(tmp_path / "a.png")
    save_image(tmp_path / "wide.png", width=9)
    file = tmp_path / "all.tsv"
    for line, message in [
        ("gone.png\ta cat", r"all.tsv, line 2: .*gone.png: no such file"),
        ("wide.png\ta cat", r"line 2: .*wide.png: has 9 x 4 pixels, expected 6 x 4"),
        ("a.png\t ", "line 2: the text is empty"),
    ]:
        file.write_text(f"a.png\ta dog\n{line}\n", encoding="utf-8")
        with pytest.raises(UserError, match=message):
            load_training_canvases(ScenesConfig(train=(str(file),)), seed=1)
    file.write_text("a.png\ta dog\ngone.png\ta cat\na.png\ta cow\n", encoding="utf-8")
    config = ScenesConfig(train=(str(file),), on_bad="skip", val_share=0.5)
    train, val, _ = load_training_canvases(config, seed=1)
    assert len(train.epoch(0)) + len(val.epoch(0)) == 2
    assert len(train.notices) == 1
    assert "line 2: " in train.notices[0]


def test_test_data_must_match_the_training_data(tmp_path):
    save_image(tmp_path / "a.png")
    (tmp_path / "cat").mkdir()
    save_image(tmp_path / "cat" / "1.png")
    labels, config = Labels(("bag", "eel")), ScenesConfig(train=("x",))
    message = r"class 'cat' does not occur in the training images \(bag, eel\)"
    with pytest.raises(UserError, match=message):
        load_test_canvases(tmp_path, config, seed=1, labels=labels, shape=(1, 4, 12))
    (tmp_path / "eel").mkdir()
    save_image(tmp_path / "eel" / "1.png")
    lenient = ScenesConfig(train=("x",), on_bad="skip")
    scenes = load_test_canvases(tmp_path, lenient, seed=1, labels=labels, shape=(1, 4, 12))
    assert {scenes.text(i) for i in range(20)} == {"an eel", "two eels"}
    (skipped,) = scenes.notices
    assert "class 'cat' does not occur" in skipped
    with pytest.raises(UserError, match="6 x 4 pixels, expected 3 x 4"):
        load_test_canvases(tmp_path, config, seed=1, labels=labels, shape=(1, 4, 6))
    with pytest.raises(UserError, match="expected a table of images with texts"):
        load_test_canvases(tmp_path, config, seed=1, labels=None, shape=(1, 4, 12))
