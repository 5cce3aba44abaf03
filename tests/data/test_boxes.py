"""Images with boxes: formats agree, bad data is reported, boxes follow augmentation."""

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.config import BoxesConfig
from regard.data.embedded.shapes import make_shapes
from regard.data.images.box_batches import BoxBatches, resize_and_pad
from regard.data.images.boxes import read_boxes
from regard.data.text.labels import Labels
from regard.errors import UserError

CONFIG = BoxesConfig(width=40, height=30)
BOXES = {"a.png": [((2, 3, 10, 12), "cat"), ((20, 5, 8, 8), "dog")], "b.png": []}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in BOXES:
        Image.new("RGB", (40, 30), (10, 20, 30)).save(tmp_path / "images" / name)
    return tmp_path


def write_coco(path: Path, boxes=BOXES, **changes) -> Path:
    names = ["cat", "dog"]
    content = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(boxes)],
        "categories": [{"id": 7 + i, "name": name} for i, name in enumerate(names)],
        "annotations": [
            {"id": 0, "image_id": i, "category_id": 7 + names.index(label), "bbox": list(box)}
            for i, rows in enumerate(boxes.values())
            for box, label in rows
        ],
    }
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def write_csv(path: Path, boxes=BOXES) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "x", "y", "width", "height", "label"])
        for name, rows in boxes.items():
            writer.writerows(
                [[name, *box, label] for box, label in rows] or [[name, "", "", "", "", ""]]
            )
    return path


def write_jsonl(path: Path, boxes=BOXES) -> Path:
    keys = ("x", "y", "width", "height")
    lines = [
        json.dumps(
            {
                "file": name,
                "boxes": [
                    dict(zip(keys, box, strict=True)) | {"label": label} for box, label in rows
                ],
            }
        )
        for name, rows in boxes.items()
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_formats_agree_in_folders_and_tars(folder):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in BOXES:
            archive.add(folder / "images" / name, arcname=name)
    files = [write_coco(folder / "a.json"), write_csv(folder / "c.csv")]
    files.append(write_jsonl(folder / "l.jsonl"))
    files.append(folder / "t.tsv")
    files[-1].write_text(files[1].read_text().replace(",", "\t"))
    for path in files:
        for images in (folder / "images", folder / "a.tar"):
            data = read_boxes(path, images, CONFIG)
            assert [item.file for item in data.items] == ["a.png", "b.png"]
            assert data.items[0].boxes.tolist() == [[2, 3, 10, 12], [20, 5, 8, 8]]
            assert data.items[0].labels == ("cat", "dog")
            assert data.items[1].boxes.shape == (0, 4)
            assert data.load(0).size == (40, 30)


def test_images_are_in_the_folder_of_the_file_unless_it_is_chosen(folder):
    path = write_coco(folder / "a.json", {f"images/{name}": rows for name, rows in BOXES.items()})
    assert len(read_boxes(path, None, CONFIG)) == 2


@pytest.mark.parametrize("names", ["xmin,ymin,xmax,ymax", "x1,y1,x2,y2"])
@pytest.mark.parametrize("file", ["file", "image", "filename"])
def test_corners_are_read(folder, file, names):
    """The format of TensorFlow's object detection, in which width and height are the image's."""
    path = folder / "images" / "corners.csv"
    path.write_text(f"{file},width,height,class,{names}\na.png,40,30,cat,2,3,12,15\n")
    (item,) = read_boxes(path, None, CONFIG).items
    assert (item.boxes.tolist(), item.labels) == ([[2, 3, 10, 12]], ("cat",))


def test_columns_without_a_header_are_in_order(folder):
    path = folder / "images" / "a.csv"
    path.write_text("a.png,2,3,10,12,cat\n")
    data = read_boxes(path, None, BoxesConfig(header="no"))
    assert data.items[0].boxes.tolist() == [[2, 3, 10, 12]]


@pytest.mark.parametrize(
    ("box", "is_read"),
    [
        ((5, 5, 0, 4), False),
        ((5, 5, 4, -1), False),
        ((41, 5, 4, 4), False),
        ((39, -9, 4, 10), True),
        ((-3, 29, 43, 4), True),
    ],
)
@pytest.mark.parametrize("write", [write_csv, write_coco, write_jsonl])
def test_box_is_clipped_and_must_have_an_area(folder, write, box, is_read):
    suffix = {write_csv: "csv", write_coco: "json", write_jsonl: "jsonl"}[write]
    path = write(folder / f"x.{suffix}", {"a.png": [*BOXES["a.png"], (box, "cat")]})
    config = BoxesConfig(width=40, height=30, on_bad="skip")
    data = read_boxes(path, folder / "images", config)
    x, y, width, height = box
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + width, 40), min(y + height, 30)
    clipped = [[left, top, right - left, bottom - top]] if is_read else []
    assert data.items[0].boxes[2:].tolist() == clipped
    assert len(data.skipped) == (not is_read)
    if not is_read:
        with pytest.raises(UserError, match=r"has no area inside .* 40 x 30 .*--data.on-bad skip"):
            read_boxes(path, folder / "images", CONFIG)


