"""COCO's JSON: ambiguous and unusable entries are reported by location; groups of objects are
skipped and counted."""

import json
import warnings
from dataclasses import replace

import pytest
from PIL import Image

from regard.data.config import BoxesConfig
from regard.data.images.boxes import read_boxes
from regard.data.images.files import ImageFiles, find_images, open_first
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

    def read(data, on_bad="error"):
        (tmp_path / "a.json").write_text(data if isinstance(data, str) else json.dumps(data))
        return read_boxes(tmp_path / "a.json", tmp_path, replace(CONFIG, on_bad=on_bad))

    return read


def test_ids_are_numbers_or_strings(read):
    boxes = read(content())
    assert [item.labels for item in boxes.items] == [("cat",), ("dog",)]
    assert boxes.items[1].boxes.tolist() == [[5, 6.5, 7, 8]]


def test_numbers_may_be_written_as_floats_and_strings(read):
    document = content()
    document["images"][1] |= {"id": 1.0, "width": 40.0, "height": "30"}
    document["categories"][0]["id"] = 1.0
    document["annotations"][1] |= {"image_id": 1, "iscrowd": 0.0}
    document["annotations"][0] |= {"image_id": 0.0, "iscrowd": None}
    assert [item.labels for item in read(document).items] == [("cat",), ("dog",)]
    document["annotations"][0]["iscrowd"] = "1"
    assert [item.labels for item in read(document).items] == [(), ("dog",)]


@pytest.mark.parametrize("ids", [(5, 5), (float("nan"), None), ([], True)])
def test_ids_of_annotations_are_ignored(read, ids):
    document = content()
    for annotation, key in zip(document["annotations"], ids, strict=True):
        annotation["id"] = key
    assert [item.labels for item in read(document).items] == [("cat",), ("dog",)]


def test_box_is_that_around_the_polygons_if_there_is_none(read):
    document = content()
    document["annotations"][0]["segmentation"] = [[0, 0, 40, 30]]
    box = {"bbox": None, "segmentation": [[5, 6.5, 12, 7, 9, 14.5], [6, 8, 7, 9, 8, 8]]}
    document["annotations"][1] |= box
    assert [item.boxes.tolist() for item in read(document).items] == [
        [[1, 2, 3, 4]],
        [[5, 6.5, 7, 8]],
    ]
    for other, message in (
        (
            {"counts": [1, 2], "size": [3, 4]},
            "must have a bbox, or a segmentation that is a list of polygons",
        ),
        ([[1, 2, 3]], "must be lists of x1, y1, x2, y2"),
        ([["a", 2]], "must be lists of x1, y1, x2, y2"),
        ([], "must be lists of x1, y1, x2, y2"),
    ):
        document["annotations"][1]["segmentation"] = other
        with pytest.raises(UserError, match=rf"annotation 2: .*{message}"):
            read(document)


def test_size_of_zero_is_that_of_the_file(read):
    document = content()
    document["images"][0] |= {"width": 0, "height": 0}
    assert [item.boxes.tolist() for item in read(document).items] == [
        [[1, 2, 3, 4]],
        [[5, 6.5, 7, 8]],
    ]


def test_images_and_categories_may_be_given_twice_if_they_are_the_same(read):
    document = content()
    for part in ("images", "categories"):
        document[part] += [dict(row, more=1) for row in document[part]]
    assert [item.labels for item in read(document).items] == [("cat",), ("dog",)]
    document["images"][-1]["width"] = 41
    with pytest.raises(UserError, match="image 4: the id 1 is already used by another image"):
        read(document)


