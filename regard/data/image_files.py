"""Image files: one function prepares every image, in whatever recipe, from a folder, a tar or the caller.

    file -> format by content -> number of pixels -> decode -> upright (EXIF) -> 8 bits -> transparency over white

Only the formats of FORMATS are tried, by content: Pillow has others, of which one starts Ghostscript. Of an animated
image the first frame is read. The EXIF orientation is applied, so that an image is read as viewers show it. 16-bit
images in gray become 8-bit, v -> round(v / 257); images of 32-bit whole numbers and of floating numbers have no scale
of their own and are refused. Transparent pixels show a white ground.
"""

import io
import tarfile
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from regard.available import variable_limit
from regard.digests import note
from regard.errors import UserError
from regard.files import check_file, read_bytes

_HAS_AVIF = find_spec("PIL._avif") is not None
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", *(("AVIF",) if _HAS_AVIF else ()))
"""Formats that are opened, by Pillow's names; PPM is PGM and PBM as well. AVIF where Pillow was built with it."""
ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".pbm", ".pgm", ".ppm", ".pnm", *((".avif",) if _HAS_AVIF else ())),
)
"""Endings of the files in a folder that are images."""
_MOST_PIXELS = 178_956_970
"""Pillow's own bound, twice its MAX_IMAGE_PIXELS."""
_VARIABLE = "REGARD_MAX_IMAGE_MEGAPIXELS"
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_SCALED_IN_I = ("PNG", "PPM")
"""Formats whose whole numbers in Pillow's mode I reach 65,535; in TIFF they may be anything."""
_ORIENTATION = 0x0112
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The change that brings an image of each EXIF orientation upright (JEITA CP-3451, tag Orientation)."""
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class UprightImage(NamedTuple):
    """An image as viewers show it."""

    image: Image.Image
    orientation: int
    """EXIF orientation that was applied; 1 for none."""

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height before the orientation was applied."""
        width, height = self.image.size
        return (height, width) if self.orientation >= 5 else (width, height)

    def describe_size(self) -> str:
        """Width x height in pixels, and the size before rotation where EXIF changed it."""
        size = f"{self.image.width} x {self.image.height}"
        if self.orientation < 5:
            return size
        stored = " x ".join(map(str, self.stored_size))
        return f"{size} (stored as {stored} and rotated, as its EXIF orientation {self.orientation} says)"


def pixel_limit() -> int:
    """Pixels that an image may have: 178,956,970, or the millions that REGARD_MAX_IMAGE_MEGAPIXELS states."""
    limit = variable_limit(_VARIABLE, "million pixels")
    return _MOST_PIXELS if limit is None else limit * 1_000_000


def read_image(path: Path, where: str = "") -> UprightImage:
    """Return the image in a file, prepared.

    where:  the place that names the file, for messages.
    Raises: UserError naming both if it is no image of FORMATS, damaged, above `pixel_limit()`, or of numbers without
            scale.
    """
    try:
        check_file(path)  # a pipe in a folder of images would be waited for
        content = read_bytes(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    return _decode(content, f"{where}: {path}" if where else str(path))


def prepare_image(image: Image.Image, name: str) -> UprightImage:
    """Return an image upright, of 8 bits a channel, without transparency.

    name:   for messages.
    Raises: UserError if its numbers have no scale of their own.
    """
    applied = getattr(image, "tag_v2", {}).get(_ORIENTATION)  # of a TIFF, which Pillow turns when it loads the pixels
    image.load()
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001  # damaged EXIF says nothing of the pixels; Pillow raises any of a dozen kinds
        orientation = None
    image = _flatten(_to_eight_bits(image, name))
    if orientation in _TRANSPOSES:
        return UprightImage(image.transpose(_TRANSPOSES[orientation]), orientation)
    return UprightImage(image, applied if applied in _TRANSPOSES else 1)


def path_of_name(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder.

    A backslash separates folders, as in lists written on Windows, if there is no such file otherwise.
    """
    return next((folder / one for one in _spellings(name) if _exists(folder / one)), folder / name)


def _decode(content: bytes, name: str) -> UprightImage:
    limit = pixel_limit()
    if limit > _MOST_PIXELS and Image.MAX_IMAGE_PIXELS is not None:  # the user asked for more than Pillow allows
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, (limit + 1) // 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels, for which the bound here decides, and of damaged EXIF
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            pixels = image.width * image.height
            if pixels > limit:
                raise _too_many(f"{image.width} x {image.height} pixels", limit, name)
            return prepare_image(image, name)
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise _too_many("its pixels", limit, name) from None
    except Exception as error:  # Pillow's readers raise any of a dozen kinds for damaged files
        raise UserError(f"{name}: no image that can be read ({_reason(error, content)}).") from error


def _too_many(what: str, limit: int, name: str) -> UserError:
    return UserError(f"{name}: {what} are more than the {limit:,} that are read ({_VARIABLE} raises this).")


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _SCALED_IN_I):
        wide = np.asarray(image).astype(np.uint32)  # below 65,536
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "32-bit whole" if image.mode == "I" else "floating"
        raise UserError(f"{name}: holds {kind} numbers, of which nothing tells black and white: convert it to 8 bits.")
    return image


def _flatten(image: Image.Image) -> Image.Image:
    """Return the image over a white ground, if it has transparency: L or RGB."""
    if not image.has_transparency_data:
        return image
    image = image.convert("LA" if image.mode in ("1", "L", "LA", "La") else "RGBA")
    mode = image.mode[:-1]
    ground = Image.new(mode, image.size, "white")
    ground.paste(image.convert(mode), mask=image.getchannel("A"))
    return ground


def _to_color(found: UprightImage) -> UprightImage:
    return found if found.image.mode == "RGB" else found._replace(image=found.image.convert("RGB"))


def _reason(error: Exception, content: bytes) -> str:
    if not isinstance(error, Image.UnidentifiedImageError):
        return f"{type(error).__name__}: {error}"[:200]
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        return "it is HEIC, which is not read: convert it to JPEG"
    return f"its content is none of {', '.join(FORMATS)}"


def _spellings(name: str) -> tuple[str, ...]:
    return (name, name.replace("\\", "/")) if "\\" in name else (name,)


def _is_inside(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False


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

    def has(self, name: str) -> bool:
        """Return True if there is a file of this name, with a backslash as a separator if not otherwise."""
        return self._find(name) is not None

    def open(self, name: str, where: str) -> UprightImage:
        """Return the image of this name, in color.

        where:  the place that names the file, for messages.
        Raises: UserError naming both.
        """
        found = self._find(name)
        if self.members is None and not _is_inside(name):
            raise UserError(f"{where}: the image {name[:200]!r} must be a name inside {self.path}.")
        if found is None:
            raise UserError(f"{where}: there is no image {name[:200]} in {self.path}.")
        if self.members is None:
            return _to_color(read_image(self.path / found, where))
        start, size = self.members[found]
        with self.path.open("rb") as archive:
            archive.seek(start)
            content = archive.read(size)
        note(f"{self.path}/{found}", content)
        return _to_color(_decode(content, f"{where}: {self.path} / {found}"))

    def _find(self, name: str) -> str | None:
        return next((one for one in _spellings(name) if self._is_there(one)), None)

    def _is_there(self, name: str) -> bool:
        if self.members is not None:
            return name in self.members
        return _is_inside(name) and _exists(self.path / name)
