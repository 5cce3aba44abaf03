"""Storage of 16-bit samples of many sounds: in memory, or in a temporary file above a limit."""

import tempfile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

_MOST_IN_MEMORY = 256 << 20
_NUMBER_BYTES = 2


class SampleStore:
    """Growing array of samples.

    Above 256 MiB, samples are moved to an unnamed temporary file (in the folder TMPDIR), from which the array is
    memory-mapped; the system removes the file with the process.
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, block: NDArray[np.int16]) -> None:
        """Append samples. Raises UserError naming the folder if the temporary file cannot be written."""
        self._count += len(block)
        if self._file is None and _NUMBER_BYTES * self._count <= _MOST_IN_MEMORY:
            self._memory += block.tobytes()
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="regard-sound-")  # noqa: SIM115  # lives as long as the array
                self._file.write(self._memory)
                self._memory = bytearray()
            self._file.write(block.tobytes())
        except OSError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: {_NUMBER_BYTES * self._count:,} bytes of samples cannot be written to a "
                f"temporary file: {error.strerror or error}. Set the environment variable TMPDIR to another folder."
            ) from error

    def array(self) -> NDArray[np.int16]:
        """Return all samples. Nothing can be appended afterwards."""
        if self._file is None:
            return np.frombuffer(self._memory, np.int16)
        with self._file as file:
            file.flush()
            return np.memmap(file, np.int16, "r")
