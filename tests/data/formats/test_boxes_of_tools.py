"""Images with boxes in the formats of tools: all agree, and what is refused."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from regard.data.config import BoxesConfig
from regard.data.images.boxes import read_boxes
from regard.errors import UserError

YAML = "path: set\ntrain: images/train\nval: [images/val, more.txt]\nnames:\n  0: cat\n  1: dog\n"
VOC = """\
<annotation><folder>x</folder><filename>a.png</filename>
  <size><width>40</width><height>30</height><depth>3</depth></size>
  <object><name>cat</name><difficult>0</difficult>
    <bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>15</ymax></bndbox>
    <part><name>head</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>4</xmax><ymax>5</ymax></bndbox>
    </part></object>
  <object><name>dog</name>
    <bndbox><xmin>20.0</xmin><ymin>5.0</ymin><xmax>28.0</xmax><ymax>13.0</ymax></bndbox></object>
  <object><name>cat</name><difficult>1</difficult>
    <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>
</annotation>
"""
EMPTY_VOC = "<annotation><filename>b.png</filename></annotation>"
CVAT = """\
<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><job><id>1</id></job></meta>
  <image id="0" name="a.png" width="40" height="30">
    <box label="cat" source="manual" occluded="0" xtl="2.00" ytl="3.00" xbr="12.00" ybr="15.00"
      z_order="0"><attribute name="color">red</attribute></box>
    <tag label="outdoor" source="manual"></tag>
    <box label="dog" occluded="1" xtl="20.00" ytl="5.00" xbr="28.00" ybr="13.00" rotation="0.0"/>
  </image>
  <image id="1" name="b.png" width="40" height="30"></image>
</annotations>
"""


def rectangle(label: str, x: float, y: float, width: float, height: float, **more) -> dict:
    value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0} | more
    sizes = {"original_width": 40, "original_height": 30, "image_rotation": 0}
    return sizes | {"type": "rectanglelabels", "value": value | {"rectanglelabels": [label]}}


def task(image: str, *results: dict) -> dict:
    return {"id": 3, "data": {"image": image}, "annotations": [{"result": results}]}


CAT = rectangle("cat", 5, 10, 25, 40)
DOG = rectangle("dog", 50, 5 / 0.3, 20, 8 / 0.3)
STUDIO = json.dumps([task("/data/upload/3/a.png", CAT, DOG), task("/data/local-files/?d=b.png")])
COCO = """\
{"images": [{"id": 1, "file_name": "a.png", "width": 40, "height": 30},
            {"id": 2, "file_name": "b.png"}],
 "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
 "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 3, 10, 12]},
                 {"id": 2, "image_id": 1, "category_id": 2, "bbox": [20, 5, 8, 8]}]}
