"""Recordings: attention weights by the name of the read, call by call.

    recording["core.decoder.0.cross.read"][12]     weights (batch, [head,] query, key) of its 13th
    recorded call recording.calls("core.decoder.0.cross.read")   kernel, mask and sizes of each call

A recording in memory and one on disk (regard.look.recording_file) have the same interface.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.read import Role
from regard.look.recording_file import Call, Folder, ReadRecord, load, numbers_of
from regard.look.tiles import Part, Tile
from regard.look.vectors import Vectors


class Recording:
    """Attention weights by the name of the read, call by call (in decoding, a call is a step).

    `save` writes a recording to disk, `open` opens one.
    """

    def __init__(
        self,
        roles: Mapping[str, Role | None],
        *,
        part: Part,
        dtype: torch.dtype = torch.float32,
        folder: Folder | None = None,
    ):
        """roles: of each read, by its name."""
        self._reads = {
            name: ReadRecord(role=role, calls=[], shapes=[]) for name, role in roles.items()
        }
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in self._reads}
        self._part, self._dtype, self._folder = part, dtype, folder
        self.vectors: Vectors | None = None
        """Vectors of the calls in memory, if they are recorded."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the recording in a folder; weights are loaded on access.

        Raises: UserError if the folder does not exist, or is not a complete and valid recording of
                this version.
        """
        folder, reads, part = load(Path(path))
        recording = cls({}, part=part, dtype=folder.dtype, folder=folder)
        recording._reads = reads
        return recording

    def save(self, path: str | Path) -> None:
        """Write the calls recorded so far to a new folder.

        Raises: ValueError if the path exists, or its parent does not.
        """
        folder = Folder(Path(path), dtype=self._dtype, is_new=True)
        try:
            for number, (name, read_record) in enumerate(self._reads.items()):
                for call, weights in zip(
                    read_record.calls, self[name] if read_record.calls else (), strict=True
                ):
                    whole = tuple(slice(0, size) for size in weights.shape)
                    folder.write(number, call, tuple(weights.shape), [Tile(whole, weights)])
            folder.finish(self._reads, self._part)
        except BaseException:
            folder.discard()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the reads that ran, in the order of the model's modules. Raises ValueError if
        none did."""
        names = tuple(name for name, read_record in self._reads.items() if read_record.calls)
        ran = [name for name, read_record in self._reads.items() if read_record.num_calls]
        if not names and ran:
            raise ValueError(
                f"nothing was recorded: {list_names(ran)} ran, but not in a selected step"
            )
        if not names:
            raise ValueError(
                f"nothing was recorded: none of {list_names(self._reads)} ran inside the recording "
                "(hooks do not see a function that torch.compile has compiled)"
            )
        return names

    @property
    def part(self) -> Part:
        """Recorded rows, heads and queries of each call."""
        return self._part

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the recorded weights."""
        return self._dtype

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Sequence[Float[Tensor, "... query key"]]:
        """Return the weights of each call of one read: (batch, [head,] query, key), on the CPU.

        A call on disk is mapped into memory, and its pages are loaded on access.
        Raises: KeyError if there is no recorded read of this name, ValueError if it did not run.
        """
        read_record, folder = self._read_record(name), self._folder
        if folder is None:
            arrays = self._arrays[name]
            return _LazyWeights(len(arrays), lambda index: torch.from_numpy(arrays[index]))
        read = list(self._reads).index(name)
        return _LazyWeights(
            len(read_record.calls),
            lambda index: folder.weights(read, read_record.calls[index], read_record.shapes[index]),
        )

    def calls(self, name: str) -> tuple[Call, ...]:
        """Return the recorded calls of a read with their kernel, mask and sizes. Raises as
        `recording[name]`."""
        return tuple(self._read_record(name).calls)

    def role(self, name: str) -> Role | None:
        """Return the role of a read in its model, None if it is unknown. Raises KeyError as
        `recording[name]`."""
        return self._read_record(name).role

    def steps(self, name: str) -> Float[Tensor, "... step key"]:
        """Return the calls of step-by-step decoding as one tensor: (batch, [head,] step, key).

        Keys that were added to the memory after a step have weight zero in it.
        Raises: ValueError if a call has several queries, or other leading axes than the first one.
        """
        shapes = self._read_record(name).shapes
        leading = shapes[0][:-2]
        for number, shape in enumerate(shapes):
            if shape[-2] != 1:
                raise ValueError(
                    f"steps must have one query, but call {number} of {name!r} has {shape[-2]}"
                )
            if shape[:-2] != leading:
                raise ValueError(
                    f"steps must have equal leading axes, but {name!r} has {leading} in call 0 and "
                    f"{shape[:-2]} in call {number}"
                )
        num_keys = max(shape[-1] for shape in shapes)
        return torch.cat(
            [nn.functional.pad(call, (0, num_keys - call.shape[-1])) for call in self[name]], -2
        )

    def __repr__(self) -> str:
        calls = ", ".join(
            f"{name}: {len(read_record.calls)}" for name, read_record in self._reads.items()
        )
        return f"Recording(calls of each read: {calls})"

    def counts(self) -> dict[str, int]:
        """Return the number of calls of each read so far, recorded or not."""
        return {name: read_record.num_calls for name, read_record in self._reads.items()}

    def _read_record(self, name: str) -> ReadRecord:
        if name not in self._reads:
            raise KeyError(f"no read {name!r} is recorded; {nearest_names(name, self._reads)}")
        read_record = self._reads[name]
        if not read_record.calls and read_record.num_calls:
            raise ValueError(
                f"read {name!r} ran {read_record.num_calls} times, but not in a selected step"
            )
        if not read_record.calls:
            raise ValueError(
                f"read {name!r} did not run inside the recording; {list_names(self.names)} did"
            )
        return read_record

    def keep(self, name: str, call: Call, tiles: Iterable[Tile]) -> None:
        """Count a call, and record its weights from tiles."""
        self._reads[name].num_calls = call.number + 1
        self._keep(name, call, tiles)

    def _next(self, name: str) -> int:
        """Count a call of a read, and return its number."""
        self._reads[name].num_calls += 1
        return self._reads[name].num_calls - 1

    def _keep(self, name: str, call: Call, tiles: Iterable[Tile]) -> None:
        """Record the weights of a call from tiles."""
        shape = self._part.shape(call.sizes)
        if self._folder is not None:
            self._folder.write(list(self._reads).index(name), call, shape, tiles)
        else:
            numbers = np.empty(shape, str(self._dtype).removeprefix("torch."))
            for position, weights in tiles:
                numbers[position] = numbers_of(weights, self._dtype)
            self._arrays[name].append(
                numbers
            )  # not a tensor: it could be an inference tensor, or a wrapped one
        self._reads[name].calls.append(call)
        self._reads[name].shapes.append(shape)

    def _finish(self) -> None:
        if self._folder is not None:
            self._folder.finish(self._reads, self._part)

    def _discard(self) -> None:
        if self._folder is not None:
            self._folder.discard()


class _LazyWeights(Sequence[Tensor]):
    """Weights of the calls of one read, each loaded on access."""

    def __init__(self, size: int, weights_of: Callable[[int], Tensor]):
        self._size, self._weights_of = size, weights_of

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        indices = range(self._size)[index]  # raises IndexError
        return (
            self._weights_of(indices)
            if isinstance(indices, int)
            else [self._weights_of(i) for i in indices]
        )


def nearest_names(name: str, names: Collection[str]) -> str:
    """Return a hint with the names closest to an unknown name."""
    return f"nearest are {list_names(difflib.get_close_matches(name, names, cutoff=0.0))}"


def list_names(names: Collection[str]) -> str:
    """Return the names, at most eight, as one string."""
    first = ", ".join(list(names)[:8])
    return first if len(names) <= 8 else f"{first}, ... ({len(names)} in total)"
