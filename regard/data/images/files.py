"""Image files, from a folder, a tar or the caller, with the same preparation in all recipes.

    file -> format by content -> number of pixels -> decode -> upright (EXIF) -> 8 bits ->
    transparency over white

Only FORMATS are accepted, recognized by content: Pillow has other formats, one of which starts
Ghostscript. Animated images are read as their first frame. The EXIF orientation is applied, as in
image viewers. 16-bit grayscale images are converted to 8 bits, v -> round(v / 257); images of
32-bit integers or floating-point numbers have no defined scale and are refused. Transparent pixels
are composited over white.
"""

import io
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, features

from regard.data.named_files import NamedFiles
from regard.errors import UserError
from regard.system.files import check_file, read_bytes
from regard.system.fingerprints import add_digest
from regard.system.memory import available_memory, variable_limit

_HAS_JPEG_2000 = features.check("jpg_2000")
_HAS_AVIF = find_spec("PIL._avif") is not None
FORMATS = (
    *("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"),
    *(("AVIF",) if _HAS_AVIF else ()),
    *(("JPEG2000",) if _HAS_JPEG_2000 else ()),
)
"""Accepted formats, by Pillow's names; PPM includes PGM and PBM. AVIF and JPEG 2000 if Pillow was
built with them."""
ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".pbm", ".pgm", ".ppm", ".pnm"),
    *((".avif",) if _HAS_AVIF else ()),
    *((".jp2", ".j2k") if _HAS_JPEG_2000 else ()),
)
"""File extensions of images in a folder."""
_MOST_PIXELS = 178_956_970
"""Pillow's limit, twice its MAX_IMAGE_PIXELS."""
_MOST_RATIO, _BYTES_PER_PIXEL = 100, 16
"""Pixels per byte of a file, and memory per pixel while it is decoded, up to which larger images
are read."""
_VARIABLE = "REGARD_MAX_IMAGE_MEGAPIXELS"
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_SCALED_IN_I = ("PNG", "PPM")
"""Formats in which integers of Pillow's mode I range up to 65,535; in TIFF they have no defined
range."""
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
"""Transpose that makes an image of each EXIF orientation upright (JEITA CP-3451, tag
Orientation)."""
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class UprightImage(NamedTuple):
    """Image with its EXIF orientation applied."""

    image: Image.Image
    orientation: int
    """EXIF orientation that was applied; 1 if none."""

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height before the rotation."""
        width, height = self.image.size
        return (height, width) if self.orientation >= 5 else (width, height)

    def describe_size(self) -> str:
        """Return width x height in pixels, and the stored size if the rotation changed it."""
        size = f"{self.image.width} x {self.image.height}"
        if self.orientation < 5:
            return size
        stored = " x ".join(map(str, self.stored_size))
        return f"{size} (stored as {stored} and rotated by its EXIF orientation {self.orientation})"


def pixel_limit(size: int) -> int:
    """Return the maximum number of pixels of an image in a file of `size` bytes.

    178,956,970, or more if the file has at least a byte for 100 pixels and 16 bytes of memory are
    available for each; or REGARD_MAX_IMAGE_MEGAPIXELS million.
    """
    limit = variable_limit(_VARIABLE, "million pixels")
    if limit is not None:
        return limit * 1_000_000
    return max(_MOST_PIXELS, min(_MOST_RATIO * size, (available_memory() or 0) // _BYTES_PER_PIXEL))


def read_image(path: Path, where: str = "") -> UprightImage:
    """Read and prepare an image.

    where:  location of the reference to the file, for messages.
    Raises: UserError naming both if the file is not an image of FORMATS, is damaged, exceeds
            `pixel_limit()`, or has pixels without a defined scale.
    """
    try:
        check_file(path)  # refuses pipes, which would block
        content = read_bytes(path)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    return decode_image(content, f"{where}: {path}" if where else str(path))


def prepare_image(image: Image.Image, name: str) -> UprightImage:
    """Convert an image to upright orientation, 8 bits a channel and no transparency.

    name:   of the image, for messages.
    Raises: UserError if its pixels have no defined scale.
    """
    applied = getattr(image, "tag_v2", {}).get(
        _ORIENTATION
    )  # of a TIFF, which Pillow rotates when it loads the pixels
    image.load()
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001  # damaged EXIF is ignored; Pillow raises many types of exceptions
        orientation = None
    image = _flatten(_to_eight_bits(image, name))
    if orientation in _TRANSPOSES:
        return UprightImage(image.transpose(_TRANSPOSES[orientation]), orientation)
    return UprightImage(image, applied if applied in _TRANSPOSES else 1)


class ImageFiles(NamedFiles):
    """Image files of a folder or a tar, by name."""

    noun = "image"

    def open(self, name: str, where: str, others: Sequence[NamedFiles] = ()) -> UprightImage:
        """Read the image of this name, as RGB.

        where:  location of the reference to the file, for messages.
        others: folders and tars that were searched, too, for messages.
        Raises: UserError naming both.
        """
        path = self.find(name, where)
        if path is None:
            raise self.missing(name, where, others)
        if self.members is None:
            return _to_color(read_image(self.path / path, where))
        start, size = self.members[path]
        with self.path.open("rb") as archive:
            archive.seek(start)
            content = archive.read(size)
        add_digest(f"{self.path}/{path}", content)
        return _to_color(decode_image(content, f"{where}: {self.path} / {path}"))


def find_images(
    annotations: Path, images: str | Path | None, *, option: str = "--data.images"
) -> list[ImageFiles]:
    """Return the folders and tars of the images of a file of annotations: the given one, or those
    that exist.

    The default is a folder or tar beside the file that is named like it, like the last part of its
    name (captions_train.json: train, train.tar) or images; then its own folder.

    option: the option that names `images`, for messages.
    """
    folder = annotations.parent
    if images is not None:
        return [ImageFiles.from_path(Path(images), home=folder, option=option)]
    stem = annotations.name.split(".")[0]
    last = stem.rsplit("_", 1)[-1]
    names = (last, f"{last}.tar", stem, f"{stem}.tar", "images", "images.tar")
    existing = [
        folder / name for name in names if (folder / name).exists() and folder / name != annotations
    ]
    return [
        ImageFiles.from_path(path, home=folder, option=option) for path in (*existing[:1], folder)
    ]


def open_first(
    sources: Sequence[ImageFiles], name: str, where: str
) -> tuple[ImageFiles, UprightImage]:
    """Return the first source that has an image of this name, and the image.

    where:  location of the reference to the file, for messages.
    Raises: UserError naming both.
    """
    source = next((source for source in sources if source.has(name)), None)
    source = source or next(
        (source for source in sources if source.has(name, by_last_parts=True)), None
    )
    if source is None:
        source, *others = sources
        return source, source.open(name, where, others)
    return source, source.open(name, where)


def decode_image(content: bytes, name: str) -> UprightImage:
    """Decode and prepare the content of an image file. Raises UserError as `read_image`; `name` is
    for messages."""
    limit = pixel_limit(len(content))
    if limit > _MOST_PIXELS and Image.MAX_IMAGE_PIXELS is not None:  # Pillow's own limit is lower
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, (limit + 1) // 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about many pixels, which are checked below, and damaged EXIF
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            pixels = image.width * image.height
            if pixels > limit:
                raise _too_many(f"{image.width} x {image.height} pixels", limit, name)
            return prepare_image(image, name)
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise _too_many("its pixels", limit, name) from None
    except Exception as error:  # Pillow raises many types of exceptions for damaged files
        raise UserError(f"{name}: not a readable image ({_reason(error, content)}).") from error


def _too_many(pixels: str, limit: int, name: str) -> UserError:
    return UserError(f"{name}: {pixels} exceed the limit of {limit:,} ({_VARIABLE} raises it).")


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _SCALED_IN_I):
        wide = np.asarray(image).astype(np.uint32)  # below 65,536
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "32-bit integer" if image.mode == "I" else "floating-point"
        raise UserError(
            f"{name}: {kind} pixels have no defined range from black to white: convert it to 8 "
            f"bits."
        )
    return image


def _flatten(image: Image.Image) -> Image.Image:
    """Composite an image with transparency over white: L or RGB."""
    if not image.has_transparency_data:
        return image
    image = image.convert("LA" if image.mode in ("1", "L", "LA", "La") else "RGBA")
    mode = image.mode[:-1]
    background = Image.new(mode, image.size, "white")
    background.paste(image.convert(mode), mask=image.getchannel("A"))
    return background


def _to_color(upright: UprightImage) -> UprightImage:
    return (
        upright
        if upright.image.mode == "RGB"
        else upright._replace(image=upright.image.convert("RGB"))
    )


def _reason(error: Exception, content: bytes) -> str:
    if not content:
        return "the file is empty"
    if not isinstance(error, Image.UnidentifiedImageError):
        return f"{type(error).__name__}: {error}"[:200]
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        return "HEIC is not supported: convert it to JPEG"
    return f"its format is not one of {', '.join(FORMATS)}"
