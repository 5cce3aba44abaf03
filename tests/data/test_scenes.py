"""Scenes: pure functions of (seed, split, number), described as they are; captions of one's own."""

import json

import numpy as np
import pytest
from PIL import Image

from regard.data.config import ScenesConfig
from regard.data.images import Images
from regard.data.labeled import Labels
from regard.data.scenes import NOTHING, Scene, Scenes, cells, drawings_to_test, item_names, training_drawings
from regard.errors import UserError

NAMES = ("bag", "eel", "shoe")


def made(split="train", seed=1, **settings) -> Scenes:
    """Images of 2 x 3 pixels that are all 10 (class + 1)."""
    numbers = [0, 1, 2, 0, 1, 2, 2]
    pixels = np.stack([np.full((1, 2, 3), 10 * (number + 1), np.uint8) for number in numbers])
    images = Images(pixels, tuple(map(str, numbers)), "made", tuple(map(str, range(7))))
    return Scenes(images, numbers, NAMES, ScenesConfig(**settings), seed=seed, split=split)


def test_scenes_depend_on_seed_split_and_number_alone():
    one, again = made(), made()
    for index in (5, 3, 5):
        assert one.scene(index) == again.scene(index)
        assert np.array_equal(one.canvas(index), again.canvas(index))
    firsts = [[source.text(i) for i in range(30)] for source in (made(), made(seed=2), made(split="test"))]
    assert firsts[0] != firsts[1]
    assert firsts[0] != firsts[2]


