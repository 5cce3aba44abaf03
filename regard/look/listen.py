"""Listen to the reads of a model while it runs, and keep their weights; the model does not know.

    with listen(model) as maps:
        model.loss(batch)
    maps.names                             ('core.encoder.0.read', ..., 'core.decoder.0.cross.read')
    maps["core.decoder.0.cross.read"]      the weights of each call, in the order of the calls

Every read of every model is a `Read`: a hook behind each computes the weights by the formula, from the queries and
keys that the read was given, so they are those of its score, choice, mask and bias whichever kernel ran, and the
output is not touched. Rows, heads, queries and calls that nobody keeps are not computed; the others are computed a
tile at a time (regard.look.part), and kept in memory or written to the disk (regard.look.recording_file).
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.kernels import table
from regard.attention.kernels.problem import Problem
from regard.layers.read import Read
from regard.look.cut import sizes_of
from regard.look.gradients import Taken
from regard.look.part import Part, tiles
from regard.look.recording import Recording, nearest, some
from regard.look.recording_file import DTYPES, Call, Folder

TILE_BYTES = 8 << 20
"""The largest tensor of a recording's own, unless told: about what stays in a processor's cache."""


class NoReadsError(ValueError):
    """A model that does not attend was to be recorded."""


@contextmanager
def listen(
    model: nn.Module,
    *,
    only: Callable[[str], bool] | Collection[str] | None = None,
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    steps: Collection[int] | None = None,
    to: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    tile_bytes: int = TILE_BYTES,
    taken: list[Taken] | None = None,
) -> Iterator[Recording]:
    """Keep the weights of every call of every `Read` inside `model`, until the context ends.

    Recording changes no output and draws no random number; a choice that draws (Gumbel) is recorded with the draw
    that the read used. Under autocast the weights are computed as the model computes them, in the same dtypes. It
    costs the formula of each recorded call once more, and a few times tile_bytes beside what is kept; outside the
    context nothing is left on the model.

    only:        the reads to record: names, or a function that is given each name and answers; None is all.
    rows:        the rows of each call's batch to keep; None is all. (Decoding by beams permutes rows.)
    heads:       the heads to keep; None is all. Reads without heads must then be left out by `only`.
    queries:     the queries to keep, by their numbers in the call; None is all.
    steps:       the calls of each read to keep, by their numbers: [0, 5], range(0, 1000, 10); None is all.
    to:          a folder that does not exist yet: weights are written there, and Recording.open(to) reads them
                 later. It appears when the context ends; if it ends by an exception, there is none.
    dtype:       float32, float64, or float16: half the size, rounded by at most 2^-11 of a weight (weights below 2^-14:
                 by 2^-25).
    tile_bytes:  bound on each tensor that recording makes; a choice that draws takes the tiles of its kernel.
    taken:       gets the calls that are part of a graph, for regard.look.gradients.
    Raises:      ValueError if the model has no `Read`, is compiled, or has none of the names in `only`, or if `to`
                 exists; at a call that does not have the rows, heads or queries, or runs inside torch.func.vmap.
                 TypeError for numbers that are none.
    """
    reads = _choose(_reads(model), only)
    part = Part(rows=rows, heads=heads, queries=queries)
    _check(steps, dtype, tile_bytes)
    folder = None if to is None else Folder(Path(to), dtype=dtype, is_new=True)
    recording = Recording(reads, part=part, dtype=dtype, folder=folder)
    handles = []
    try:
        for name, read in reads.items():
            listener = _Listener(name, recording, steps, tile_bytes, taken)
            handles.append(read.register_forward_pre_hook(_untraced(listener.before), with_kwargs=True))
            handles.append(read.register_forward_hook(_untraced(listener.after), with_kwargs=True))
        yield recording
        recording._finish()
    except BaseException:
        recording._discard()
        raise
    finally:
        for handle in handles:
            handle.remove()


class _Listener:
    """Hears one read: before a call, for the random numbers that it will draw, and behind it, for the weights."""

    def __init__(
        self,
        name: str,
        recording: Recording,
        steps: Collection[int] | None,
        tile_bytes: int,
        taken: list[Taken] | None = None,
    ):
        self._name, self._recording, self._steps, self._tile_bytes = name, recording, steps, tile_bytes
        self._taken = taken
        self._states: dict[torch.device, Tensor] = {}

    def before(self, read: Read, args: tuple, kwargs: dict[str, Any]) -> None:
        self._states = {}
        if read.choose.draws:
            query = kwargs["query"] if "query" in kwargs else args[0]
            self._states = {device: _generator_state(device) for device in {torch.device("cpu"), query.device}}

    def after(self, read: Read, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        number = self._recording._next(self._name)
        if self._steps is not None and number not in self._steps:
            return
        device = output.device
        with _same_autocast(device):
            problem = read.pose(*args, **kwargs)
            _refuse_mapped(problem)
            call = Call(
                number=number,
                sizes=sizes_of(problem),
                kernel=table.choose(read.kernel, problem),
                mask=None if problem.mask is None else repr(problem.mask),
                bias=None if problem.bias is None else " ".join(repr(problem.bias).split()),
                autocast=_name_of(torch.get_autocast_dtype(device.type)) if _is_mixed(device) else None,
            )
            with torch.no_grad(), _drawn_from(self._states):
                part, size = self._recording.part, self._tile_bytes
                weights = tiles(problem, part, tile_bytes=size, drawn_by=call.kernel)
                self._recording._keep(self._name, call, weights)
        if self._taken is not None and output.requires_grad:
            index = len(self._recording.calls(self._name)) - 1
            self._taken.append(Taken(self._name, index, problem.ungrouped().values, output))


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, kept out of what is compiled while it is there; asking for that loads the compiler, if nobody has."""
    return torch.compiler.disable(hook) if "torch._dynamo" in sys.modules else hook


