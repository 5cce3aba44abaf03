"""Images with boxes: all formats agree, unusable data is reported, and boxes follow the
augmentation of images."""

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
            {"image_id": i, "category_id": 7 + names.index(label), "bbox": list(box)}
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


@pytest.mark.parametrize("has_size", [True, False])
def test_table_of_corners_is_read(folder, has_size):
    """The format of TensorFlow's object detection."""
    size = ("width,height,", "40,30,") if has_size else ("", "")
    path = folder / "corners.csv"
    rows = [
        f"a.png,{size[1]}{label},{x},{y},{x + w},{y + h}" for (x, y, w, h), label in BOXES["a.png"]
    ]
    path.write_text("\n".join([f"filename,{size[0]}class,xmin,ymin,xmax,ymax", *rows]) + "\n")
    (item,) = read_boxes(path, None, CONFIG).items
    assert [
        (tuple(box), label) for box, label in zip(item.boxes.tolist(), item.labels, strict=True)
    ] == BOXES["a.png"]
    path.write_text(path.read_text().replace(",12,", ",much,"))
    with pytest.raises(
        UserError,
        match=r"line 2: expected xmin, ymin, xmax, ymax, four numbers .*, got 2, 3, much, 15",
    ):
        read_boxes(path, None, CONFIG)
    if has_size:
        path.write_text(
            "\n".join(
                [f"filename,{size[0]}class,xmin,ymin,xmax,ymax", rows[0].replace("40,30", "41,30")]
            )
        )
        with pytest.raises(
            UserError, match=r"states 41 x 30 pixels for a.png, but the image has 40 x 30"
        ):
            read_boxes(path, None, CONFIG)


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
    with tarfile.open(folder / "train.tar", "w") as archive:
        for name in BOXES:
            archive.add(folder / "images" / name, arcname=f"inside/{name}")
    files = (
        write_coco(folder / "instances_train.json"),
        write_csv(folder / "c.csv"),
        write_jsonl(folder / "l.jsonl"),
    )
    objects = [json.loads(line) for line in files[2].read_text(encoding="utf-8").splitlines()]
    (folder / "array.json").write_text(json.dumps(objects, indent=2), encoding="utf-8")
    files = *files, folder / "array.json"
    data_sets = [read_boxes(path, None, CONFIG) for path in files]
    assert data_sets[0].load(0).size == (40, 30)  # from the tar that is named like the file
    for data in data_sets:
        assert [item.file for item in data.items] == ["a.png", "b.png"]
        assert data.items[0].boxes.tolist() == [[2, 3, 10, 12], [20, 5, 8, 8]]
        assert data.items[0].labels == ("cat", "dog")
        assert data.items[1].boxes.shape == (0, 4)
        assert data.labels.names == ("cat", "dog")


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((5, 5, 0, 4), "has no area: width and height must be above 0"),
        ((5, 5, 4, -1), "has no area"),
        ((41, 5, 4, 4), "lies outside the image of 40 x 30 pixels"),
    ],
)
def test_unusable_box_is_an_error_or_skipped(folder, box, message):
    path = write_coco(folder / "x.json", {"a.png": [*BOXES["a.png"], (box, "cat")]})
    with pytest.raises(UserError, match=message) as error:
        read_boxes(path, None, CONFIG)
    assert "a.png" in str(error.value)
    assert "--data.on-bad skip" in str(error.value)
    data = read_boxes(path, None, BoxesConfig(width=40, height=30, on_bad="skip"))
    assert len(data.skipped) == 1
    assert len(data.items[0].labels) == 2


def test_box_over_the_edge_is_clipped_and_counted(folder):
    path = write_csv(
        folder / "x.csv",
        {"a.png": [((2, -5, 8, 10), "cat"), ((35, 2, 8, 4), "cat"), ((30, 20, 11, 11), "cat")]},
    )
    data = read_boxes(path, None, CONFIG)
    assert data.items[0].boxes.tolist() == [[2, 0, 8, 5], [35, 2, 5, 4], [30, 20, 10, 10]]
    place = f"{path}, line 2, [2, -5, 8, 10]"  # the last extends by one pixel
    assert data.notices == (
        f"{path}: 2 of 3 boxes extend beyond their image and are clipped; first: {place}.",
    )


