"""Images with boxes: formats agree, bad data is reported, boxes follow augmentation."""

import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.config import BoxesConfig
from regard.data.embedded.shapes import make_shapes
from regard.data.images.box_batches import BoxBatches, resize_and_pad
from regard.data.images.boxes import read_boxes
from regard.data.text.labels import Labels
from regard.errors import UserError
from tests.helpers import close

CONFIG = BoxesConfig(width=40, height=30)
CHANGES = ("zoom", "flip", "flip-vertical", "color")
HEAD = "file,x,y,width,height,label\n"
CSV = f"{HEAD}a.png,2,3,10,12,cat\na.png,20,5,8,8,dog\nb.png,,,,,\n"
JSONL = """\
{"file": "a.png", "boxes": [{"x": 2, "y": 3, "width": 10, "height": 12, "label": "cat"},\
 {"x": 20, "y": 5, "width": 8, "height": 8, "label": "dog"}]}
{"file": "b.png", "boxes": []}
"""
CAT = {"id": 1, "image_id": 0, "category_id": 7, "bbox": [2, 3, 10, 12]}
DOG = {"id": 2, "image_id": 0, "category_id": 8, "bbox": [20, 5, 8, 8]}


def coco(*annotations: dict) -> str:
    images = [{"id": 0, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}]
    categories = [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}]
    content = {"images": images, "categories": categories, "annotations": annotations}
    return json.dumps(content)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 30), (10, 20, 30)).save(tmp_path / "images" / name)
    return tmp_path


def read(folder, name, content, images="images", **settings) -> AnnotatedDataset:
    (folder / name).write_text(content, encoding="utf-8")
    return read_boxes(folder / name, folder / images, BoxesConfig(**settings))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", coco(CAT, DOG)),
        ("a.csv", CSV),
        ("a.tsv", CSV.replace(",", "\t")),
        ("a.jsonl", JSONL),
    ],
)
def test_formats_agree_in_folders_and_tars(folder, name, content):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for image in ("a.png", "b.png"):
            archive.add(folder / "images" / image, arcname=image)
    for images in ("images", "a.tar"):
        data = read(folder, name, content, images)
        assert [item.file for item in data.items] == ["a.png", "b.png"]
        assert data.items[0].boxes.tolist() == [[2, 3, 10, 12], [20, 5, 8, 8]]
        assert data.items[0].labels == ("cat", "dog")
        assert data.items[1].boxes.shape == (0, 4)
        assert data.load(0).size == (40, 30)


@pytest.mark.parametrize("names", ["xmin,ymin,xmax,ymax", "x1,y1,x2,y2"])
@pytest.mark.parametrize("file", ["file", "image", "filename"])
def test_corners_are_read(folder, file, names):
    """The format of TensorFlow's object detection, in which width and height are the image's."""
    path = folder / "images" / "corners.csv"
    path.write_text(f"{file},width,height,class,{names}\na.png,40,30,cat,2,3,12,15\n")
    (item,) = read_boxes(path, None, CONFIG).items
    assert (item.boxes.tolist(), item.labels) == ([[2, 3, 10, 12]], ("cat",))


def test_columns_without_a_header_are_in_order(folder):
    data = read(folder, "a.csv", "a.png,2,3,10,12,cat\n", header="no")
    assert data.items[0].boxes.tolist() == [[2, 3, 10, 12]]


