"""Recording of attention weights with hooks on the reads of a model.

    with record_weights(model) as maps:
        model.loss(batch)
    maps.names                             ('core.encoder.0.read', ..., 'core.decoder.0.cross.read')
    maps["core.decoder.0.cross.read"]      the weights of each call, in the order of the calls

Every read of every model is a `Read`. A forward hook computes its weights with the reference
formula from the same queries and keys: they are those of its score, choice, mask and bias whichever
kernel ran, and the output is unchanged. Rows, heads, queries and calls that are not recorded are
not computed; the others are computed tile by tile (regard.look.tiles), and kept in memory or
written to disk (regard.look.recording_file).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import selection
from regard.attention.positions import Positions
from regard.compat.torch import disable_compile, is_batched, is_compiled
from regard.layers.read import Read
from regard.look.measures import GradientCall
from regard.look.recording import Recording, list_names, nearest_names
from regard.look.recording_file import DTYPES, Call, Folder
from regard.look.slicing import sizes_of
from regard.look.tiles import Part, tiles
from regard.look.vectors import Vectors
from regard.trace import Trace

TILE_BYTES = 8 << 20
"""Default size of the largest tensor that recording allocates: about the size of a processor's
cache."""


class NoReadsError(ValueError):
    """Error for a model without reads, which cannot be recorded."""


@contextmanager
def record_weights(
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
    graph_calls: list[GradientCall] | None = None,
    trace: Trace | None = None,
    vectors: bool = False,
) -> Iterator[Recording]:
    """Record the weights of every call of every `Read` inside `model`, until the context ends.

    Recording changes no output and uses no random numbers; a choice that draws (Gumbel) is recorded
    with the random numbers of the read. Under autocast the weights are computed in the dtypes of
    the model. Each recorded call costs one more evaluation of the formula, and a few times
    tile_bytes of memory besides the recorded weights. The hooks are removed when the context ends.

    only:        reads to record: names, or a predicate of a name; None is all.
    rows:        rows of each call's batch to record; None is all. (Beam search permutes rows.)
    heads:       heads to record; None is all. Reads without heads must then be excluded by `only`.
    queries:     indices of the queries of each call to record; None is all.
    steps:       indices of the calls of each read to record: [0, 5], range(0, 1000, 10); None is
    all.
    to:          new folder to write the weights to, for Recording.open(to). It is created when the
                 context ends, and not if it ends with an exception.
    dtype:       float32, float64, or float16: half the size, with a relative error of at most 2^-11
                 (weights below 2^-14: an error of at most 2^-25).
    tile_bytes:  largest size of a tensor that recording allocates; a choice that draws uses the
    tiles of its kernel.
    graph_calls: list to which the calls that are part of an autograd graph are added, for
    regard.look.measures.
    trace:       each call is filed under the segment and the step that are open when it is made
    (regard.trace).
    vectors:     record the items, queries, keys, values, scores and outputs of each call too
                 (regard.look.vectors), in memory. Projections are then computed one by one, which
                 may change the last bit in training.
    Raises:      ValueError if the model has no `Read`, is compiled, or has none of the names in
                 `only`, or if `to` exists; at a call that does not have the rows, heads or queries,
                 or runs inside torch.func.vmap. TypeError for indices that are not integers.
    """
    reads = _select(_reads_of(model), only)
    part = Part(rows=rows, heads=heads, queries=queries)
    _check(steps, dtype, tile_bytes)
    folder = None if to is None else Folder(Path(to), dtype=dtype, is_new=True)
    recording = Recording(
        {name: read.role for name, read in reads.items()}, part=part, dtype=dtype, folder=folder
    )
    if vectors:
        recording.vectors = Vectors(model, reads, dtype=dtype, trace=trace)
    settings = {
        "steps": steps,
        "tile_bytes": tile_bytes,
        "graph_calls": graph_calls,
        "trace": trace,
    }
    handles = []
    try:
        if recording.vectors is not None:
            handles += recording.vectors.register_hooks()
        for name, read in reads.items():
            hooks = _ReadHooks(name, recording, **settings)
            handles.append(
                read.register_forward_pre_hook(disable_compile(hooks.pre_hook), with_kwargs=True)
            )
            handles.append(
                read.register_forward_hook(disable_compile(hooks.post_hook), with_kwargs=True)
            )
        yield recording
        recording._finish()
    except BaseException:
        recording._discard()
        raise
    finally:
        for handle in handles:
            handle.remove()


class _ReadHooks:
    """Forward hooks of one read: the pre-hook saves the random number generators, the hook records
    the weights."""

    def __init__(
        self,
        name: str,
        recording: Recording,
        *,
        steps: Collection[int] | None,
        tile_bytes: int,
        graph_calls: list[GradientCall] | None,
        trace: Trace | None,
    ):
        self._name, self._recording, self._steps, self._tile_bytes = (
            name,
            recording,
            steps,
            tile_bytes,
        )
        self._graph_calls, self._trace = graph_calls, trace
        self._states: dict[torch.device, Tensor] = {}

    def pre_hook(self, read: Read, args: tuple, kwargs: dict[str, Any]) -> None:
        self._states = {}
        if read.choice.is_random:
            query = kwargs["query"] if "query" in kwargs else args[0]
            self._states = {
                device: _generator_state(device) for device in {torch.device("cpu"), query.device}
            }

    def post_hook(self, read: Read, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        number = self._recording._next(self._name)
        if self._steps is not None and number not in self._steps:
            return
        segment, step = (0, None) if self._trace is None else self._trace.position
        device = output.device
        with _same_autocast(device):
            inputs = read.prepare_inputs(*args, **kwargs)
            _refuse_mapped(inputs)
            call = Call(
                number=number,
                segment=segment,
                step=step,
                sizes=sizes_of(inputs),
                kernel=selection.choose(read.kernel, inputs),
                mask=None if inputs.mask is None else repr(inputs.mask),
                bias=None if inputs.bias is None else " ".join(repr(inputs.bias).split()),
                autocast=_name_of(torch.get_autocast_dtype(device.type))
                if _is_mixed(device)
                else None,
                first_key=_first_key(inputs.positions),
            )
            with torch.no_grad(), _random_states(self._states):
                part, size = self._recording.part, self._tile_bytes
                weights = tiles(inputs, part, tile_bytes=size, drawn_by=call.kernel)
                self._recording._keep(self._name, call, weights)
                if self._recording.vectors is not None:
                    self._recording.vectors.keep(self._name, inputs, output)
        if self._graph_calls is not None and output.requires_grad:
            index = len(self._recording.calls(self._name)) - 1
            self._graph_calls.append(
                GradientCall(self._name, index, inputs.repeat_heads().values, output)
            )


def _first_key(positions: Positions) -> int:
    """Return the position of the first key, if keys are at consecutive positions; else 0."""
    keys = positions.key_positions
    if keys is None or not len(keys) or bool((keys.diff() != 1).any()):
        return 0
    return max(0, int(keys[0]))


def _is_mixed(device: torch.device) -> bool:
    return torch.is_autocast_enabled(device.type)


@contextmanager
def _same_autocast(device: torch.device) -> Iterator[None]:
    """Keep autocast but disable its cache: the model would reuse parameters that were cast without
    gradient."""
    if not _is_mixed(device):
        yield
        return
    with torch.autocast(
        device.type, dtype=torch.get_autocast_dtype(device.type), cache_enabled=False
    ):
        yield


@contextmanager
def _random_states(states: dict[torch.device, Tensor]) -> Iterator[None]:
    """Set the states of random number generators, and restore the previous states at the end."""
    saved = {device: _generator_state(device) for device in states}
    try:
        for device, state in states.items():
            _set_generator_state(device, state)
        yield
    finally:
        for device, state in saved.items():
            _set_generator_state(device, state)


def _generator_state(device: torch.device) -> Tensor:
    return (
        torch.get_rng_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
    )


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _refuse_mapped(inputs: AttentionInputs) -> None:
    tensors = inputs.query, inputs.keys
    if any(is_batched(tensor) for tensor in tensors):
        raise ValueError(
            "a read inside torch.func.vmap cannot be recorded: it runs on single items without "
            "rows; record a call on "
            "the batch instead"
        )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(steps: Collection[int] | None, dtype: torch.dtype, tile_bytes: int) -> None:
    if steps is not None:
        _check_steps(steps)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    if isinstance(tile_bytes, bool) or not isinstance(tile_bytes, int) or tile_bytes < 1:
        raise ValueError(f"tile_bytes must be a positive integer, got {tile_bytes!r}")


def _check_steps(steps: Collection[int]) -> None:
    if isinstance(steps, str) or not isinstance(steps, Collection):
        raise TypeError(
            f"steps must be a collection of integers, such as range(0, 100, 10), got {steps!r}"
        )
    if not steps:
        raise ValueError("steps must not be empty; use None for all calls")
    for step in (steps[0], steps[-1]) if isinstance(steps, range) else steps:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"steps must be nonnegative integers, got {step!r}")


def _reads_of(model: nn.Module) -> dict[str, Read]:
    for name, module in model.named_modules():
        # Compiled code does not call hooks that were registered later: the recording would be
        # incomplete.
        if is_compiled(module):
            raise ValueError(
                f"compiled modules cannot be recorded, but {name or 'the model'} is compiled"
            )
    reads = {name: module for name, module in model.named_modules() if isinstance(module, Read)}
    if not reads:
        raise NoReadsError(f"{type(model).__name__} has no Read: there is no attention to record")
    return reads


def _select(
    reads: dict[str, Read], only: Callable[[str], bool] | Collection[str] | None
) -> dict[str, Read]:
    if only is None:
        return reads
    if callable(only):
        chosen = {name: read for name, read in reads.items() if only(name)}
        if not chosen:
            raise ValueError(f"only must select at least one of {list_names(reads)}")
        return chosen
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in reads:
            raise ValueError(
                f"only must contain names of reads, got {name!r}; {nearest_names(name, reads)}"
            )
    if not names:
        raise ValueError("only must not be empty; use None for all reads")
    return {name: read for name, read in reads.items() if name in names}