@pytest.mark.parametrize("names", ["xmin,ymin,xmax,ymax", "x1,y1,x2,y2"])
@pytest.mark.parametrize("file", ["file", "image", "filename"])
def test_names_of_corners_are_recognized(folder, file, names):
    path = folder / "corners.csv"
    path.write_text(f"{file},{names},label\na.png,2,3,12,15,cat\n")
    assert read_boxes(path, None, CONFIG).items[0].boxes.tolist() == [[2, 3, 10, 12]]
    path.write_text(f"{file},{names},label\na.png,2,3,12,much,cat\n")
    with pytest.raises(UserError, match=f"expected {', '.join(names.split(','))}, four numbers"):
        read_boxes(path, None, CONFIG)


@pytest.mark.parametrize("write", [write_csv, write_coco])
def test_corners_in_place_of_sizes_are_suspected(folder, write):
    corners = {
        "a.png": [((10, 10, 38, 28), "cat"), ((20, 15, 39, 29), "dog"), ((1, 1, 9, 9), "dog")]
    }
    (notice,) = read_boxes(
        write(folder / "x.csv" if write is write_csv else folder / "x.json", corners), None, CONFIG
    ).notices
    assert "2 of 3 boxes extend" in notice
    assert "may be corners x1, y1, x2, y2" in notice
    assert ("header file,xmin,ymin,xmax,ymax,label" in notice) == (write is write_csv)
    corners["a.png"].append(((10, 10, 38, 9), "cat"))  # its bottom would be above its top
    (notice,) = read_boxes(write_csv(folder / "x.csv", corners), None, CONFIG).notices
    assert "may be corners" not in notice


@pytest.mark.parametrize("write", [write_csv, write_coco, write_jsonl])
def test_relative_coordinates_are_refused(folder, write):
    path = folder / {write_csv: "x.csv", write_coco: "x.json", write_jsonl: "x.jsonl"}[write]
    relative = {"b.png": [], "a.png": [((0.1, 0.2, 0.5, 1), "cat"), ((0, 0, 0.25, 0.25), "dog")]}
    with pytest.raises(
        UserError,
        match=r"expected boxes in pixels, but all 2 boxes of .* here \[0.1, 0.2, 0.5, 1\]",
    ):
        read_boxes(write(path, relative), None, CONFIG)
    relative["a.png"].append(((2, 2, 0.5, 0.5), "cat"))
    assert len(read_boxes(write(path, relative), None, CONFIG).items[1].boxes) == 3
    corner = {"a.png": [((0, 0, 1, 1), "cat"), ((1, 1, 1, 1), "dog")]}
    assert len(read_boxes(write(path, corner), None, CONFIG).items[0].boxes) == 2


def _line(key: str, value: str) -> str:
    """Return a line of JSONL with one box, in which one entry is replaced."""
    box = {"x": "1", "y": "1", "width": "2", "height": "2", "label": '"cat"'} | {key: value}
    inside = ", ".join(f'"{name}": {entry}' for name, entry in box.items())
    return f'{{"file": "a.png", "boxes": [{{{inside}}}]}}\n'