def test_box_is_clipped_in_training_and_must_have_an_area(folder):
    rows = "a.png,39,-9,4,10,cat\na.png,-3,29,43,4,cat\n"
    data = read(folder, "x.csv", HEAD + rows)
    assert data.items[0].boxes.tolist() == [[39, -9, 4, 10], [-3, 29, 43, 4]]
    batches = BoxBatches(data, data.labels, width=40, height=30, rows=1, seed=1)
    regions = batches.collate(0, (0,)).target.regions[0] * torch.tensor([40.0, 30, 40, 30])
    close(regions, torch.tensor([[39.5, 0.5, 1, 1], [20, 29.5, 40, 1]]))
    for box in ("5,5,0,4", "5,5,4,-1", "41,5,4,4", "1,2,nan,4"):
        content = f"{CSV}a.png,{box},cat\n"
        with pytest.raises(UserError, match=r"line 5: box .* has no area inside .* 40 x 30 .*skip"):
            read(folder, "x.csv", content)
        data = read(folder, "x.csv", content, on_bad="skip")
        assert (len(data.items[0].boxes), len(data.notices)) == (2, 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.txt", "", "is empty, expected a header"),
        ("no.json", "5", "expected COCO's images and annotations"),
        ("ids.json", '{"images": [{"id": 1}]}', "expected COCO's format, but .*file_name"),
        ("short.csv", f"{HEAD}a.png,1\n", "line 2: expected 6 cells, got 2"),
        ("text.csv", f"{HEAD}a.png,1,2,x,4,cat\n", "line 2: expected x, y, width, height in numb"),
        ("nolabel.csv", f"{HEAD}a.png,1,2,3,4,\n", "line 2: expected a label"),
        ("gone.csv", f"{HEAD}c.png,1,2,3,4,cat\n", "line 2: .*c.png: no such file"),
        ("columns.csv", "path,x\na.png,1\n", "line 2: expected the name of a file"),
        ("boxes.jsonl", '{"file": "a.png", "boxes": 3}\n', "line 1: boxes must be a list"),
        ("keys.jsonl", '{"file": "a.png", "boxes": [{"label": 1}]}\n', "line 1: expected x, y"),
    ],
)
def test_bad_files_are_named(folder, name, content, message):
    with pytest.raises(UserError, match=rf"{name}.*{message}"):
        read(folder, name, content)


def test_bad_annotations_of_coco_are_an_error_or_skipped(folder):
    for change in ({"category_id": 9}, {"bbox": [1, 2, 3]}, {"bbox": ["x", 2, 3, 4]}):
        content = coco(CAT, DOG | change)
        with pytest.raises(UserError, match=r"c.json, annotation 2: .*--data.on-bad skip"):
            read(folder, "c.json", content)
        data = read(folder, "c.json", content, on_bad="skip")
        assert (data.items[0].labels, len(data.notices)) == (("cat",), 1)


@pytest.mark.parametrize(("items", "field"), [("images", "file_name"), ("categories", "name")])
def test_names_of_coco_are_unique(folder, items, field):
    content = json.loads(coco(CAT))
    content[items].append(content[items][0] | {"id": 77})
    with pytest.raises(UserError, match=f"c.json: {items} .* and 77 have the same {field}"):
        read(folder, "c.json", json.dumps(content))


def test_crowds_and_areas_of_coco_are_for_evaluation(folder):
    (item, *_) = read(folder, "c.json", coco(CAT | {"area": 7}, DOG | {"iscrowd": 1})).items
    assert (item.labels, item.areas) == (("cat",), (7.0,))
    assert item.crowds == (("dog", DOG["bbox"]),)


def test_resize_and_pad_keeps_the_aspect_ratio():
    wide = Image.new("RGB", (80, 20), (255, 0, 0))
    array, frame = resize_and_pad(wide, 40, 30)
    assert (array.shape, frame.scale.tolist(), frame[1:]) == ((30, 40, 3), [0.5] * 4, (80, 20))
    assert (array[:10, :, 0] == 255).all()
    assert (array[10:] == 128).all()


@pytest.mark.parametrize("size", [(3775, 1571), (2000, 61), (500, 20), (61, 2000), (40, 31)])
def test_boxes_are_scaled_as_the_pixels_of_an_image_whose_sides_are_rounded(size):
    array, frame = resize_and_pad(Image.new("RGB", size, (255, 0, 0)), 64, 48)
    is_image = array[..., 1] == 0
    end = np.array([is_image.any(0).sum(), is_image.any(1).sum()])
    np.testing.assert_allclose(frame.scale * [*size, *size], [*end, *end])


def test_boxes_refer_to_the_upright_image(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 30)).save(folder / "images" / "a.png", exif=exif)
    data = read(folder, "x.csv", f"{HEAD}a.png,1,2,29,38,cat\n")
    assert data.items[0].boxes.tolist() == [[1, 2, 29, 38]]
    assert data.load(0).size == (30, 40)


def make_spots(x: int, y: int) -> AnnotatedDataset:
    """Return one image with a bright square on a dark background, and its box."""
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[y : y + 12, x : x + 12] = 255
    item = Annotated("spot", np.array([[x, y, 12.0, 12.0]]), ("spot",), "here")
    return AnnotatedDataset((item,), lambda i: Image.fromarray(pixels), "spots")


