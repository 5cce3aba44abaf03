"""Images with boxes in the formats of tools: rows of each image file, as `read_rows_of_files`.

YOLO          data.yaml: `train: images/train`, `names: {0: cat}`; labels/train/1.txt: a line
              `0 0.5 0.5 0.2 0.1` for each box, center and size as fractions of the image
Pascal VOC    a folder of XML: <annotation><filename>1.jpg</filename><object><name>cat</name>
              <bndbox><xmin>3</xmin> ...; or a list ImageSets/Main/train.txt
CVAT          <annotations><image name="1.jpg"><box label="cat" xtl="3" ytl="4" xbr="13" ybr="16">
Label Studio  {"data": {"image": "1.jpg"}, "annotations": [{"result": [{"type": "rectanglelabels",
              "value": {"x", "y", "width", "height": percent, "rectanglelabels": ["cat"]}}]}]}

Sources: docs.ultralytics.com/datasets/detect, development kit of Pascal VOC 2012,
docs.cvat.ai (CVAT for images 1.1), labelstud.io/guide/task_format.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

import msgspec
import yaml

from regard.data.bad_rows import BadRows
from regard.data.formats.label_studio import read_task
from regard.data.images.coco import read_coco_boxes
from regard.data.images.files import ENDINGS
from regard.data.tables import (
    as_number,
    decode_line,
    excerpt,
    locate,
    read_lines,
    read_records,
    read_texts,
)
from regard.errors import UserError
from regard.system.files import list_files, open_unpacked, read_bytes, suffix_of

Rows = dict[str, list[tuple[str, dict[str, Any]]]]
"""Location and cells of the boxes of each image file."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_CVAT_CORNERS = ("xtl", "ytl", "xbr", "ybr")


def read_box_format(
    path: Path, format: str, split: str, bad_rows: BadRows
) -> tuple[Rows, Path] | None:
    """Return the rows of a file or folder, and the folder of its images; None for a table.

    format: one of BOX_FORMATS, or auto: by the name, and the first characters of JSON and XML.
    """
    found = _find_format(path) if format == "auto" else format
    return _READERS[found](path, split, bad_rows) if found else None


def _find_format(path: Path) -> str:
    suffix = suffix_of(path)
    if path.is_dir() or suffix in (".yaml", ".yml"):
        return "voc" if path.is_dir() else "yolo"
    if suffix == ".xml":
        return "cvat" if _read_xml(path).tag == "annotations" else "voc"
    if suffix != ".json":
        return ""
    with open_unpacked(path) as file:
        return "label-studio" if file.read(64).lstrip().startswith(b"[") else "coco"


def _read_yolo(path: Path, split: str, bad_rows: BadRows) -> tuple[Rows, Path]:
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected YOLO's data.yaml.")
    try:
        content = yaml.safe_load(decode_line(read_bytes(path), str(path)))
        names = content["names"]
        names = names if isinstance(names, dict) else dict(enumerate(names))
        root = path.parent / (content.get("path") or "")
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: expected YOLO's train, val and names: {error}") from None
    if not isinstance(content.get(split), str | list):
        line = f"a line such as '{split}: images/{split}'"
        raise UserError(f"{path}: names no images of {split!r}, expected {line}.")
    rows: Rows = {}
    without = []
    for image in _list_yolo_images(root, content[split]):
        boxes = rows[os.path.relpath(image, root)] = [(str(image), {})]
        # In the folder `labels` in place of the last `images`.
        labels = Path(re.sub("^(.*/)?images/", r"\1labels/", image.as_posix())).with_suffix(".txt")
        if not labels.exists():
            without.append(labels)
            continue
        for number, line in read_texts(labels, bad_rows):
            where = locate(labels, number)
            with bad_rows.catch(where):
                boxes.append((where, _parse_yolo(line.split(), names)))
    if without:
        problem = f"no labels of {len(without):,} of {len(rows):,} images; first: {without[0]}"
        if len(without) == len(rows):
            raise UserError(f"{path}: {problem}.")
        bad_rows.remarks.append(f"{path}: {problem}")
    return rows, root


def _list_yolo_images(root: Path, places: str | list[str]) -> Iterator[Path]:
    """Yield the images of folders, or of lists of files, as Ultralytics finds them."""
    for place in [places] if isinstance(places, str) else places:
        found = root / place
        if not found.exists() and place.startswith("../"):  # as Roboflow writes it
            found = root / place.removeprefix("../")
        if found.suffix == ".txt":
            for _, line in read_texts(found, BadRows("error")):
                yield found.parent / line.strip()
        elif found.is_dir():
            yield from list_files(found, ENDINGS)[0]
        else:
            raise UserError(f"{found}: no such folder of images.")


def _parse_yolo(cells: list[str], names: dict[Any, Any]) -> dict[str, Any]:
    if len(cells) != 5 or not cells[0].isdecimal():
        shown = excerpt(" ".join(cells))
        raise UserError(f"expected a class and the center and size of a box, got {shown}")
    x, y, width, height = map(as_number, cells[1:])
    if not all(0 <= side <= 1 for side in (x, y, width, height)):
        raise UserError(f"expected fractions of the image, got {' '.join(cells[1:])}")
    if int(cells[0]) not in names:
        raise UserError(f"the class {cells[0]} has no name; the names are {names}")
    sides = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
    return sides | {"label": names[int(cells[0])], "is_relative": True}