def _is_mixed(device: torch.device) -> bool:
    return torch.is_autocast_enabled(device.type)


@contextmanager
def _same_autocast(device: torch.device) -> Iterator[None]:
    """Autocast as it is, but that it remembers nothing: a weight cast without gradient would be the model's next."""
    if not _is_mixed(device):
        yield
        return
    with torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), cache_enabled=False):
        yield


@contextmanager
def _drawn_from(states: dict[torch.device, Tensor]) -> Iterator[None]:
    """Random numbers as from these states of the generators, which are then put back as they were."""
    before = {device: _generator_state(device) for device in states}
    try:
        for device, state in states.items():
            _set_generator_state(device, state)
        yield
    finally:
        for device, state in before.items():
            _set_generator_state(device, state)


def _generator_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _refuse_mapped(problem: Problem) -> None:
    tensors = problem.query, problem.keys
    if any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors):
        raise ValueError(
            "a read inside torch.func.vmap cannot be recorded: it sees one item at a time of a batch that has no "
            "rows; record a call on the batch instead"
        )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(steps: Collection[int] | None, dtype: torch.dtype, tile_bytes: int) -> None:
    if steps is not None:
        _check_steps(steps)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, but is {dtype}")
    if isinstance(tile_bytes, bool) or not isinstance(tile_bytes, int) or tile_bytes < 1:
        raise ValueError(f"tile_bytes must be a number of bytes, at least 1, but is {tile_bytes!r}")


def _check_steps(steps: Collection[int]) -> None:
    if isinstance(steps, str) or not isinstance(steps, Collection):
        raise TypeError(f"steps must be numbers of calls, such as range(0, 100, 10), but is {steps!r}")
    if not steps:
        raise ValueError("steps must name at least one call, but are empty; None is all of them")
    for step in (steps[0], steps[-1]) if isinstance(steps, range) else steps:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"steps must be numbers of calls, from 0 on, but one is {step!r}")


def _reads(model: nn.Module) -> dict[str, Read]:
    for name, module in model.named_modules():
        # Compiled code calls no hook that came after it: the recording would be empty, or have holes.
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ValueError(f"a compiled module cannot be recorded, but {name or 'the model'} is one")
    reads = {name: module for name, module in model.named_modules() if isinstance(module, Read)}
    if not reads:
        raise NoReadsError(f"{type(model).__name__} has no Read: it does not attend, nothing can be recorded")
    return reads


def _choose(reads: dict[str, Read], only: Callable[[str], bool] | Collection[str] | None) -> dict[str, Read]:
    if only is None:
        return reads
    if callable(only):
        chosen = {name: read for name, read in reads.items() if only(name)}
        if not chosen:
            raise ValueError(f"only must choose a read, but refuses all of {some(reads)}")
        return chosen
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in reads:
            raise ValueError(f"only must name reads, but {name!r} is none; {nearest(name, reads)}")
    if not names:
        raise ValueError("only must name at least one read, but is empty")
    return {name: read for name, read in reads.items() if name in names}
