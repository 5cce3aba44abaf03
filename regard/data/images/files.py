"""Image files, from a folder or a tar, with the same preparation in all recipes.

    file -> format by content -> decode -> upright (EXIF) -> 8 bits -> transparency over white

Only FORMATS are accepted: Pillow has others, one of which starts Ghostscript. Animated images are
read as their first frame. The number of pixels is limited by Pillow.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from regard.errors import UserError
from regard.system.files import read_bytes

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Accepted formats, by Pillow's names; PPM includes PGM and PBM."""
ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".avif", ".jp2", ".j2k"),
)
"""File extensions of images in a folder."""


def open_images(path: Path) -> Callable[[str], Image.Image]:
    """Return a function that reads an image of a folder or an uncompressed tar, by name, as RGB.
    Both raise UserError naming the file."""
    if path.is_dir():
        return lambda name: read_image(path / name).convert("RGB")
    try:
        with tarfile.open(path, "r:") as archive:
            files = [member for member in archive if member.isreg()]
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{path}: expected a folder or an uncompressed tar: {error}.") from error
    members = {file.name.removeprefix("./"): (file.offset_data, file.size) for file in files}

    def read(name: str) -> Image.Image:
        if name not in members:
            raise UserError(f"{path} has no file {name[:200]!r}.")
        start, size = members[name]
        with path.open("rb") as archive:
            archive.seek(start)
            content = archive.read(size)
        return decode_image(content, f"{path}/{name}").convert("RGB")

    return read


def read_image(path: Path) -> Image.Image:
    """Read and prepare an image. Raises UserError if the file is missing or not an image."""
    return decode_image(read_bytes(path), str(path))


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode and prepare the content of an image file of this name. Raises UserError naming it."""
    try:
        return prepare_image(Image.open(io.BytesIO(content), formats=FORMATS), name)
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"{name}: not an image of {', '.join(FORMATS)}.") from None
    except Exception as error:  # Pillow raises many types of exceptions for damaged files
        raise UserError(f"{name}: not a readable image ({error}).") from error


def prepare_image(image: Image.Image, name: str) -> Image.Image:
    """Convert an image to upright orientation, 8 bits a channel and no transparency. Raises
    UserError with this name if its pixels have no defined scale."""
    image = ImageOps.exif_transpose(image)
    transparent = image.info.get("transparency")
    if image.mode.startswith("I;16"):  # Pillow would clip at 255
        wide = np.asarray(image).astype(np.uint32)
        narrow = np.where(wide == transparent, 255, (wide + 128) // 257)
        image = Image.fromarray(narrow.astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError(f"{name}: 32-bit pixels have no defined white: convert it to 8 bits.")
    if not image.has_transparency_data:
        return image
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    image = image.convert(f"{mode}A")
    background = Image.new(mode, image.size, "white")
    background.paste(image.convert(mode), mask=image.getchannel("A"))
    return background