"""
FILES = {
    "cvat.xml": CVAT,
    "coco.json": COCO,
    "studio.json": STUDIO,
    "voc/a.xml": VOC,
    "voc/b.xml": EMPTY_VOC,
    "VOC2012/Annotations/a.xml": VOC,
    "VOC2012/Annotations/b.xml": EMPTY_VOC,
    "VOC2012/ImageSets/Main/train.txt": "a\nb\n",
    "yolo/data.yaml": YAML,
    "yolo/set/labels/train/a.txt": "0 0.175 0.3 0.25 0.4\n1 0.6 0.3 0.2 0.2666666667\n",
    "yolo/set/more.txt": "./images/train/a.png\n",
}
IMAGES = ["", "voc", "VOC2012/JPEGImages", "yolo/set/images/train", "yolo/set/images/val"]


@pytest.fixture
def folder(tmp_path):
    for place in IMAGES:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name in ("a.png", "b.png"):
            Image.new("RGB", (40, 30)).save(tmp_path / place / name)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def read(path, split="train", **settings):
    return read_boxes(path, None, BoxesConfig(**settings), split)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("cvat.xml", "cvat"),
        ("coco.json", "coco"),
        ("studio.json", "label-studio"),
        ("voc", "voc"),
        ("VOC2012/Annotations", "voc"),
        ("VOC2012/ImageSets/Main/train.txt", "voc"),
        ("yolo/data.yaml", "yolo"),
    ],
)
def test_formats_agree_and_are_found_by_their_form(folder, name, format, monkeypatch):
    monkeypatch.chdir(folder)
    for path in (folder / name, name):
        data = read(path, format=format)
        assert [os.path.basename(item.file) for item in data.items] == ["a.png", "b.png"]
        assert data.items[0].boxes == pytest.approx(np.array([[2, 3, 10, 12], [20, 5, 8, 8]]))
        assert [item.labels for item in data.items] == [("cat", "dog"), ()]
        assert data.load(0).size == (40, 30)
    if not name.endswith(".txt"):
        assert read(name).items[0].labels == ("cat", "dog")


def test_difficult_objects_of_voc_are_crowds(folder):
    ((_, box),) = read(folder / "voc").items[0].crowds
    assert box == [1, 1, 4, 4]


def test_splits_of_yolo_are_folders_or_lists(folder):
    data = read(folder / "yolo/data.yaml", "val")
    files = [item.file for item in data.items]
    assert files == ["images/val/a.png", "images/val/b.png", "images/train/a.png"]
    assert "no labels of 2 of 3 images; first: " in data.notices[0]
    for format, hint in (("auto", "xml.* for YOLO, give data.yaml"), ("yolo", "is a folder")):
        with pytest.raises(UserError, match=hint):
            read(folder / "yolo", format=format)
    with pytest.raises(
        UserError, match=r"data.yaml: names no images of 'test', expected .*'test: images/test'"
    ):
        read(folder / "yolo/data.yaml", "test")
    # Roboflow: names as a list, and folders as if the file was in one of them.
    roboflow = "train: ../images/train\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
    (folder / "yolo/set/data.yaml").write_text(roboflow)
    assert len(read(folder / "yolo/set/data.yaml")) == 2
    with pytest.raises(UserError, match="valid/images: no such folder of images"):
        read(folder / "yolo/set/data.yaml", "val")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("yolo/set/labels/train/a.txt", "0 0.175", "2 0.175", r"a.txt, line 1: .*2 has no name"),
        ("yolo/set/labels/train/a.txt", "0.175", "17.5", "line 1: expected fractions of the image"),
        ("yolo/set/labels/train/a.txt", "0.4\n", "0.4 0.1\n", "expected a class and the center"),
        ("yolo/data.yaml", "names", "labels", "expected YOLO's train, val and names: 'names'"),
        ("voc/a.xml", "<xmin>2<", "<xmin><", "a.xml, object 1: expected xmin, ymin, xmax, ymax"),
        ("voc/b.xml", "b.png", "a.png", r"b.xml: .*a.xml has the same filename, 'a.png'"),
        ("voc/b.xml", "annotation>", "annotations>", "b.xml: expected an <annotation> of Pascal"),
        ("voc/b.xml", "</annotation>", "", "b.xml: not XML: no element found"),
        ("cvat.xml", 'rotation="0.0"', 'rotation="9"', "image a.png, shape 3: .*not rotated"),
        ("cvat.xml", "<tag ", "<polygon ", None),
        ("cvat.xml", "<tag label=", "<track label=", None),
        ("cvat.xml", 'xtl="2.00"', "", "shape 1: expected xmin, ymin, xmax, ymax in numbers"),
        ("studio.json", '"rotation": 0', '"rotation": 5', "row 1: expected boxes .* not rotated"),
        ("studio.json", '"rectanglelabels", "v', '"brushlabels", "v', "row 1: has a result of the"),
        ("studio.json", '"width"', '"wide"', "row 1: not a task .* `width`"),
        ("studio.json", '"image"', '"url"', r"row 1: data has no 'image'; it has 'url'"),
        ("studio.json", "d=b.png", "d=a.png", "row 2: the image 'a.png' is also that of .*row 1"),
        ("studio.json", "d=b.png", "d=x/c%20d.png", "x/c d.png: no such file .--data.images"),
        (
            "studio.json",
            '"rectanglelabels", "v',
            '"rectangle", "v',
            "row 1: has a result of the ty",
        ),
        ("studio.json", '_rotation": 0', '_rotation": 90', "row 1: was drawn .* rotated by 90 deg"),
        # Another size than that of the image, as if it was scaled afterwards.
        ("voc/a.xml", "<width>40", "<width>80", "a.xml: boxes of 80 x 30 pixels, .* has 40 x 30"),
        ("cvat.xml", 'width="40"', 'width="30"', "image a.png: boxes of 30 x 30 pix"),
        ("coco.json", '"height": 30', '"height": 60', "coco.json, image 1: boxes of 40 x 60"),
        ("yolo/data.yaml", "images/train", "images/val", r"no labels of 2 of 2 .*labels/val/a.txt"),
    ],
)
def test_what_does_not_fit_is_named(folder, name, old, new, message):
    path = folder / name
    content = path.read_text()
    assert old in content
    changed = content.replace(old, new)
    if message is None:  # a shape that is no box
        changed = changed.replace("</tag>", f"</{new.strip('< ').split()[0]}>")
        message = "image a.png, shape 2: expected a box that is not rotated, got a "
    path.write_text(changed)
    if name.startswith("yolo"):
        path = folder / "yolo/data.yaml"
    with pytest.raises(UserError, match=message):
        read(path.parent if name.startswith("voc") else path)


def test_exports_of_video_are_refused(folder):
    (folder / "video.xml").write_text("<annotations><track id='0'/></annotations>")
    with pytest.raises(UserError, match=r"video.xml: expected .* of the export 'CVAT for images'"):
        read(folder / "video.xml")


def test_bad_boxes_are_left_out_and_counted(folder):
    (folder / "studio.json").write_text(
        json.dumps([task("a.png", CAT), {"data": {"image": "b.png"}, "annotations": []}, {}])
    )
    data = read(folder / "studio.json", on_bad="skip")
    assert [item.file for item in data.items] == ["a.png"]
    assert "skipped 2 of the images and boxes; first: " in data.notices[0]
    assert data.notices[0].endswith("row 2: has no annotation")
    (folder / "min.json").write_text('[{"image": "a.png", "label": [], "annotation_id": 1}]')
    with pytest.raises(UserError, match=r"row 1: is of the export JSON-MIN of Label Studio"):
        read(folder / "min.json")
