"""Arrays of .npy and .npz files of NumPy, and of vectors."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

_DAMAGED = (ValueError, OSError, EOFError, KeyError, MemoryError)
"""Errors of NumPy for files that are damaged, or state a size that they do not hold."""


def load_arrays(content: bytes, name: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names in the content of an .npz (or .npy, of any name) file."""
    try:
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return dict.fromkeys(names, loaded)
        return {key: loaded[key] for key in names}
    except (*_DAMAGED, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{name}: expected arrays of NumPy ({', '.join(names)}): {error}") from None


def stack_vectors(vectors: Sequence[Any]) -> NDArray[np.float32]:
    """Return vectors as the rows of an array, with NaN in place of None."""
    width = max((len(vector) for vector in vectors if vector is not None), default=0)
    empty = np.full(width, np.nan, np.float32)
    rows = [empty if vector is None else vector for vector in vectors]
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)
