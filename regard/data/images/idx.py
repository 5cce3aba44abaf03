"""IDX files, the format of MNIST: big-endian arrays of bytes."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.system.files import read_unpacked

MAGIC_IMAGES, MAGIC_LABELS = 2051, 2049


def read_idx(path: Path, magic: int, axes: int) -> NDArray[np.uint8]:
    """Read the bytes of an IDX file, and check them against the sizes in its header."""
    content = read_unpacked(path)
    header = (
        np.frombuffer(content[: 4 + 4 * axes], ">i4")
        if len(content) >= 4 + 4 * axes
        else np.zeros(0, ">i4")
    )
    if not len(header) or header[0] != magic:
        actual = f"{header[0]}" if len(header) else f"{len(content)} bytes"
        raise UserError(
            f"{path}: not an IDX file of {'images' if axes > 1 else 'labels'}: expected magic "
            f"number {magic}, "
            f"got {actual}."
        )
    sizes = tuple(int(size) for size in header[1:])
    stated = " x ".join(map(str, sizes))
    if min(sizes) < 1:
        raise UserError(f"{path}: sizes in the header must be at least 1, got {stated}.")
    body = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if body.size != math.prod(sizes):
        raise UserError(
            f"{path}: its header states {stated} bytes, but the file holds {body.size:,}: "
            f"truncated?"
        )
    return body.reshape(sizes).copy()  # writable, as torch shares this memory
