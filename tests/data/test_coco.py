"""COCO's JSON: what is ambiguous or no box is named by its place; regions of many are left out, and counted."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from regard.data.boxes import read_boxes
from regard.data.sets_config import BoxesConfig
from regard.errors import UserError

CONFIG = BoxesConfig(width=40, height=30)


def content():
    return {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 40, "height": 30} for i in range(2)],
        "categories": [{"id": 1, "name": "cat"}, {"id": "d", "name": "dog"}],
        "annotations": [
            {"id": 5, "image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4], "iscrowd": 0},
            {"id": 6, "image_id": 1, "category_id": "d", "bbox": [5, 6.5, 7, 8]},
        ],
    }


@pytest.fixture
def read(tmp_path):
    for number in range(2):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.png")

    def read(given, on_bad="error"):
        (tmp_path / "a.json").write_text(given if isinstance(given, str) else json.dumps(given))
        return read_boxes(tmp_path / "a.json", tmp_path, replace(CONFIG, on_bad=on_bad))

    return read


def test_ids_are_numbers_or_texts(read):
    found = read(content())
    assert [item.labels for item in found.items] == [("cat",), ("dog",)]
    assert found.items[1].boxes.tolist() == [[5, 6.5, 7, 8]]


def test_numbers_may_be_written_as_floats_and_texts(read):
    given = content()
    given["images"][1] |= {"id": 1.0, "width": 40.0, "height": "30"}
    given["categories"][0]["id"] = 1.0
    given["annotations"][1] |= {"image_id": 1, "iscrowd": 0.0}
    given["annotations"][0] |= {"image_id": 0.0, "iscrowd": None}
    assert [item.labels for item in read(given).items] == [("cat",), ("dog",)]
    given["annotations"][0]["iscrowd"] = "1"
    assert [item.labels for item in read(given).items] == [(), ("dog",)]


@pytest.mark.parametrize("ids", [(5, 5), (float("nan"), None), ([], True)])
def test_ids_of_annotations_are_not_read(read, ids):
    given = content()
    for one, key in zip(given["annotations"], ids, strict=True):
        one["id"] = key
    assert [item.labels for item in read(given).items] == [("cat",), ("dog",)]


def test_images_and_categories_may_be_given_twice_if_they_are_the_same(read):
    given = content()
    for part in ("images", "categories"):
        given[part] += [dict(one, more=1) for one in given[part]]
    assert [item.labels for item in read(given).items] == [("cat",), ("dog",)]
    given["images"][-1]["width"] = 41
    with pytest.raises(UserError, match="image 4: the id 1 is that of another image already"):
        read(given)


def test_what_cannot_be_used_is_left_out_and_counted_if_asked(read, tmp_path):
    given = content()
    given["images"].append({"id": 2, "file_name": "gone.png"})
    given["images"].append({"id": 3, "file_name": "damaged.png"})
    (tmp_path / "damaged.png").write_bytes(b"x")
    given["annotations"] += [
        {"image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4]},
        {"image_id": 0, "category_id": 9, "bbox": [1, 2, 3, 4]},
        {"image_id": 0, "category_id": 1, "bbox": [1, 2, 3]},
        {"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 0]},
        {"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]},
    ]
    with pytest.raises(UserError, match=r"annotation 3: .*With `on_bad` = skip, it is left out and counted.$"):
        read(given)
    found = read(given, "skip")
    assert [item.labels for item in found.items] == [("cat",), ("dog",)]
    assert [found.draw(i).size for i in range(2)] == [(40, 30)] * 2
    reasons = "no image with id 9", "no category with id 9", "expected x, y", "no area", "no image gone", "none of PNG"
    assert len(found.skipped) == len(reasons)
    assert all(any(reason in line for line in found.skipped) for reason in reasons)
    given["images"] = given["images"][2:]
    with pytest.raises(UserError, match="there is no image in it that can be used; first: "):
        read(given, "skip")


def test_regions_of_many_are_left_out_and_counted(read):
    given = content()
    given["annotations"][0]["iscrowd"] = 1
    found = read(given)
    assert [item.labels for item in found.items] == [(), ("dog",)]
    assert len(found.skipped) == 1
    assert "annotation 1: a region of many" in found.skipped[0]


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("images", "id", 1, "image 2: the id 1 is that of another image already"),
        ("images", "id", [1], "image 1: id must be a whole number or a short text"),
        ("images", "id", True, "image 1: id must be a whole number"),
        ("images", "file_name", "1.png", "image 2: the file '1.png' is that of image 1 already"),
        ("images", "file_name", "", "image 1: expected the name of an image file, got none"),
        ("images", "file_name", "../0.png", "image 1: the image '../0.png' must be a name inside"),
        ("images", "file_name", "x" * 5000, "image 1: there is no image x"),
        ("images", "file_name", "a\0b", "image 1: there is no image"),
        ("images", "width", 41, "image 1: says that 0.png has 41 x 30 pixels, but the file has 40 x 30"),
        ("images", "height", None, "image 1: width and height must be whole numbers above 0"),
        ("images", "height", -30, "image 1: width and height must be whole numbers above 0"),
        ("categories", "id", "d", "category 2: the id 'd' is that of another category"),
        ("categories", "name", "", "category 1: expected a label, got none"),
        ("categories", "name", None, "category 1: expected a label, got none"),
        ("categories", "name", "\ud800", "category 1: expected a label, got half a surrogate pair"),
        ("images", "id", 1.5, "image 1: id must be a whole number or a short text"),
        ("images", "id", float("nan"), "image 1: id must be a whole number or a short text"),
        ("images", "id", 2.0**53, "image 1: id must be a whole number or a short text"),
        ("images", "id", "0", "annotation 1: there is no image with id 0, but '0': a number and a text are two ids"),
        ("annotations", "image_id", "0", "annotation 1: there is no image with id '0', but 0: a number and a text"),
        ("images", "width", 40.5, "image 1: width and height must be whole numbers above 0"),
        ("images", "width", "forty", "image 1: width and height must be whole numbers above 0"),
        ("images", "width", True, "image 1: width and height must be whole numbers above 0"),
        ("images", "width", float("nan"), "image 1: width and height must be whole numbers above 0"),
        ("annotations", "iscrowd", float("nan"), "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "iscrowd", 0.5, "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "image_id", [0], "annotation 1: image_id must be a whole number"),
        ("annotations", "image_id", 9, "annotation 1: there is no image with id 9"),
        ("annotations", "category_id", {}, "annotation 1: category_id must be a whole number"),
        ("annotations", "iscrowd", "no", "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "bbox", "1234", "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [True] * 4, "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [10**400, 1, 1, 1], "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [float("nan"), 1, 1, 1], "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [1e10, 1, 1, 1], "four numbers of at most 1e.09"),
        ("annotations", "bbox", [1e-320] * 4, "has no area"),
        ("annotations", "bbox", [1, 1, -2, 2], "has no area"),
    ],
)
def test_what_cannot_be_meant_is_named_by_its_place(read, part, key, value, message):
    given = content()
    given[part][0][key] = value
    with pytest.raises(UserError, match=rf"a.json, .*{message}"):
        read(given)


@pytest.mark.parametrize("given", ["[]", '{"images": [], "images": []}', "[" * 100_000, '{"images": {}}', "\ufeff{"])
def test_other_json_is_refused(read, given):
    with pytest.raises(UserError, match=r"a\.json: "):
        read(given)


def test_message_is_short_whatever_is_in_the_file(read):
    given = content()
    given["annotations"][0]["bbox"] = ["x" * 100_000] * 4
    with pytest.raises(UserError) as error:
        read(given)
    assert len(str(error.value)) < 500