def test_bad_files_are_named(folder):
    cases = {
        "no.txt": ("", "expected boxes in a file of .json"),
        "no.json": ("{}", "expected COCO's images"),
        "broken.json": ("{", "damaged: not valid JSON"),
        "head.csv": ("file,x\n", "line 1: expected a header with file,x,y,width,height,label"),
        "short.csv": (
            "file,x,y,width,height,label\na.png,1\n",
            "line 2: expected 6 columns separated by ',', got 2",
        ),
        "text.csv": (
            "file,x,y,width,height,label\na.png,1,2,x,4,cat\n",
            "line 2: expected x, y, width, height, four",
        ),
        "nolabel.csv": (
            "file,x,y,width,height,label\na.png,1,2,3,4,\n",
            "line 2: expected a label, got none",
        ),
        "gone.csv": ("file,x,y,width,height,label\nc.png,1,2,3,4,cat\n", "there is no image c.png"),
        "up.csv": (
            "file,x,y,width,height,label\n../z.png,1,2,3,4,cat\n",
            "there is no image ../z.png in",
        ),
        "no.jsonl": ('{"file": "a.png"}\n', "line 1: expected"),
        "twice.jsonl": (
            '{"file": "a.png", "boxes": []}\n' * 2,
            "line 2: the image 'a.png' is already in line 1",
        ),
        "key.jsonl": (
            '{"file": "a.png", "file": "b.png", "boxes": []}\n',
            "line 1: expected .*, got a key given twice",
        ),
        "deep.jsonl": ("[" * 100_000, "line 1: expected"),
        "null.jsonl": (_line("label", "null"), "line 1: expected a label, got none"),
        "true.jsonl": (_line("x", "true"), "line 1: expected x, y, width, height, four numbers"),
        "digits.jsonl": (
            _line("x", "9" * 400),
            "line 1: expected x, y, width, height, four numbers",
        ),
        "digits.csv": (
            "file,x,y,width,height,label\na.png,1,2,3," + "9" * 400 + ",c\n",
            "line 2: expected x, y, width",
        ),
        "under.csv": (
            "file,x,y,width,height,label\na.png,1,2,1_0,4,c\n",
            "line 2: expected x, y, width",
        ),
        "name.csv": (
            "file,x,y,width,height,label\n,1,2,3,4,c\n",
            "line 2: expected the name of an image file",
        ),
    }
    for name, (content, message) in cases.items():
        (folder / name).write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message) as error:
            read_boxes(folder / name, folder / "images", CONFIG)
        assert name in str(error.value) or "a.png" in str(error.value)
    (folder / "images" / "c.png").write_text("no image", encoding="utf-8")
    with pytest.raises(UserError, match=r"c\.png: not a readable image"):
        read_boxes(folder / "gone.csv", None, CONFIG)
    annotation = [{"image_id": 0, "category_id": 9, "bbox": [1, 2, 3, 4]}]
    write_coco(folder / "c.json", annotations=annotation)
    with pytest.raises(UserError, match="no category with id 9"):
        read_boxes(folder / "c.json", None, CONFIG)
    with pytest.raises(UserError, match="expected a folder or an uncompressed tar"):
        read_boxes(write_coco(folder / "c.json"), folder / "head.csv", CONFIG)


def test_resize_and_pad_keeps_the_aspect_ratio():
    wide = Image.new("RGB", (80, 20), (255, 0, 0))
    array, frame = resize_and_pad(wide, 40, 30)
    assert (array.shape, frame) == ((30, 40, 3), (0.5, 80, 20))
    assert (array[:10, :, 0] == 255).all()
    assert (array[10:] == 128).all()


