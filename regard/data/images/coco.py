"""Annotations in COCO's JSON format, indexed by faster-coco-eval.

    {"images": [{"id", "file_name"}], "categories": [{"id", "name"}],
     "annotations": [{"id", "image_id", "category_id", "bbox": [x, y, width, height], "area",
                      "iscrowd"}]}
    {"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

import json
import warnings
from pathlib import Path
from typing import Any

from regard.data.bad_rows import BadRows
from regard.errors import UserError
from regard.system.extras import import_extra
from regard.system.files import read_bytes


def read_coco(path: Path) -> Any:
    """Return the content of a file as `faster_coco_eval.COCO`. Raises UserError naming the file."""
    faster_coco_eval = import_extra("faster_coco_eval", str(path))
    content = read_bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about annotations of id 0, which matter in results
            coco = faster_coco_eval.COCO(json.loads(content))
        _check_unique(path, "images", "file_name", coco.imgs)
        _check_unique(path, "categories", "name", coco.cats)
    except KeyError as error:
        raise UserError(f"{path}: expected COCO's format, but there is no {error}.") from error
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise UserError(f"{path}: expected COCO's images and annotations: {error}.") from error
    return coco


def _check_unique(path: Path, kind: str, field: str, items: dict[int, dict[str, Any]]) -> None:
    """Raise UserError if two items have the same name, by which they are found; make it a text."""
    ids: dict[str, int] = {}
    for key, item in items.items():
        name = item[field] = str(item[field])
        if name in ids:
            raise UserError(f"{path}: {kind} {ids[name]} and {key} have the same {field}, {name!r}")
        ids[name] = key


def read_coco_boxes(path: Path, bad_rows: BadRows) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the annotations of each image file with a `label`, as `read_rows_of_files`."""
    coco = read_coco(path)
    images: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for key, image in coco.imgs.items():
        rows: list[tuple[str, dict[str, Any]]] = [(f"{path}, image {key}", {})]
        for annotation in coco.imgToAnns[key]:
            where = f"{path}, annotation {annotation['id']}"
            with bad_rows.catch():
                category = coco.cats.get(annotation.get("category_id"))
                if category is None or "bbox" not in annotation:
                    raise UserError(f"{where}: expected bbox and the id of a category.")
                sizes = {"width": image.get("width"), "height": image.get("height")}
                rows.append((where, annotation | sizes | {"label": category["name"]}))
        images[image["file_name"]] = rows
    return images


def read_coco_captions(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the locations and captions of each image file."""
    coco = read_coco(path)
    images: dict[str, list[tuple[str, str]]] = {}
    for key, image in coco.imgs.items():
        captions = images[image["file_name"]] = []
        for annotation in coco.imgToAnns[key]:
            where = f"{path}, annotation {annotation['id']}"
            captions.append((where, str(annotation.get("caption", ""))))
    return images