def test_epochs_show_new_scenes_and_tests_the_same():
    train, val, test = (made(split, scenes=7, test_scenes=5) for split in ("train", "val", "test"))
    assert list(train.epoch(2)) == list(range(14, 21))
    assert list(val.epoch(0)) == list(val.epoch(4)) == [0, 1, 2]
    assert list(test.epoch(0)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sides", [(1, 2, 2), (2, 2, 4), (2, 1, 1)])
def test_canvases_show_what_is_said(sides):
    rows, columns, most = sides
    scenes = made(rows=rows, columns=columns, most=most)
    seen = set()
    for index in range(200):
        scene, canvas = scenes.scene(index), scenes.canvas(index)
        assert canvas.shape == scenes.shape == (1, 2 * rows, 3 * columns)
        values = cells(canvas[None], rows, columns).reshape(rows * columns, -1)
        assert (values == values[:, :1]).all()
        shown = tuple(int(value) // 10 - 1 if value else NOTHING for value in values[:, 0])
        assert shown == scene.items
        assert scene.is_shown_by(shown)
        there = [number for number in shown if number != NOTHING]
        assert 1 <= len(there) <= most
        for number in set(there):
            count, name = there.count(number), NAMES[number]
            words = {1: f"an {name}" if name == "eel" else f"a {name}", 2: f"two {name}s"}
            assert words.get(count, f"{name}s") in scene.text
        seen.add(" of " in scene.text or "above" in scene.text or "below" in scene.text)
    assert seen == ({False} if most == 1 else {True, False})


def test_order_counts_only_where_the_text_names_it():
    plain = Scene("a bag and a shoe", (0, 2), (0, 0), columns=2)
    assert plain.is_shown_by((2, 0))
    assert not plain.is_shown_by((2, 2))
    assert not plain.is_shown_by((0, NOTHING))
    told = Scene("a bag left of a shoe", (0, 2), (0, 0), named=(0, 2), columns=2)
    assert told.is_shown_by((0, 2))
    assert not told.is_shown_by((2, 0))
    wide = Scene("a bag above a shoe", (0, NOTHING, 2, NOTHING), (0, 0, 0, 0), named=(0, 2), columns=2)
    assert wide.is_shown_by((NOTHING, 0, NOTHING, 2))
    assert not wide.is_shown_by((0, 2, NOTHING, NOTHING))


def test_cells_are_cut_row_by_row():
    canvas = np.arange(24, dtype=np.uint8).reshape(1, 1, 4, 6)
    cut = cells(canvas, 2, 3)
    assert cut.shape == (6, 1, 2, 2)
    assert cut[1].tolist() == [[[2, 3], [8, 9]]]
    assert cut[3].tolist() == [[[12, 13], [18, 19]]]


def test_digits_have_words_and_given_names_must_fit():
    train, val, labels = training_drawings(ScenesConfig(), seed=1)
    assert train.shape == val.shape == (1, 8, 16)
    assert any(
        word in train.text(0) for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    )
    assert labels is not None
    with pytest.raises(UserError, match="`names` must be 10, one for each class, but are 2"):
        item_names(labels, ScenesConfig(names=("a", "b")))
    with pytest.raises(UserError, match="names of the classes must all differ"):
        item_names(Labels(("a_b", "a b")), ScenesConfig(train="x"))
    assert item_names(Labels(("ankle_boot", "bag")), ScenesConfig(train="x")) == ("ankle boot", "bag")


def test_more_items_than_places_are_refused():
    with pytest.raises(UserError, match="`most` must be at most the places of a canvas, 2, but is 3"):
        ScenesConfig(most=3)


def picture(path, width=6, value=9):
    Image.fromarray(np.full((4, width), value, np.uint8)).save(path)


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_captions_of_ones_own(tmp_path, ending):
    rows = [("a.png", "a red cat"), ("b.png", "two dogs"), ("a.png", "again"), ("b.png", "and again")]
    for number, name in enumerate(("a.png", "b.png")):
        picture(tmp_path / name, value=50 * (number + 1))
    lines = [
        "\t".join(row) if ending == "tsv" else json.dumps(dict(zip(("image", "text"), row, strict=True)))
        for row in rows
    ]
    file = tmp_path / f"all.{ending}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    train, val, labels = training_drawings(ScenesConfig(train=str(file), val_share=0.25), seed=1)
    assert labels is None
    assert (len(train.epoch(0)), len(val.epoch(0))) == (3, 1)
    whole = {(train.text(i), int(train.canvas(i).max())) for i in range(3)} | {(val.text(0), int(val.canvas(0).max()))}
    assert whole == {("a red cat", 50), ("two dogs", 100), ("again", 50), ("and again", 100)}


def test_bad_captions_are_named_by_line(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "wide.png", width=9)
    file = tmp_path / "all.tsv"
    for line, message in [
        ("gone.png\ta cat", r"all.tsv, line 2: .*gone.png: no such file. .*Names of images are relative"),
        ("wide.png\ta cat", r"line 2: .*wide.png: has 9 x 4 pixels, but the images before it 6 x 4"),
        ("a.png\t ", r"line 2: the target side is empty"),
        ("a.png", r"line 2: expected 2 columns"),
    ]:
        file.write_text(f"a.png\ta dog\n{line}\n", encoding="utf-8")
        with pytest.raises(UserError, match=message):
            training_drawings(ScenesConfig(train=str(file)), seed=1)
    file.write_text("a.png\ta dog\ngone.png\ta cat\na.png\ta cow\n", encoding="utf-8")
    train, val, _ = training_drawings(ScenesConfig(train=str(file), on_bad="skip", val_share=0.5), seed=1)
    assert len(train.epoch(0)) + len(val.epoch(0)) == 2
    assert len(train.skipped) == 1
    assert "line 2: " in train.skipped[0]


def test_test_data_must_be_of_the_runs_kind(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "cat").mkdir()
    picture(tmp_path / "cat" / "1.png")
    labels, config = Labels(("bag", "eel")), ScenesConfig(train="x")
    with pytest.raises(UserError, match="class 'cat' is none of those of the training images: bag, eel"):
        drawings_to_test(tmp_path, config, seed=1, labels=labels, shape=(1, 4, 12))
    (tmp_path / "eel").mkdir()
    picture(tmp_path / "eel" / "1.png")
    lenient = ScenesConfig(train="x", on_bad="skip")
    found = drawings_to_test(tmp_path, lenient, seed=1, labels=labels, shape=(1, 4, 12))
    assert {found.text(i) for i in range(20)} == {"an eel", "two eels"}
    beside, skipped = found.left_out()
    assert "1 images lie in no class folder and are not read; first: " in beside
    assert "skipped 1 files; first: " in skipped
    assert "class 'cat' is unknown" in skipped
    with pytest.raises(UserError, match="6 x 4 pixels, but the images before it 3 x 4"):
        drawings_to_test(tmp_path, config, seed=1, labels=labels, shape=(1, 4, 6))
    with pytest.raises(UserError, match=r"learned from images with texts: expected FILE\.tsv"):
        drawings_to_test(tmp_path, config, seed=1, labels=None, shape=(1, 4, 12))