def spot_batches(data: AnnotatedDataset, seed: int = 1, **settings) -> BoxBatches:
    return BoxBatches(data, Labels(("spot",)), width=40, height=30, rows=1, seed=seed, **settings)


@pytest.mark.parametrize("seed", range(30))
def test_boxes_follow_the_pixels_of_an_augmented_image(seed):
    draw = np.random.default_rng(seed)
    spots = make_spots(int(draw.integers(0, 28)), int(draw.integers(0, 18)))
    batch = spot_batches(spots, seed, augment=CHANGES).collate(0, (0,))
    bright = (batch.source[0].mean(0) > 0.72).nonzero().double()
    if not (batch.target.labels >= 0).any():
        assert len(bright) < 0.5 * 144 * 1.4**2
        return
    center, size = batch.target.regions[0, 0].double().view(2, 2) * batch.source.new_tensor(
        [40, 30]
    )
    # Pixels are (row, column); x and y of the box are in the opposite order.
    assert bright.amin(0).flip(0).tolist() == pytest.approx((center - size / 2).tolist(), abs=1.5)
    assert (bright.amax(0).flip(0) + 1).tolist() == pytest.approx(
        (center + size / 2).tolist(), abs=1.5
    )


def test_augmentation_shifts_images():
    batches = spot_batches(make_spots(14, 9), augment=CHANGES)
    batch = [batches.collate(epoch, (0,)).target.regions[0, 0, :2].numpy() for epoch in range(20)]
    # Scaled or mirrored only, a spot would stay in the middle.
    assert (np.stack(batch).std(0) > 0.02).all()


def test_boxes_that_leave_the_image_are_dropped_and_gray_comes_in():
    batches = spot_batches(make_spots(0, 0), augment=("zoom",))
    batch = [batches.collate(epoch, (0,)) for epoch in range(40)]
    assert {bool((one.target.labels >= 0).any()) for one in batch} == {True, False}
    assert any((one.source[0, :, -1, -1] == 128 / 255).all() for one in batch)


def test_batches_are_functions_of_seed_and_epoch():
    data, labels = make_shapes("val", 3, CONFIG), Labels(("circle", "square", "triangle"))
    settings = {"width": 40, "height": 30, "rows": 60, "seed": 5, "augment": CHANGES}
    first, second = BoxBatches(data, labels, **settings), BoxBatches(data, labels, **settings)
    (order,) = first.plan(2)
    assert sorted(order) == list(range(60)) != list(order)
    assert first.plan(2) == second.plan(2)
    assert first.plan(2) != first.plan(3)
    assert BoxBatches(data, labels, is_fixed=True, **settings).plan(3) == [tuple(range(60))]
    a, b, c = first.collate(2, (1, 4)), second.collate(2, (1, 4)), first.collate(3, (1, 4))
    assert (a.source == b.source).all()
    assert (a.target.regions == b.target.regions).all()
    assert (a.source != c.source).any()


def test_each_image_is_opened_once():
    opened = []
    data = make_spots(3, 4)
    batches = spot_batches(
        AnnotatedDataset(data.items, lambda i: opened.append(i) or data.load(i), "spots")
    )
    assert batches.frame(0).scale.tolist() == [1] * 4
    batches.collate(0, (0,))
    batches.collate(1, (0,))
    assert opened == [0]


def test_unknown_label_is_named():
    message = r"label 'spot' does not occur in the training images \(cat\)"
    with pytest.raises(UserError, match=message):
        BoxBatches(make_spots(1, 1), Labels(("cat",)), width=40, height=30, rows=1, seed=1)


def test_synthetic_shapes_fill_their_boxes():
    data = make_shapes("train", 1, BoxesConfig(width=64, height=48))
    assert [len(item.labels) for item in data.items[:50]] != [0] * 50
    for i in range(40):
        pixels = np.asarray(data.load(i)).max(-1)
        inside = np.zeros_like(pixels, bool)
        for x, y, w, h in data.items[i].boxes.astype(int):
            inside[y : y + h, x : x + w] = True
        assert (pixels[~inside] < 60).all()
        if len(data.items[i].boxes):
            # The topmost shape touches all four sides of its box.
            x, y, w, h = data.items[i].boxes[-1].astype(int)
            shown = pixels[y : y + h, x : x + w] >= 60
            for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
                assert edge.any()