HEAD = "file,x,y,width,height,label\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.txt", "", "missing|names no|no usable"),
        ("no.json", "[]", "expected COCO's images and annotations"),
        ("cut.json", "{", "expected COCO's images and annotations"),
        ("ids.json", '{"images": [{"id": 1}]}', "expected COCO's images .*file_name"),
        ("short.csv", f"{HEAD}a.png,1\n", "line 2: expected 6 cells, got 2"),
        ("text.csv", f"{HEAD}a.png,1,2,x,4,cat\n", "line 2: expected x, y, width, height in numb"),
        ("nan.csv", f"{HEAD}a.png,1,2,nan,4,cat\n", "line 2: box .* has no area"),
        ("nolabel.csv", f"{HEAD}a.png,1,2,3,4,\n", "line 2: expected a label"),
        ("gone.csv", f"{HEAD}c.png,1,2,3,4,cat\n", "line 2: .*c.png: no such file"),
        ("name.csv", f"{HEAD},1,2,3,4,c\n", "line 2: expected the name of an image file"),
        ("columns.csv", "path,x\na.png,1\n", "line 2: expected the name of an image file"),
        ("boxes.jsonl", '{"file": "a.png", "boxes": 3}\n', "line 1: boxes must be a list"),
        ("keys.jsonl", '{"file": "a.png", "boxes": [{"label": 1}]}\n', "line 1: expected x, y"),
    ],
)
def test_bad_files_are_named(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name}.*{message}"):
        read_boxes(folder / name, folder / "images", CONFIG)


def test_bad_annotations_of_coco_are_an_error_or_skipped(folder):
    good = {"id": 1, "image_id": 0, "category_id": 7, "bbox": [1, 2, 3, 4]}
    bad = [{"category_id": 9}, {"bbox": [1, 2, 3]}, {"bbox": ["x", 2, 3, 4]}]
    for change in bad:
        path = write_coco(folder / "c.json", annotations=[good, good | {"id": 2} | change])
        with pytest.raises(UserError, match=r"c.json, annotation 2: .*--data.on-bad skip"):
            read_boxes(path, folder / "images", CONFIG)
        data = read_boxes(path, folder / "images", BoxesConfig(on_bad="skip"))
        assert (data.items[0].labels, len(data.skipped)) == (("cat",), 1)
    crowd = good | {"id": 3, "iscrowd": 1}
    data = read_boxes(write_coco(path, annotations=[good, crowd]), folder / "images", CONFIG)
    assert (data.items[0].labels, len(data.skipped)) == (("cat",), 1)


def test_resize_and_pad_keeps_the_aspect_ratio():
    wide = Image.new("RGB", (80, 20), (255, 0, 0))
    array, frame = resize_and_pad(wide, 40, 30)
    assert (array.shape, frame) == ((30, 40, 3), (0.5, 80, 20))
    assert (array[:10, :, 0] == 255).all()
    assert (array[10:] == 128).all()


def test_boxes_refer_to_the_upright_image(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 30)).save(folder / "images" / "a.png", exif=exif)
    path = write_csv(folder / "x.csv", {"a.png": [((1, 2, 29, 38), "cat")]})
    data = read_boxes(path, folder / "images", CONFIG)
    assert data.items[0].boxes.tolist() == [[1, 2, 29, 38]]
    assert data.load(0).size == (30, 40)


