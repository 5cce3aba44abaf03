"""Image files: one way to open them, whichever recipe reads them, and whether they lie in a folder or a tar.

Only the formats of FORMATS are tried, by content: Pillow knows others, of which one starts Ghostscript. Of an animated
image the first frame is read. 16-bit images in gray become 8-bit, v -> round(v / 257); images of 32-bit whole numbers
and of floating numbers have no scale of their own and are refused.
"""

import io
import tarfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from regard.digests import note
from regard.errors import UserError
from regard.files import check_file, read_bytes

__all__ = ["ENDINGS", "FORMATS", "MOST_PIXELS", "ImageFiles", "read_image"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is opened, by Pillow's names; PPM is PGM and PBM as well."""
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
"""What files are taken for images in a folder."""
MOST_PIXELS = 64_000_000
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_SCALED_IN_I = ("PNG", "PPM")
"""Formats whose whole numbers in Pillow's mode I reach 65,535; in TIFF they may be anything."""


def read_image(path: Path, where: str = "") -> Image.Image:
    """The image in a file, decoded, of 8 bits a channel.

    where:  the place that names the file, for messages.
    Raises: UserError naming both if it is no image of FORMATS, damaged, above MOST_PIXELS, or of numbers without scale.
    """
    try:
        content = read_bytes(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    return _decoded(content, f"{where}: {path}" if where else str(path))


def _decoded(content: bytes, name: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower, and refuses
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise UserError(
                f"{name}: {image.width} x {image.height} pixels are more than the {MOST_PIXELS:,} that are read."
            )
        image.load()
        return _eight_bits(image, name)
    except UserError:
        raise
    except Exception as error:  # what Pillow's readers raise for damaged files is any of a dozen kinds
        raise UserError(f"{name}: no image that can be read ({_said(error)}).") from error


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _SCALED_IN_I):
        wide = np.asarray(image).astype(np.uint32)  # below 65,536
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "32-bit whole" if image.mode == "I" else "floating"
        raise UserError(f"{name}: holds {kind} numbers, of which nothing tells black and white: convert it to 8 bits.")
    return image


def _said(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return f"its content is none of {', '.join(FORMATS)}"
    return f"{type(error).__name__}: {error}"[:200]


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a folder or a tar, by name."""

    path: Path
    """The folder or the tar."""
    members: dict[str, tuple[int, int]] | None
    """Of a tar: where the bytes of each file begin, and how many there are."""

    @classmethod
    def of(cls, path: Path) -> "ImageFiles":
        """The images in a folder or a tar. Raises UserError if it is neither."""
        if path.is_dir():
            return cls(path, None)
        size = check_file(path).st_size
        try:
            with tarfile.open(path, "r:") as archive:
                found = {one.name: (one.offset_data, one.size) for one in archive if one.isreg() and not one.issparse()}
        except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
            raise UserError(f"{path}: expected a folder or an uncompressed tar of images ({error}).") from error
        for name, (start, length) in found.items():
            if start < 0 or length < 0 or start + length > size:
                raise UserError(f"{path}: the tar is cut off: {name[:200]!r} ends behind its {size:,} bytes.")
        short: dict[str, list[tuple[int, int]]] = {}
        for name, place in found.items():
            short.setdefault(name.rsplit("/", 1)[-1], []).append(place)
        # A last part of a name that several files have says of none which it is.
        return cls(path, {name: places[0] for name, places in short.items() if len(places) == 1} | found)

    def open(self, name: str, where: str) -> Image.Image:
        """The image of this name, in color. Raises UserError naming the file and who asked for it."""
        if self.members is None:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise UserError(f"{where}: the image {name[:200]!r} must be a name inside {self.path}.")
            if not self._is_there(name):
                raise UserError(f"{where}: there is no image {name[:200]} in {self.path}.")
            return read_image(self.path / name, where).convert("RGB")
        if name not in self.members:
            raise UserError(f"{where}: there is no image {name[:200]} in {self.path}.")
        start, size = self.members[name]
        with self.path.open("rb") as archive:
            archive.seek(start)
            content = archive.read(size)
        note(f"{self.path}/{name}", content)
        return _decoded(content, f"{where}: {self.path} / {name}").convert("RGB")

    def _is_there(self, name: str) -> bool:
        try:
            return (self.path / name).exists()
        except (OSError, ValueError):  # too long, or with a null character
            return False
