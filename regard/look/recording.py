"""What a recording holds: weights by the name of the read that used them, call by call.

    recording["core.decoder.0.cross.read"][12]     weights (batch, [head,] query, key) of its 13th call that is kept
    recording.calls("core.decoder.0.cross.read")   which kernel ran, under which mask, at which size

It lies in memory or on the disk (regard.look.recording_file) and is read in the same way.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.look.part import Part, Tile
from regard.look.recording_file import Call, Folder, Heard, load, numbers_of


class Recording:
    """Weights by the name of the read that used them, call by call (in decoding, a call is a step).

    Stays readable after the recording has ended. `open` reads one from the disk, `save` writes one there.
    """

    def __init__(
        self, names: Iterable[str], *, part: Part, dtype: torch.dtype = torch.float32, folder: Folder | None = None
    ):
        self._reads = {name: Heard(calls=[], shapes=[]) for name in names}
        self._kept: dict[str, list[np.ndarray]] = {name: [] for name in self._reads}
        self._part, self._dtype, self._folder = part, dtype, folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """A recording that was written to this folder; nothing of its weights is loaded before it is looked at.

        Raises: UserError if it is not there, not whole, damaged, of another version, or no recording.
        """
        folder, reads, part = load(Path(path))
        recording = cls(reads, part=part, dtype=folder.dtype, folder=folder)
        recording._reads = reads
        return recording

    def save(self, path: str | Path) -> None:
        """Write what has been recorded so far to a new folder, which `open` reads.

        Raises: ValueError if the path exists, or its parent does not.
        """
        folder = Folder(Path(path), dtype=self._dtype, is_new=True)
        try:
            for number, (name, heard) in enumerate(self._reads.items()):
                for call, weights in zip(heard.calls, self[name] if heard.calls else (), strict=True):
                    whole = tuple(slice(0, size) for size in weights.shape)
                    folder.write(number, call, tuple(weights.shape), [Tile(whole, weights)])
            folder.finish(self._reads, self._part)
        except BaseException:
            folder.discard()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The reads that ran, in the order of the model's modules.

        Raises: ValueError if none did.
        """
        names = tuple(name for name, heard in self._reads.items() if heard.calls)
        ran = [name for name, heard in self._reads.items() if heard.ran]
        if not names and ran:
            raise ValueError(f"nothing was recorded: {some(ran)} ran, but not in one of the steps that were chosen")
        if not names:
            raise ValueError(
                f"nothing was recorded: none of {some(self._reads)} ran inside the recording "
                "(hooks do not see a function that torch.compile has compiled)"
            )
        return names

    @property
    def part(self) -> Part:
        """The rows, heads and queries that were kept of each call."""
        return self._part

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights that are kept."""
        return self._dtype

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Sequence[Float[Tensor, "... query key"]]:
        """The weights of each call of one read: (batch, [head,] query, key), on the CPU.

        From the disk a call is mapped when it is asked for, and a part of it loaded when it is looked at.
        Raises: KeyError if no read of this name is listened to, ValueError if it did not run.
        """
        heard, folder = self._heard(name), self._folder
        if folder is None:
            kept = self._kept[name]
            return _Calls(len(kept), lambda at: torch.from_numpy(kept[at]))
        read = list(self._reads).index(name)
        return _Calls(len(heard.calls), lambda at: folder.weights(read, heard.calls[at], heard.shapes[at]))

    def calls(self, name: str) -> tuple[Call, ...]:
        """What is known of each call that is kept: which kernel ran, under which mask; errors as for [name]."""
        return tuple(self._heard(name).calls)

    def steps(self, name: str) -> Float[Tensor, "... step key"]:
        """The calls of a step-by-step decoding as one tensor: (batch, [head,] step, key).

        A memory that grew in between has zero weights where it had no keys yet.
        Raises: ValueError if a call had several queries, or not the rows that the first one had.
        """
        shapes = self._heard(name).shapes
        leading = shapes[0][:-2]
        for number, shape in enumerate(shapes):
            if shape[-2] != 1:
                raise ValueError(f"a step has one query, but call {number} of {name!r} has {shape[-2]}")
            if shape[:-2] != leading:
                raise ValueError(
                    f"steps must have equal leading axes, but {name!r} has {leading} at first and "
                    f"{shape[:-2]} in call {number}"
                )
        num_keys = max(shape[-1] for shape in shapes)
        return torch.cat([nn.functional.pad(call, (0, num_keys - call.shape[-1])) for call in self[name]], -2)

    def __repr__(self) -> str:
        calls = ", ".join(f"{name}: {len(heard.calls)}" for name, heard in self._reads.items())
        return f"Recording(calls of each read: {calls})"

    def counts(self) -> dict[str, int]:
        """How often each read has run by now, kept or not."""
        return {name: heard.ran for name, heard in self._reads.items()}

    def _heard(self, name: str) -> Heard:
        if name not in self._reads:
            raise KeyError(f"no read {name!r} is recorded; {nearest(name, self._reads)}")
        heard = self._reads[name]
        if not heard.calls and heard.ran:
            raise ValueError(f"read {name!r} ran {heard.ran} times, but not in one of the steps that were chosen")
        if not heard.calls:
            raise ValueError(f"read {name!r} did not run inside the recording; {some(self.names)} did")
        return heard

    def keep(self, name: str, call: Call, tiles: Iterable[Tile]) -> None:
        """Count a call as run, and keep its weights, which come tile by tile."""
        self._reads[name].ran = call.number + 1
        self._keep(name, call, tiles)

    def _next(self, name: str) -> int:
        """Count a call of a read, and give its number."""
        self._reads[name].ran += 1
        return self._reads[name].ran - 1

    def _keep(self, name: str, call: Call, tiles: Iterable[Tile]) -> None:
        """Keep the weights of a call, which come tile by tile."""
        shape = self._part.shape(call.sizes)
        if self._folder is not None:
            self._folder.write(list(self._reads).index(name), call, shape, tiles)
        else:
            numbers = np.empty(shape, str(self._dtype).removeprefix("torch."))
            for place, weights in tiles:
                numbers[place] = numbers_of(weights, self._dtype)
            self._kept[name].append(numbers)  # no tensor: here it could be one of inference mode, or wrapped
        self._reads[name].calls.append(call)
        self._reads[name].shapes.append(shape)

    def _finish(self) -> None:
        if self._folder is not None:
            self._folder.finish(self._reads, self._part)

    def _discard(self) -> None:
        if self._folder is not None:
            self._folder.discard()


class _Calls(Sequence[Tensor]):
    """The weights of the calls of one read, each made a tensor when it is asked for."""

    def __init__(self, size: int, weights_of: Callable[[int], Tensor]):
        self._size, self._weights_of = size, weights_of

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        found = range(self._size)[index]  # raises IndexError
        return self._weights_of(found) if isinstance(found, int) else [self._weights_of(at) for at in found]


def nearest(name: str, names: Collection[str]) -> str:
    """What to say of a name that is none of the names."""
    return f"nearest are {some(difflib.get_close_matches(name, names, cutoff=0.0))}"


def some(names: Collection[str]) -> str:
    """The names, if they are few."""
    shown = ", ".join(list(names)[:8])
    return shown if len(names) <= 8 else f"{shown}, ... ({len(names)} in all)"