def save_with_orientation(
    path: Path, orientation: int, size: tuple[int, int], spot: tuple[int, int, int, int]
) -> None:
    """Save an image with a bright spot (x, y, width, height) in stored coordinates."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[spot[1] : spot[1] + spot[3], spot[0] : spot[0] + spot[2]] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)


def bounds_of_spot(image: Image.Image) -> list[float]:
    rows, columns = np.nonzero(np.asarray(image.convert("L")) > 128)
    x, y = int(columns.min()), int(rows.min())
    return [x, y, int(columns.max()) + 1 - x, int(rows.max()) + 1 - y]


@pytest.mark.parametrize("orientation", range(5, 9))
def test_stated_size_decides_whether_boxes_are_rotated(tmp_path, orientation):
    stored = (3, 5, 11, 7)
    save_with_orientation(tmp_path / "a.png", orientation, (40, 30), stored)
    boxes = {}
    for name, (width, height) in (("before", (40, 30)), ("after", (30, 40))):
        box = bounds_of_spot(boxes["before"].load(0)) if boxes else stored
        images = [{"id": 0, "file_name": "a.png", "width": width, "height": height}]
        path = write_coco(tmp_path / f"{name}.json", {"a.png": [(box, "cat")]}, images=images)
        boxes[name] = read_boxes(path, tmp_path, CONFIG)
        assert boxes[name].items[0].boxes.tolist() == [bounds_of_spot(boxes[name].load(0))]
    assert boxes["after"].notices == ()
    (notice,) = boxes["before"].notices
    assert (
        "1 image with an EXIF orientation, and the sizes in the file are those before the rotation"
        in notice
    )
    assert notice.endswith("the boxes were rotated, too; first: a.png.")
    images[0]["width"] = 31
    write_coco(path, {"a.png": [(box, "cat")]}, images=images)
    with pytest.raises(
        UserError,
        match=rf"states 31 x 40 pixels.* 30 x 40 .stored as 40 x 30 .* EXIF orientation "
        rf"{orientation}",
    ):
        read_boxes(path, tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("orientation", "size", "given"),
    [(6, (30, 30), True), (3, (40, 30), True), (6, (40, 30), False)],
)
def test_boxes_refer_to_the_upright_image_if_the_size_does_not_decide(
    tmp_path, orientation, size, given
):
    save_with_orientation(tmp_path / "a.png", orientation, size, (3, 5, 11, 7))
    more = {"width": size[0], "height": size[1]} if given else {}
    path = write_coco(
        tmp_path / "a.json",
        {"a.png": [((1, 2, 3, 4), "cat")]},
        images=[{"id": 0, "file_name": "a.png", **more}],
    )
    data = read_boxes(path, tmp_path, CONFIG)
    assert data.items[0].boxes.tolist() == [[1, 2, 3, 4]]
    (notice,) = data.notices
    assert (
        "1 image with an EXIF orientation, and the file does not tell whether boxes refer to the "
        "image" in notice
    )
    assert data.load(0).size == (size[::-1] if orientation == 6 else size)


def test_names_are_looked_up_in_the_folder_of_the_file_too(folder):
    path = write_coco(
        folder / "result.json", {f"images/{name}": rows for name, rows in BOXES.items()}
    )
    assert len(read_boxes(path, None, CONFIG)) == 2
    path = write_coco(
        folder / "result.json", {f"images\\{name}": rows for name, rows in BOXES.items()}
    )
    data = read_boxes(path, None, CONFIG)
    assert [data.load(i).size for i in range(2)] == [(40, 30)] * 2
    path = write_coco(folder / "result.json", {"gone.png": []})
    with pytest.raises(
        UserError, match=rf"image 1: there is no image gone.png in {folder}/images or {folder}\."
    ):
        read_boxes(path, None, CONFIG)
    with pytest.raises(
        UserError, match=rf"image 1: there is no image gone.png in {folder}/images\."
    ):
        read_boxes(path, folder / "images", CONFIG)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_bad_lines_are_an_error_or_skipped(folder, ending):
    path = write_csv(folder / "x.csv") if ending == "csv" else write_jsonl(folder / "x.jsonl")
    more = {
        "csv": ["gone.png,1,2,3,4,cat", "a.png,1,2,x,4,cat", ",1,2,3,4,cat"],
        "jsonl": ['{"file": "gone.png", "boxes": []}', '{"file": "a.png"}', "{"],
    }[ending]
    path.write_text(path.read_text() + "\n".join(more) + "\n")
    with pytest.raises(
        UserError,
        match=r"With --data.on-bad skip, such images and boxes are left out and counted.$",
    ):
        read_boxes(path, None, CONFIG)
    data = read_boxes(path, None, BoxesConfig(width=40, height=30, on_bad="skip"))
    assert [item.labels for item in data.items] == [("cat", "dog"), ()]
    assert len(data.skipped) == 3


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
        UserError, match=r"label 'spot' of spot does not occur in the training images \(cat\)"
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
