"""16-bit samples of any number of sounds, end to end: in memory, or in a temporary file if they are many."""

import tempfile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

_MOST_IN_MEMORY = 256 << 20
_NUMBER_BYTES = 2


class SampleStore:
    """Samples that are appended and then read as one array.

    Beyond 256 MiB they move to a temporary file without a name (in the folder that TMPDIR names), from which the array
    is mapped; the system removes it with the process.
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
                f"temporary file: {error.strerror or error}. The environment variable TMPDIR names another folder."
            ) from error

    def array(self) -> NDArray[np.int16]:
        """Return all samples; nothing can be appended from now on."""
        if self._file is None:
            return np.frombuffer(self._memory, np.int16)
        with self._file as file:
            file.flush()
            return np.memmap(file, np.int16, "r")