def test_unusable_entries_are_an_error_or_skipped(read, tmp_path):
    document = content()
    document["images"].append({"id": 2, "file_name": "gone.png"})
    document["images"].append({"id": 3, "file_name": "damaged.png"})
    (tmp_path / "damaged.png").write_bytes(b"x")
    document["annotations"] += [
        {"image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4]},
        {"image_id": 0, "category_id": 9, "bbox": [1, 2, 3, 4]},
        {"image_id": 0, "category_id": 1, "bbox": [1, 2, 3]},
        {"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 0]},
        {"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]},
    ]
    with pytest.raises(
        UserError,
        match=r"annotation 3: .*With --data.on-bad skip, such images and boxes are left out",
    ):
        read(document)
    boxes = read(document, "skip")
    assert [item.labels for item in boxes.items] == [("cat",), ("dog",)]
    assert [boxes.load(i).size for i in range(2)] == [(40, 30)] * 2
    reasons = (
        "no image with id 9",
        "no category with id 9",
        "expected x, y",
        "no area",
        "no image gone",
        "not one of PNG",
    )
    assert len(boxes.skipped) == len(reasons)
    assert all(any(reason in line for line in boxes.skipped) for reason in reasons)
    document["images"] = document["images"][2:]
    with pytest.raises(UserError, match="contains no image that can be used; first problem: "):
        read(document, "skip")


def test_groups_of_objects_are_skipped_and_counted(read):
    document = content()
    document["annotations"][0]["iscrowd"] = 1
    boxes = read(document)
    assert [item.labels for item in boxes.items] == [(), ("dog",)]
    assert len(boxes.skipped) == 1
    assert "annotation 1: covers a group of objects (iscrowd = 1)" in boxes.skipped[0]


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("images", "id", 1, "image 2: the id 1 is already used by another image"),
        ("images", "id", [1], "image 1: id must be an integer or a short string"),
        ("images", "id", True, "image 1: id must be an integer"),
        ("images", "file_name", "1.png", "image 2: the file '1.png' is already used by image 1"),
        ("images", "file_name", "", "image 1: expected the name of an image file, got none"),
        ("images", "file_name", "../9.png", "image 1: there is no image ../9.png in"),
        ("images", "file_name", "x" * 5000, "image 1: there is no image x"),
        ("images", "file_name", "a\0b", "image 1: there is no image"),
        (
            "images",
            "width",
            41,
            "image 1: states 41 x 30 pixels for 0.png, but the image has 40 x 30",
        ),
        ("images", "height", None, "image 1: width and height must be integers above 0"),
        ("images", "height", -30, "image 1: width and height must be integers above 0"),
        ("categories", "id", "d", "category 2: the id 'd' is already used by another category"),
        ("categories", "name", "", "category 1: expected a label, got none"),
        ("categories", "name", None, "category 1: expected a label, got none"),
        ("categories", "name", "\ud800", "category 1: expected a label, got a lone surrogate"),
        ("images", "id", 1.5, "image 1: id must be an integer or a short string"),
        ("images", "id", float("nan"), "image 1: id must be an integer or a short string"),
        ("images", "id", 2.0**53, "image 1: id must be an integer or a short string"),
        (
            "images",
            "id",
            "0",
            "annotation 1: there is no image with id 0, only '0': a number and a string are "
            "different ids",
        ),
        (
            "annotations",
            "image_id",
            "0",
            "annotation 1: there is no image with id '0', only 0: a number and a string",
        ),
        ("images", "width", 40.5, "image 1: width and height must be integers above 0"),
        ("images", "width", "forty", "image 1: width and height must be integers above 0"),
        ("images", "width", True, "image 1: width and height must be integers above 0"),
        ("images", "width", float("nan"), "image 1: width and height must be integers above 0"),
        ("annotations", "iscrowd", float("nan"), "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "iscrowd", 0.5, "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "image_id", [0], "annotation 1: image_id must be an integer"),
        ("annotations", "image_id", 9, "annotation 1: there is no image with id 9"),
        ("annotations", "category_id", {}, "annotation 1: category_id must be an integer"),
        ("annotations", "iscrowd", "no", "annotation 1: iscrowd must be 0 or 1"),
        ("annotations", "bbox", "1234", "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [True] * 4, "annotation 1: expected x, y, width, height"),
        ("annotations", "bbox", [10**400, 1, 1, 1], "annotation 1: expected x, y, width, height"),
        (
            "annotations",
            "bbox",
            [float("nan"), 1, 1, 1],
            "annotation 1: expected x, y, width, height",
        ),
        ("annotations", "bbox", [1e10, 1, 1, 1], "four numbers of at most 1e.09"),
        ("annotations", "bbox", [1e-320] * 4, "has no area"),
        ("annotations", "bbox", [1, 1, -2, 2], "has no area"),
    ],
)
def test_invalid_entry_is_reported_with_its_location(read, part, key, value, message):
    document = content()
    document[part][0][key] = value
    with pytest.raises(UserError, match=rf"a.json, .*{message}"):
        read(document)


@pytest.mark.parametrize(
    "document", ["[]", '{"images": [], "images": []}', "[" * 100_000, '{"images": {}}', "\ufeff{"]
)
def test_other_json_is_refused(read, document):
    with pytest.raises(UserError, match=r"a\.json(, record 1)?: "):
        read(document)


def test_message_is_short_for_a_long_entry(read):
    document = content()
    document["annotations"][0]["bbox"] = ["x" * 100_000] * 4
    with pytest.raises(UserError) as error:
        read(document)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "name",
    [
        "C:\\Users\\me\\images\\0.jpg",
        "/home/other/images/0.jpg",
        "..\\..\\upload\\1\\0.jpg",
        "0.JPG",
        "a/0.Jpg",
    ],
)
def test_image_of_another_computer_is_found_by_the_last_part_of_its_name(tmp_path, name):
    Image.new("RGB", (8, 6), (10, 20, 30)).save(tmp_path / "0.jpg")
    files = ImageFiles.from_path(tmp_path)
    with pytest.warns(
        UserWarning,
        match="has no .*: images are found by the last parts of their names, here 0.jpg",
    ):
        assert files.open(name, "a.json").image.size == (8, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one notice
        assert files.open(name, "a.json").image.size == (8, 6)
    assert not files.has("b/1.jpg", by_last_parts=True)
    with pytest.raises(UserError, match=r"would both be the file 0.jpg"):
        files.open("b/0.jpg", "a.json")


def test_images_that_differ_in_case_alone_are_not_mixed(tmp_path):
    for name, width in (("a.png", 3), ("A.png", 5)):
        Image.new("RGB", (width, 6)).save(tmp_path / name)
    files = ImageFiles.from_path(tmp_path)
    assert [files.open(name, "").image.width for name in ("a.png", "A.png")] == [3, 5]
    assert not files.has("A.PNG", by_last_parts=True)


def test_a_folder_with_the_whole_name_is_taken_before_one_with_its_last_part(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (3, 6)).save(tmp_path / "0.png")
    Image.new("RGB", (5, 6)).save(tmp_path / "images" / "0.png")
    files = find_images(tmp_path / "a.json", None)
    assert [open_first(files, name, "")[1].image.width for name in ("images/0.png", "0.png")] == [
        5,
        5,
    ]


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_file_outside_the_folder_is_not_replaced_by_one_of_its_name_inside(tmp_path, is_absolute):
    for folder in ("train", "val"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 6)).save(tmp_path / folder / "0.png")
    name = str(tmp_path / "val" / "0.png") if is_absolute else "../val/0.png"
    with pytest.raises(UserError, match="must be inside"):
        ImageFiles.from_path(tmp_path / "train").open(name, "a.json")