def _read_voc(path: Path, split: str, bad_rows: BadRows) -> tuple[Rows, Path]:
    files, images = [path], path.parent
    if path.is_dir():
        try:
            files, _ = list_files(path, (".xml",))
        except UserError as error:
            hint = "A folder is read as Pascal VOC; for YOLO, give data.yaml."
            raise UserError(f"{error} {hint}") from None
        images = path.parent / "JPEGImages" if path.name == "Annotations" else path
    elif suffix_of(path) == ".txt":
        root = path.absolute().parents[2]
        names = [decode_line(line, str(path)).strip() for line in read_lines(path)]
        files = [root / "Annotations" / f"{name}.xml" for name in names if name]
        images = root / "JPEGImages"
    rows: Rows = {}
    for file in files:
        with bad_rows.catch(str(file)):
            annotation = _read_xml(file)
            image = annotation.findtext("filename", "").strip()
            if annotation.tag != "annotation" or not image:
                raise UserError(f"{file}: expected an <annotation> of Pascal VOC with a <filename>")
            if image in rows:
                raise UserError(f"{file}: {rows[image][0][0]} has the same filename, {image!r}")
            boxes = rows[image] = [(str(file), {})]
            for number, item in enumerate(annotation.findall("object"), start=1):
                row = {name: item.findtext(f"bndbox/{name}") for name in _CORNERS}
                row |= {name: annotation.findtext(f"size/{name}") for name in ("width", "height")}
                is_difficult = item.findtext("difficult", "0").strip() == "1"
                more = {"label": item.findtext("name"), "iscrowd": is_difficult}
                boxes.append((f"{file}, object {number}", row | more))
    return rows, images


def _read_cvat(path: Path, split: str, bad_rows: BadRows) -> tuple[Rows, Path]:
    root = _read_xml(path)
    if root.tag != "annotations" or root.find("track") is not None:
        raise UserError(f"{path}: expected <annotations> of the export 'CVAT for images'.")
    rows: Rows = {}
    for image in root.findall("image"):
        name = image.get("name", "")
        boxes = rows[name] = [(f"{path}, image {name}", {})]
        for number, shape in enumerate(image, start=1):
            where = f"{path}, image {name}, shape {number}"
            with bad_rows.catch(where):
                is_box = shape.tag == "box" and as_number(shape.get("rotation", 0)) == 0
                if not is_box and shape.tag != "tag":  # a tag is of the whole image
                    raise UserError(f"expected a box that is not rotated, got a {shape.tag}")
                corners = zip(_CORNERS, map(shape.get, _CVAT_CORNERS), strict=True)
                if is_box:
                    sizes = {"width": image.get("width"), "height": image.get("height")}
                    boxes.append((where, dict(corners) | sizes | {"label": shape.get("label")}))
    return rows, path.parent


def _read_xml(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(read_bytes(path))
    except ElementTree.ParseError as error:
        raise UserError(f"{path}: not XML: {error}") from None


class _Rectangle(msgspec.Struct):
    x: float
    y: float
    width: float
    height: float
    rectanglelabels: list[str]
    rotation: float = 0


def _read_label_studio(path: Path, split: str, bad_rows: BadRows) -> tuple[Rows, Path]:
    rows: Rows = {}
    for number, record in read_records(path, bad_rows):
        where = locate(path, number)
        with bad_rows.catch(where):
            try:
                data, values = read_task(record, "rectanglelabels")
                found = [msgspec.convert(value, _Rectangle) for value in values]
            except msgspec.ValidationError as error:
                raise UserError(f"not a task of Label Studio with boxes: {error}") from None
            if "image" not in data:
                raise UserError(f"data has no 'image'; it has {', '.join(map(repr, data))}")
            image = _file_of(str(data["image"]))
            if image in rows:
                raise UserError(f"the image {image!r} is also that of {rows[image][0][0]}")
            rows[image] = [(where, {}), *((where, _parse_rectangle(item)) for item in found)]
    return rows, path.parent


def _parse_rectangle(item: _Rectangle) -> dict[str, Any]:
    if item.rotation or len(item.rectanglelabels) != 1:
        shown = f"{item.rectanglelabels} rotated by {item.rotation:g}"
        raise UserError(f"expected boxes of one label that are not rotated, got {shown}")
    sides = {name: getattr(item, name) / 100 for name in ("x", "y", "width", "height")}
    return sides | {"label": item.rectanglelabels[0], "is_relative": True}


def _file_of(url: str) -> str:
    """Return the file of an image: the path after `?d=` of a local file, the name of an upload or
    of another URL, or a path as it is."""
    parts = urlsplit(url)
    local = parse_qs(parts.query).get("d")
    if local:
        return local[0]
    if parts.scheme or parts.path.startswith("/data/"):
        return PurePosixPath(unquote(parts.path)).name
    return url


_READERS: dict[str, Callable[[Path, str, BadRows], tuple[Rows, Path]]] = {
    "coco": lambda path, _, bad_rows: (read_coco_boxes(path, bad_rows), path.parent),
    "yolo": _read_yolo,
    "voc": _read_voc,
    "cvat": _read_cvat,
    "label-studio": _read_label_studio,
}
