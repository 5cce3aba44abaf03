"""IDX files, the format of MNIST: big-endian arrays of bytes."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.system.files import read_unpacked

MAGIC_IMAGES, MAGIC_LABELS = 2051, 2049


def read_idx(path: Path, magic: int, axes: int) -> NDArray[np.uint8]:
    """Read the bytes of an IDX file, plain or compressed. Raises UserError naming the file."""
    content = read_unpacked(path)
    try:
        found, *sizes = struct.unpack_from(f">{1 + axes}i", content)
        if found != magic:
            raise ValueError(f"expected magic number {magic}, got {found}")
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sizes)
    except (struct.error, ValueError) as error:
        raise UserError(
            f"{path}: not an IDX file of {axes} axes, or truncated: {error}."
        ) from error
    return values.copy()  # writable, as torch shares this memory