def make_spots(seed: int) -> AnnotatedDataset:
    """Return one image with a bright square on a dark background, and its box."""
    draw = np.random.default_rng(seed)
    x, y = int(draw.integers(0, 28)), int(draw.integers(0, 18))
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[y : y + 12, x : x + 12] = 255
    item = Annotated("spot", np.array([[x, y, 12.0, 12.0]]), ("spot",), "here")
    return AnnotatedDataset((item,), lambda i: Image.fromarray(pixels), "spots")


@pytest.mark.parametrize("seed", range(30))
def test_boxes_follow_the_pixels_of_an_augmented_image(seed):
    batches = BoxBatches(
        make_spots(seed), Labels(("spot",)), width=40, height=30, rows=1, seed=seed, augment=True
    )
    batch = batches.collate(0, (0,))
    bright = (batch.source[0].mean(0) > 0.72).nonzero().double()
    if not batch.target.real.any():
        assert len(bright) < 0.5 * 144 * 1.4**2
        return
    x, y, w, h = (
        batch.target.regions[0, 0].double() * batch.target.regions.new_tensor([40.0, 30, 40, 30])
    ).tolist()
    rows, columns = bright[:, 0], bright[:, 1]
    assert float(columns.min()) == pytest.approx(x - w / 2, abs=1.5)
    assert float(columns.max()) + 1 == pytest.approx(x + w / 2, abs=1.5)
    assert float(rows.min()) == pytest.approx(y - h / 2, abs=1.5)
    assert float(rows.max()) + 1 == pytest.approx(y + h / 2, abs=1.5)


def test_batches_are_functions_of_seed_and_epoch():
    data = make_shapes("val", 3, CONFIG)
    settings = {"width": 40, "height": 30, "rows": 4, "seed": 5, "augment": True}
    first, second = (
        BoxBatches(data, Labels(("circle", "square", "triangle")), **settings) for _ in range(2)
    )
    assert first.plan(2) == second.plan(2)
    assert first.plan(2) != first.plan(3)
    a, b, c = first.collate(2, (1, 4)), second.collate(2, (1, 4)), first.collate(3, (1, 4))
    assert (a.source == b.source).all()
    assert (a.target.regions == b.target.regions).all()
    assert (a.source != c.source).any()


def test_training_shuffles_images_without_augmentation():
    data, labels = make_shapes("val", 3, CONFIG), Labels(("circle", "square", "triangle"))
    settings = {"width": 40, "height": 30, "rows": 60, "seed": 5}
    (order,) = BoxBatches(data, labels, **settings).plan(0)
    assert sorted(order) == list(range(60)) != list(order)
    assert BoxBatches(data, labels, is_fixed=True, **settings).plan(3) == [tuple(range(60))]


def test_each_image_is_opened_once():
    opened = []
    data = make_spots(1)
    watched = AnnotatedDataset(data.items, lambda i: opened.append(i) or data.load(i), "spots")
    batches = BoxBatches(watched, Labels(("spot",)), width=20, height=15, rows=1, seed=1)
    assert batches.frame(0).scale == 0.5
    batches.collate(0, (0,))
    batches.collate(1, (0,))
    assert opened == [0]


def test_unknown_label_is_named():
    with pytest.raises(
        UserError, match=r"label 'spot' does not occur in the training images \(cat\)"
    ):
        BoxBatches(make_spots(1), Labels(("cat",)), width=40, height=30, rows=1, seed=1)


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
            x, y, w, h = data.items[i].boxes[-1].astype(int)
            # The topmost shape touches all four sides of its box.
            shown = pixels[y : y + h, x : x + w] >= 60
            assert shown[0].any()
            assert shown[-1].any()
            assert shown[:, 0].any()
            assert shown[:, -1].any()


def test_augmentation_shifts_images():
    pixels = np.zeros((30, 40, 3), np.uint8)
    middle = AnnotatedDataset(
        (Annotated("spot", np.array([[14.0, 9.0, 12.0, 12.0]]), ("spot",), "here"),),
        lambda i: Image.fromarray(pixels),
        "x",
    )
    batches = BoxBatches(
        middle, Labels(("spot",)), width=40, height=30, rows=1, seed=1, augment=True
    )
    centers = np.stack(
        [batches.collate(epoch, (0,)).target.regions[0, 0, :2].numpy() for epoch in range(20)]
    )
    assert (
        centers.std(0) > 0.02
    ).all()  # a spot in the middle stays there, however it is scaled or mirrored
