"""Recording of attention weights with hooks on the reads of a model (regard.look.record)."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import reference, selection
from regard.attention.memory import WrittenMemory
from regard.attention.scores.base import InnerProduct
from regard.compat.torch import disable_compile, is_batched, is_compiled
from regard.layers.read import Read
from regard.layers.written import WrittenRead
from regard.look.arrays import MASKED, numbers_of, sizes_of
from regard.look.measures import GradientCall
from regard.look.recording import Call, Recording, list_names
from regard.look.vectors import VectorRecorder
from regard.trace import Trace

_MAX_TILE = 1 << 20
"""Largest number of pairs whose scores are computed at once."""


class NoReadsError(ValueError):
    """Error for a model without reads, which cannot be recorded."""


@contextmanager
def record_weights(
    model: nn.Module,
    *,
    only: Callable[[str], bool] | Collection[str] | None = None,
    dtype: torch.dtype = torch.float32,
    graph_calls: list[GradientCall] | None = None,
    trace: Trace | None = None,
    vectors: bool = False,
) -> Iterator[Recording]:
    """Record the weights of every call of every `Read` inside `model`, until the context ends.

    Of a `WrittenRead` they are implied, from the pairs that its memories keep meanwhile.

    A choice that draws (Gumbel) is recorded with the random numbers of the read. Under autocast the
    weights are computed in the dtypes of the model.

    only, dtype, vectors: as of regard.record. With vectors, projections are computed one by one,
                 which may change the last bit in training.
    graph_calls: list to which the calls that are part of an autograd graph are added, for
                 regard.look.measures.
    trace:       each call belongs to the segment and the step that are open in it (regard.trace).
    Raises:      ValueError if the model has no `Read`, is compiled, or has none of the names in
                 `only`, and at a call inside torch.func.vmap.
    """
    reads = _reads_of(model, only)
    recording = Recording({name: read.role for name, read in reads.items()})
    trace = Trace() if trace is None else trace
    recorder = VectorRecorder(model, reads, dtype=dtype, trace=trace) if vectors else None
    handles = [] if recorder is None else recorder.register_hooks()
    written = [x for x in reads.values() if isinstance(x, WrittenRead) and not x.keeps_writes]
    try:
        for read in written:
            read.keeps_writes = True
        for name, read in reads.items():
            if isinstance(read, WrittenRead):
                hook = _written_hook(name, recording.calls[name], dtype, graph_calls, trace)
                handles.append(read.register_forward_hook(hook))
                continue
            before, after = _read_hooks(
                name,
                recording.calls[name],
                dtype=dtype,
                recorder=recorder,
                graph_calls=graph_calls,
                trace=trace,
            )
            handles.append(read.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(read.register_forward_hook(after, with_kwargs=True))
        yield recording
    finally:
        for handle in handles:
            handle.remove()
        for read in written:
            read.keeps_writes = False


def _read_hooks(
    name: str,
    calls: list[Call],
    *,
    dtype: torch.dtype,
    recorder: VectorRecorder | None,
    graph_calls: list[GradientCall] | None,
    trace: Trace,
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the hooks before and after a read, the second of which appends its call."""
    # Random number generators before the call, and their states.
    states: list[tuple[torch.Generator, Tensor]] = []

    def keep_states(read: Read, args: tuple, kwargs: dict[str, Any]) -> None:
        if read.choice.is_random:
            query = kwargs["query"] if "query" in kwargs else args[0]
            generators = [torch.default_generator]
            if query.device.type != "cpu":
                module = torch.get_device_module(query.device)
                generators.append(module.default_generators[query.device.index])
            states[:] = [(generator, generator.get_state()) for generator in generators]

    def append_call(read: Read, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        segment, step = trace.position
        kind, autocast, context = output.device.type, None, nullcontext()
        if torch.is_autocast_enabled(kind):
            autocast = torch.get_autocast_dtype(kind)
            # Without the cache of autocast: the model would reuse parameters cast without gradient.
            context = torch.autocast(kind, dtype=autocast, cache_enabled=False)
        with context:
            whole = inputs = read.prepare_inputs(*args, **kwargs)
            if kwargs.get("registers") is not None:  # maps show the keys of the memory alone
                inputs = read.prepare_inputs(*args, **kwargs | {"registers": None})
            if is_batched(inputs.query) or is_batched(inputs.keys):
                raise ValueError("a read inside torch.func.vmap cannot be recorded")
            keys, first_key = inputs.positions.key_positions, 0
            if keys is not None and len(keys) and bool((keys.diff() == 1).all()):
                first_key = max(0, int(keys[0]))
            with torch.no_grad(), _random_states(states):
                weights, vectors = _weights_of(whole, dtype), None
                weights = weights[..., : inputs.keys.shape[-2]]
                if recorder is not None:
                    vectors = recorder.record(name, inputs, output)
            facts = {
                "kernel": selection.choose(read.kernel, inputs),
                "mask": None if inputs.mask is None else repr(inputs.mask),
                "bias": None if inputs.bias is None else " ".join(repr(inputs.bias).split()),
                "autocast": None if autocast is None else str(autocast).removeprefix("torch."),
            }
            call = Call(
                segment=segment,
                step=step,
                weights=weights,
                vectors=vectors,
                facts={fact: text for fact, text in facts.items() if text is not None},
                first_key=first_key,
            )
        calls.append(call)
        if graph_calls is not None and output.requires_grad:
            values = inputs.repeat_heads().values
            graph_calls.append(GradientCall(name, call, values, output))

    return disable_compile(keep_states), disable_compile(append_call)


def _written_hook(
    name: str, calls: list[Call], dtype: torch.dtype, graph_calls: list | None, trace: Trace
) -> Callable[..., None]:
    """Return the hook after a read of a memory that is written, which appends its call."""

    def append_call(_: WrittenRead, args: tuple, output: tuple[Tensor, WrittenMemory]) -> None:
        segment, step = trace.position
        out, memory = output
        with torch.no_grad():
            weights = memory.weights(args[0])
            size = weights.shape[-2:]
            later = torch.ones(size, dtype=torch.bool, device=out.device).triu(
                1 + size[1] - size[0]
            )
            weights = (weights + 0.0).masked_fill(later, MASKED)  # -0 becomes 0
        call = Call(
            segment=segment,
            step=step,
            weights=numbers_of(weights, dtype),
            facts={"memory": type(memory).__name__},
            state=numbers_of(memory.state, dtype),
        )
        calls.append(call)
        if graph_calls is not None and out.requires_grad:
            values = torch.cat([some.values for some in memory.writes or ()], -2)
            graph_calls.append(GradientCall(name, call, values, out))

    return disable_compile(append_call)


def _weights_of(inputs: AttentionInputs, dtype: torch.dtype) -> np.ndarray:
    """Return the weights of a read, those of masked pairs as MASKED."""
    sizes = sizes_of(inputs)
    numbers = np.empty(sizes, str(dtype).removeprefix("torch."))
    step = max(1, sizes[-2])  # of a random choice as the kernel draws: in one sequence
    if not inputs.choice.is_random:
        # Other scores than inner products have sums of all queries and keys.
        width = 1 if isinstance(inputs.form, InnerProduct) else inputs.query.shape[-1]
        step = max(1, _MAX_TILE // max(1, math.prod(sizes) // step * width))
    for first in range(0, sizes[-2], step):
        last = min(first + step, sizes[-2])
        tile = inputs if step >= sizes[-2] else inputs.tile(first, last)
        chosen, allowed = reference.choose_weights(tile)
        weights = chosen.to(inputs.query.dtype) + 0.0  # -0 becomes 0
        if allowed is not None:
            weights = weights.masked_fill(~allowed, MASKED)
        numbers[..., first:last, :] = numbers_of(weights, dtype)
    return numbers


@contextmanager
def _random_states(states: Sequence[tuple[torch.Generator, Tensor]]) -> Iterator[None]:
    """Set the states of random number generators, and restore the previous states at the end."""
    devices = [generator.device for generator, _ in states if generator.device.type != "cpu"]
    kind = devices[0].type if devices else "cuda"
    with torch.random.fork_rng(devices, enabled=bool(states), device_type=kind):
        for generator, state in states:
            generator.set_state(state)
        yield


def _reads_of(
    model: nn.Module, only: Callable[[str], bool] | Collection[str] | None
) -> dict[str, Read | WrittenRead]:
    reads = {}
    for name, module in model.named_modules():
        # Compiled code does not call hooks that are registered later.
        if is_compiled(module):
            raise ValueError(
                f"compiled modules cannot be recorded, but {name or 'the model'} is compiled"
            )
        if isinstance(module, Read | WrittenRead):
            reads[name] = module
    if not reads:
        raise NoReadsError(f"{type(model).__name__} has no Read: there is no attention to record")
    if only is None:
        return reads
    names = {only} if isinstance(only, str) else only
    is_selected = names if callable(names) else set(names).__contains__
    selected = {name: read for name, read in reads.items() if is_selected(name)}
    if not selected or (not callable(names) and set(names) - reads.keys()):
        raise ValueError(f"only must select some of {list_names(reads)}, got {only!r:.80}")
    return selected
