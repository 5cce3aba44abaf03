"""Decoding steps in fixed buffers, which a CUDA graph replays without launches from Python.

Buffers have more rows, keys and source items than a state, so that few sizes serve all batches. The
first step runs in the model's own state. A state moves to other buffers when it outgrows them, or
when half of their rows have ended. Speed on a GPU is not measured yet.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks import FilledSlots, Padding
from regard.attention.memory import KeyValueCache, Memory, StaticMemory
from regard.compat.torch import has_no_hooks
from regard.models.cores.transformer import TransformerState
from regard.models.model import Model, ModelState
from regard.models.writers.tokens import TokenWriter

_MAX_KEPT = 8
"""Number of sizes whose buffers are kept."""
Sizes = tuple[int, int, int]
"""Rows, keys of each row, and source items (0: no source)."""


class CapturedStep:
    """Function of fixed buffers. On a GPU, its second call is captured, and replayed from then on.

    The first call warms up what a capture cannot initialize. Each call overwrites the last output.
    """

    def __init__(self, function: Callable[[], Tensor], device: torch.device):
        self._function, self._captures, self._is_warm = function, device.type == "cuda", False
        self._graph: Any = None

    def __call__(self) -> Tensor:
        if not (self._captures and self._is_warm):
            self._is_warm = True
            return self._function()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = self._function()
        self._graph.replay()
        return self._output


class StepBuffers:
    """Buffers that begin with a copy of a state, and the step in them."""

    def __init__(self, model: Any, state: TransformerState, sizes: Sizes, *, has_beams: bool):
        self.sizes, self.has_beams, self._model, self._like = sizes, has_beams, model, state
        self._length, *self._tensors = _pad(state, sizes)
        device, positions = self._length.device, model.core.positions
        self.all_rows = torch.arange(sizes[0], device=device)
        self.tokens, self.parents = torch.zeros_like(self.all_rows), self.all_rows.clone()
        self._added = positions.matrix(sizes[1]).clone().to(device) if positions.adds else None
        self.run = CapturedStep(self._run, device)

    def enter(self, state: TransformerState) -> None:
        """Copy another state of the same sizes into the buffers."""
        buffers = self._length, *self._tensors
        for buffer, tensor in zip(buffers, _pad(state, self.sizes), strict=True):
            buffer.copy_(tensor)
        self.parents.copy_(self.all_rows)
        if self._added is not None:
            self._added.copy_(self._model.core.positions.matrix(self.sizes[1]))

    def leave(self, rows: Tensor, position: int) -> ModelState:
        """Return a copy of these rows as a state of the model after `position` targets."""
        tensors = [buffer.index_select(0, rows) for buffer in self._tensors]
        return ModelState(self._state(tensors, position), position)

    def _run(self) -> Tensor:
        if self.has_beams:
            for buffer in self._tensors[1 : 1 + 2 * len(self._like.pasts)]:
                buffer.copy_(buffer.index_select(0, self.parents))
            self.parents.copy_(self.all_rows)
        logits, _ = self._model.step(self.tokens, ModelState(self._state(self._tensors)))
        self._length.add_(1)
        return logits

    def _state(self, tensors: list[Tensor], position: int | None = None) -> TransformerState:
        """Return the state in these tensors; position: its own number of targets, None: any."""
        lengths, *tensors = tensors
        pairs = iter(zip(tensors[::2], tensors[1::2], strict=True))
        pasts: list[Any] = []
        for memory in _memories(self._like.pasts):
            keys, values = (tensor[:, :, :position] for tensor in next(pairs))
            past: Any = Memory(keys, values, mapped_by=memory.mapped_by)
            if position is None:
                past = StaticMemory(keys, values, self._length, FilledSlots(), memory.mapped_by)
            pasts.append(past)
        mask, sources = Padding(lengths), list(self._like.sources)
        for layer, memory in enumerate(sources):
            if memory is not None:
                sources[layer] = Memory(*next(pairs), mask, memory.mapped_by)
        added = None
        if position is None and self._added is not None:
            added = self._added.index_select(0, self._length.view(1))
        return TransformerState(tuple(sources), tuple(pasts), position or 0, added)


@dataclass(frozen=True, eq=False)
class BufferedState:
    """State in buffers after `position` targets, which the next step overwrites."""

    buffers: StepBuffers
    position: int
    rows: Tensor
    """Row of the buffers for each row of the state."""

    def select(self, index: Tensor) -> "BufferedState | ModelState":
        if self.buffers.has_beams or 2 * len(index) <= self.buffers.sizes[0]:
            return self.buffers.leave(self.rows[index], self.position)
        return replace(self, rows=self.rows[index])  # rows that ended stay in the buffers

    def reorder(self, index: Tensor) -> "BufferedState":
        """Reorder the rows before the next step; only with beams."""
        self.buffers.parents.index_copy_(0, self.rows, self.rows[index])
        return self


class BufferedStepper:
    """Stepper of a model whose steps run in buffers (`steps_in_buffers`), for one search at a time.

    has_beams: True for beam search, False for greedy search.
    """

    def __init__(self, model: Model, *, has_beams: bool):
        self._has_beams, self._weights = has_beams, [0]
        self._model: Any = model
        self._kept: dict[Sizes, StepBuffers] = {}

    def start(self, source: Any) -> ModelState:
        weights = [weight.data_ptr() for weight in self._model.parameters()]
        if weights != self._weights:  # a graph holds the addresses
            self._weights, self._kept = weights, {}
        return self._model.start(source)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        if isinstance(state, BufferedState) and state.position == state.buffers.sizes[1]:
            rows = state.buffers.parents.index_select(0, state.rows)  # of the last `reorder`
            state = state.buffers.leave(rows, state.position)
        if isinstance(state, ModelState):
            limit = self._model.core.positions.max_length
            if state.position in (0, limit):
                return self._model.step(tokens, state)
            state = self._enter(state, len(tokens), limit)
        buffers, rows = state.buffers, state.rows
        buffers.tokens.index_copy_(0, rows, tokens)
        logits = buffers.run().index_select(0, rows)
        return logits, replace(state, position=state.position + 1)

    def _enter(self, state: ModelState, rows: int, limit: int | None) -> BufferedState:
        core: Any = state.core
        slots, source = 32, core.sources[0]
        while slots <= state.position:
            slots *= 2
        slots = slots if limit is None else min(slots, limit)
        sizes = _round_up(rows), slots, 0 if source is None else _round_up(max(16, source.size))
        buffers = self._kept.pop(sizes, None)
        if buffers is None:
            buffers = StepBuffers(self._model, core, sizes, has_beams=self._has_beams)
        else:
            buffers.enter(core)
        self._kept[sizes] = buffers  # the last used is the last
        if len(self._kept) > _MAX_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return BufferedState(buffers, state.position, buffers.all_rows[:rows])


def steps_in_buffers(model: Model) -> bool:
    """Return True if the steps of a model run in buffers: see `Core.steps_in_buffers`."""
    writer = model.writer
    is_plain = type(writer) is TokenWriter and writer.positions is None and has_no_hooks(writer)
    return is_plain and not model.training and model.core.steps_in_buffers()


def _pad(state: TransformerState, sizes: Sizes) -> list[Tensor]:
    """Return position, source lengths, and keys and values of a state, padded to these sizes."""
    memories = _memories((*state.pasts, *state.sources))
    last = memories[-1]
    device, more = last.keys.device, sizes[0] - len(last.keys)
    lengths = torch.full((len(last.keys),), last.size, device=device)
    if isinstance(last.mask, Padding):
        lengths = last.mask.lengths
    tensors = [torch.full((), state.position, device=device), pad(lengths, (0, more), value=1)]
    for number, memory in enumerate(memories):
        longer = sizes[1 if number < len(state.pasts) else 2] - memory.size
        for tensor in (memory.keys, memory.values):
            tensors.append(pad(tensor, (0, 0, 0, longer, 0, 0, 0, more)))
    return tensors


def _memories(parts: tuple[KeyValueCache | None, ...]) -> list[KeyValueCache]:
    return [part for part in parts if part is not None]


def _round_up(number: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if power > 2 and number <= power * 3 // 4 else power
