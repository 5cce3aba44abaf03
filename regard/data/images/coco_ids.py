"""Ids of a file in COCO's JSON format, for results that refer to them. (no torch)"""

from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.system.files import parse_data, read_unpacked


class CocoIds(NamedTuple):
    """Ids of images by file name, and of categories by name."""

    images: dict[str, int | str]
    categories: dict[str, int | str]


def read_coco_ids(path: Path) -> CocoIds:
    """Return the ids of a file. Raises UserError if it is not COCO."""
    content = parse_data(read_unpacked(path), origin=str(path))
    try:
        images = {image["file_name"]: image["id"] for image in content["images"]}
        return CocoIds(
            images, {category["name"].strip(): category["id"] for category in content["categories"]}
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: expected COCO's images (id, file_name) and categories (id, name)"
        ) from error
