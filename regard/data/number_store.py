"""Storage of many numbers, such as samples of sounds or token ids."""

import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regard.errors import UserError

_MOST_IN_MEMORY = 256 << 20


class NumberStore:
    """Growing array of numbers. Above 256 MiB, they are moved to an unnamed temporary file (in the
    folder TMPDIR), from which the array is memory-mapped."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, block: NDArray[Any]) -> None:
        self._count += len(block)
        size = self.dtype.itemsize * self._count
        if self._file is None and size <= _MOST_IN_MEMORY:
            self._memory += block.tobytes()
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="regard-")  # noqa: SIM115  # lives as long as the array
                self._file.write(self._memory)
                self._memory = bytearray()
            self._file.write(block.tobytes())
        except OSError as error:
            folder = tempfile.gettempdir()
            raise UserError(f"{folder}: {error.strerror or error} (TMPDIR: another one)") from error

    def array(self) -> NDArray[Any]:
        """Return all numbers. Nothing can be appended afterwards."""
        if self._file is None:
            return np.frombuffer(self._memory, self.dtype)
        with self._file as file:
            file.flush()
            return np.memmap(file, self.dtype, "r")
