"""Decoding steps in fixed buffers, which a CUDA graph replays without launches from Python.

Buffers have more rows, keys and source items than a state, so that few sizes serve all batches. The
first step, or the prompt of a language model, runs in the model's own state. A state moves to other
buffers when it outgrows them, or when half of their rows have ended. Captured steps have not run on
a GPU yet.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.choices import Sigmoid, SinkSoft
from regard.attention.masks import Padding
from regard.attention.memory import Memory, StaticMemory
from regard.attention.scores import Cosine, General
from regard.compat.torch import has_no_hooks
from regard.engines.lowering import KNOWN
from regard.layers.feedforward import DenseLayer
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.layers.written import WrittenAttention
from regard.models.cores.transformer import Transformer, TransformerState
from regard.models.model import Model, ModelState

_CAPTURE = Lock()


class StepBuffers:
    """Buffers with this number of rows, keys and source items, and the step in them."""

    def __init__(self, model: Any, *sizes: int, has_beams: bool):
        self.sizes, self.has_beams, self._model, self._is_warm = sizes, has_beams, model, False
        weight, positions = next(model.core.decoder.parameters()), model.core.target_positions
        self.position, self.tensors = torch.tensor(0, device=weight.device), []
        self.all_rows = torch.arange(sizes[0], device=weight.device)
        self.tokens, self.parents = torch.zeros_like(self.all_rows), self.all_rows.clone()
        # Learned vectors are those of the model, not a copy.
        self._added = positions.matrix(sizes[1]).to(weight) if positions.adds else None
        self._angles = None
        if positions.rotates:
            self._angles = positions.angles(weight.new_empty(sizes[1], positions.dim))
        self._is_captured = weight.is_cuda
        self._graph: Any = None
        self._logits: Any = None

    def enter(self, tensors: list[Tensor], position: int) -> "BufferedState":
        """Copy the tensors of a state (`_stack`) into the buffers, and zeros behind them."""
        rows, slots, items = self.sizes
        more = rows - len(tensors[0])
        padded = []
        for tensor, size in zip(tensors[:4], (slots, slots, items, items), strict=False):
            padded.append(pad(tensor, (0, 0, 0, size - tensor.shape[3], 0, 0, 0, 0, 0, more)))
        padded += [pad(lengths, (0, more)) for lengths in tensors[4:]]
        self.tensors = self.tensors or padded
        for buffer, tensor in zip(self.tensors, padded, strict=True):
            buffer.copy_(tensor)
        self.position.fill_(position)
        self.parents.copy_(self.all_rows)
        return BufferedState(self, position, self.all_rows[: len(tensors[0])])

    def run(self) -> Tensor:
        """Return the next logits, in a tensor that the next call overwrites."""
        if not self._is_captured or not self._is_warm:
            self._is_warm = True  # a capture cannot initialize constants and libraries
            return self._step()
        if self._graph is None:
            graph, stream = torch.cuda.CUDAGraph(), _capture_stream(self.position.device)
            # Other threads may call CUDA meanwhile.
            capture = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
            with _capture_alone(), capture:
                self._logits = self._step()
            self._graph = graph  # not one of a capture that failed, which takes no other
        self._graph.replay()
        return self._logits

    def _step(self) -> Tensor:
        """Compute the next logits. Masks are new: a mask keeps its tensor, and lengths change."""
        core, writer, end = self._model.core, self._model.writer, self.position + 1
        slot, mask = self.position.view(1), Padding(end)
        source_mask = Padding(self.tensors[4]) if self.tensors[4:] else None
        start: Any = self.position
        if self._angles is not None:
            start = tuple(table.index_select(0, slot) for table in self._angles)
        if self.has_beams:
            for buffer in self.tensors[:2]:
                buffer.copy_(buffer.index_select(0, self.parents))
            self.parents.copy_(self.all_rows)

        def attend(part: Any, keys: Tensor, values: Tensor, item: Tensor) -> Tensor:
            new = part.memory(item, start=start)
            keys.index_copy_(2, slot, new.keys)
            values.index_copy_(2, slot, new.values)
            if part.read.bias is None:  # without positions, layers share the tensor of the mask
                return part(item, Memory(keys, values, mask, new.mapped_by), start=start)
            memory = StaticMemory(keys, values, end, mask, new.mapped_by)
            return part(item, memory, start=start)

        item = writer.embed(self.tokens.unsqueeze(1))
        if self._added is not None:
            item = item + self._added.index_select(0, slot)
        item = core.decoder_embedding_norm(item)
        layers = [tensor.unbind(1) for tensor in self.tensors[:4]]
        for block, keys, values, *source in zip(core.decoder, *layers, strict=True):
            item = block.add_attention(item, partial(attend, block.attention, keys, values))
            if source:
                memory = Memory(source[0], source[1], source_mask, block.cross.read.score)
                item = block.add_cross(item, partial(block.cross, memory=memory))
            item = block.add_feedforward(item, block.feedforward)
        self.position.copy_(end)
        return writer.answer(core.decoder_norm(item).squeeze(1))


class BufferedState(NamedTuple):
    """State in these rows of buffers, which the next step overwrites, or `moves` to others."""

    buffers: StepBuffers
    position: int
    rows: Tensor
    moves: bool = False

    def select(self, index: Tensor) -> "BufferedState":
        moves = self.buffers.has_beams or 2 * len(index) <= self.buffers.sizes[0]
        return self._replace(rows=self.rows[index], moves=moves)

    def reorder(self, index: Tensor) -> "BufferedState":
        self.buffers.parents.index_copy_(0, self.rows, self.rows[index])
        return self


class BufferedStepper:
    """Stepper whose steps run in buffers, for one search at a time, with or without beams."""

    def __init__(self, model: Any, *, has_beams: bool):
        self._model, self._key = model, list[object]()
        self._buffers = lru_cache(8)(partial(StepBuffers, model, has_beams=has_beams))

    def start(self, source: Any = None) -> ModelState:
        key: list[object] = [torch.is_inference_mode_enabled()]
        key.append(repr(self._model.core.target_positions))
        for tensors in (self._model.parameters(), self._model.buffers()):
            key += map(Tensor.data_ptr, tensors)
        for name, part in self._model.named_modules(remove_duplicate=False):
            key += [name, type(part)]
            key += [x for x in vars(part).values() if isinstance(x, bool | int | float | str)]
        if key != self._key:  # a graph holds the addresses of weights, and settings as numbers
            self._key = key
            self._buffers.cache_clear()
        return self._model.start(source)

    def steps(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state.position == 0:
            return self._model.steps(tokens, state)
        *first, last = tokens.unbind(1)
        for token in first:
            _, state = self.step(token, state)
        return self.step(last, state)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        limit, position = self._model.core.target_positions.max_length, state.position
        tensors = None
        if position == limit:  # the model raises
            state = ModelState(TransformerState((), (), limit), limit)
        if position in (0, limit):
            return self._model.step(tokens, state)
        if isinstance(state, ModelState):
            tensors = _stack(state.core)
        elif state.moves or position == state.buffers.sizes[1]:
            rows = state.buffers.parents.index_select(0, state.rows)  # of the last `reorder`
            tensors = [tensor.index_select(0, rows) for tensor in state.buffers.tensors]
        if tensors is not None:
            slots = min(1 << max(5, position.bit_length()), limit or 2**31)
            sizes = len(tensors[0]), max([16, *(keys.shape[3] for keys in tensors[2:3])])
            rows, items = (1 << (size - 1).bit_length() for size in sizes)
            state = self._buffers(rows, slots, items).enter(tensors, position)
        state.buffers.tokens.index_copy_(0, state.rows, tokens)
        logits = state.buffers.run().index_select(0, state.rows)
        return logits, state._replace(position=position + 1)


def steps_in_buffers(model: Model) -> bool:
    """Return True if all steps of a model launch the same work, as those of a graph do."""
    core, writer = model.core, model.writer
    known = KNOWN - {SinkSoft, Sigmoid, WrittenAttention} | {Cosine, General, DenseLayer}
    if type(core) is not Transformer or model.training:
        return False
    parts, heads = [core.decoder, core.decoder_norm, core.decoder_embedding_norm, writer], set()
    parts.append(core.target_positions)
    for part in (model, *(part for whole in parts for part in whole.modules())):
        is_known = type(part) in known and not callable(getattr(part, "activation", None))
        if not is_known or getattr(part, "window", None) is not None:
            return False  # it may branch on values
        if isinstance(part, Read) and not (part.mask is None and part.kernel in ("auto", "sdpa")):
            return False
        if isinstance(part, MultiHead):  # all layers share buffers and angles
            if (
                part.positions not in (None, core.target_positions)
                or part.register_keys is not None
            ):
                return False
            heads.add((part.key_heads, part.key.weight.shape, part.value.weight.shape))
    return len(heads) == 1 and writer.positions is None and has_no_hooks(*parts)


@contextmanager
def _capture_alone() -> Iterator[None]:
    """Wait for the captures of other threads, and collect no garbage: a graph in it may not be
    destroyed meanwhile."""
    with _CAPTURE:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


@cache
def _capture_stream(device: torch.device) -> Any:
    """Return the stream of captures; torch's own is that of the device of its first capture."""
    return torch.cuda.Stream(device)


def _stack(state: Any) -> list[Tensor]:
    """Return keys and values of past and source (rows, layer, head, ...), and source lengths."""
    source, tensors = state.sources[0], []
    for memories in (state.pasts, state.sources)[: 1 if source is None else 2]:
        for name in ("keys", "values"):
            tensors.append(torch.stack([getattr(memory, name) for memory in memories], 1))
    if source is None:
        return tensors
    if source.mask is not None:
        return [*tensors, source.mask.lengths]
    return [*tensors, torch.full((len(source.keys),), source.size, device=source.keys.device)]
