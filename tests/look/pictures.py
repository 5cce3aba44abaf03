"""Files of figures: complete, of the format of their suffix, and not blank."""

import re
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from matplotlib.image import imread

from regard.look.figures.canvas import open_figure

SVG = "{http://www.w3.org/2000/svg}"


def check_picture(path: Path) -> None:
    """Fail unless the file is a whole picture with dark pixels (PNG) or with text (SVG, PDF)."""
    content = path.read_bytes()
    match path.suffix.lower():
        case ".png":
            dark = imread(BytesIO(content), format="png")[..., :3].max(-1) < 0.5
            assert 0 < dark.mean() < 0.5
        case ".svg":
            root = ElementTree.fromstring(content)
            assert root.tag == f"{SVG}svg"
            assert any("".join(text.itertext()).strip() for text in root.iter(f"{SVG}text"))
        case ".pdf":
            assert content.startswith(b"%PDF-")
            assert content.rstrip().endswith(b"%%EOF")
            streams = re.findall(
                rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL
            )
            assert any(
                re.search(rb"T[jJ]\b", zlib.decompressobj().decompress(stream))
                for stream in streams
            )
        case suffix:
            raise AssertionError(suffix)


def draw(
    path: Path, plot: Callable[..., None], *content: Any, overwrite: bool = True, **options: Any
) -> Path:
    """Write the figure that a function plots."""
    with open_figure(path, overwrite=overwrite) as figure:
        plot(figure, *content, **options)
    return path


def texts_of(path: Path) -> list[str]:
    """Return the texts of an SVG file."""
    elements = ElementTree.parse(path).iter(f"{SVG}text")
    return ["".join(text.itertext()).strip() for text in elements]
