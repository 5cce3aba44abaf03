"""Contracts of a part of your own: `check(part)` raises an AssertionError that names a broken one.

Masks and biases are tables of queries and keys. A score, a choice and positions that rotate are
checked in a MultiHead, as an attention module is; a norm, a feed-forward network and positions that
are added by themselves; and a model as a whole. The contracts are the methods `check_...`. Parts
are copied, and computed in float64 in evaluation. Parameters that are zero are drawn anew: they
would hide an effect.
"""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from regard.attention import memory as memories
from regard.attention.axes import align
from regard.attention.biases import Bias
from regard.attention.choices import Choice, KeySelection
from regard.attention.masks import Mask, Padded, Related, causal, dense, padding, window
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.data.batches import Batch
from regard.layers.multihead import MultiHead
from regard.layers.positions.base import PositionalEncoding
from regard.layers.read import Read
from regard.look.record import record
from regard.models.cores.core import Core
from regard.models.model import Model
from regard.models.readers.reader import Reader
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.writer import Writer
from regard.training.tensors import load_tensors, tensors_of

ROWS, TIME, WINDOW = 3, 7, 4
LENGTHS, SELECTED = [7, 3, 5], torch.tensor([2, 0, 2])
RANGES = ((0, 2), (2, 3), (3, TIME))
BOUND, QUANTIZED_BOUND = 1e-9, 0.1
"""Largest differences, relative to the largest number: in float64, and of a memory in int8."""
KINDS = {"bias": Bias, "score": Score, "choice": Choice, "positions": PositionalEncoding}
"""Parts of a MultiHead, by the names of its arguments."""


def check(part: Any, batch: Batch | None = None, *, dim: int = 8, heads: int = 2) -> None:
    """Check the contracts of a part, or of a model.

    batch: input of a model, two rows or more, the first the longest; default: random tokens.
    dim:   size of the queries and keys of a head, for a part of a MultiHead; items of a norm, a
           feed-forward network and added positions have dim * heads numbers.
    Raises: AssertionError, naming the part and the contract; TypeError for what is no part.
    """
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(0)
        for case in _cases(part, batch, dim, heads):
            for name, contract in vars(type(case)).items():
                if not name.startswith("check_"):
                    continue
                try:
                    contract(case)
                except (AssertionError, RuntimeError, TypeError, ValueError) as error:
                    kind, text = type(part).__name__, contract.__doc__.rstrip(".")
                    raise AssertionError(f"{kind} breaks a contract: {text}: {error}") from error


def _cases(part: Any, batch: Batch | None, dim: int, heads: int) -> Iterator[Any]:
    """Yield objects whose methods `check_...` are the contracts of a part."""
    if isinstance(part, Mask):
        yield _Table(part, dim, heads)
        return
    if not isinstance(part, nn.Module) or isinstance(part, Core | Reader | Writer):
        kind = type(part).__name__
        raise TypeError(f"part must be a Mask, a module of a core, or a Model, got {kind}")
    part = copy.deepcopy(part).double().eval()
    for parameter in part.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    _check_registered(part)
    if isinstance(part, Model):
        kinds = (_Model, _WrittenTokens) if isinstance(part.writer, TokenWriter) else (_Model,)
        yield from (kind(part, batch) for kind in kinds)
        return
    if isinstance(part, Bias):
        yield _Table(part, dim, heads)
    if isinstance(part, PositionalEncoding):
        yield _Items(part, dim * heads)
        for bias in part.bias(two_sided=False), part.bias(two_sided=True):
            if bias is not None:
                yield _Table(bias.double(), dim, heads)
        if not part.rotates:
            return
    for name, kind in KINDS.items():
        if isinstance(part, kind):
            options: dict[str, Any] = {name: part}
            part = MultiHead(dim * heads, heads, **options).double()
    yield (_Layer if hasattr(part, "memory") else _Items)(part, dim * heads)


def _same(actual: Tensor, expected: Tensor, bound: float = BOUND, what: str = "") -> None:
    assert actual.shape == expected.shape, f"shape must be {expected.shape}, got {actual.shape}"
    actual, expected = actual.double(), expected.double()
    bound *= max(1.0, float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()))
    wrong = (actual - expected)[~torch.isclose(actual, expected, rtol=0.0, atol=bound)].abs()
    assert not len(wrong), f"{len(wrong)} numbers{what} differ, by {wrong.max():.2g}"


def _check_registered(module: nn.Module) -> None:
    known = {id(x) for x in (*module.parameters(), *module.buffers(), *module.modules())}
    for inner in module.modules():
        kind = type(inner)
        for name, value in vars(inner).items():
            values = list(value.values()) if isinstance(value, dict) else value
            for held in values if isinstance(values, list | tuple) else [value]:
                is_known = id(held) in known or kind.__module__.startswith("regard.")
                assert is_known or not isinstance(held, Tensor | nn.Module), (
                    f"{kind.__name__}.{name} holds a {type(held).__name__} that is not registered, "
                    "so neither saved nor moved; use nn.Parameter, register_buffer or nn.ModuleList"
                )


class _Items:
    """A norm, a feed-forward network, or positions that are added: each item for itself."""

    def __init__(self, part: nn.Module, width: int):
        self.part, self.items = part, torch.randn(ROWS, TIME, width).double()
        self.whole = self.at(self.items, 0)

    def at(self, items: Tensor, start: int) -> Tensor:
        is_encoding = isinstance(self.part, PositionalEncoding)
        return self.part(items, start) if is_encoding else self.part(items)

    def check_ranges(self) -> None:
        """The shape is kept, and a range of the items is that of the whole."""
        assert self.whole.shape == self.items.shape, f"got {tuple(self.whole.shape)}"
        for first, last in RANGES:
            _same(self.at(self.items[:, first:last], first), self.whole[:, first:last])

    def check_select(self) -> None:
        """Selected rows are rows of the whole."""
        _same(self.at(self.items[SELECTED], 0), self.whole[SELECTED])


class _Table:
    """A mask or a bias as a table of queries and keys."""

    def __init__(self, part: Mask | Bias, dim: int, heads: int):
        self.part, self.heads = part, heads
        self.query, self.keys = torch.randn(2, ROWS, heads, TIME, dim).double()
        self.positions = Positions(TIME, TIME, torch.device("cpu"))
        self.whole = self.at(self.positions, self.query, self.keys)

    def at(self, positions: Positions, query: Tensor, keys: Tensor) -> Tensor:
        if isinstance(self.part, Mask):
            table = self.part.materialize(positions)
        else:
            table = self.part(query, keys, positions)
        sizes = positions.num_rows, positions.num_keys
        return align(table, 4).expand(ROWS, self.heads, *sizes)

    def check_tiles(self) -> None:
        """Tiles are rows of the whole."""
        for first, last in RANGES:
            query = self.query[:, :, first:last]
            tile = self.at(self.positions.tile(first, last), query, self.keys)
            _same(tile, self.whole[:, :, first:last])

    def check_steps(self) -> None:
        """Steps are rows of the whole."""
        for i in range(TIME):
            query, row = self.query[:, :, i : i + 1], self.whole[:, :, i : i + 1]
            positions = Positions(1, i + 1, self.positions.device)
            _same(self.at(positions, query, self.keys[:, :, : i + 1]), row[..., : i + 1])
            positions = self.positions._replace(num_queries=1, start=torch.tensor(i))
            _same(self.at(positions, query, self.keys), row)

    def check_order(self) -> None:
        """Keys in another order are columns in that order."""
        order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
        positions = self.positions._replace(start=0, key_positions=order)
        _same(self.at(positions, self.query, self.keys[:, :, order]), self.whole[..., order])

    def check_mask(self) -> None:
        """Selected rows and the interval of a mask are those of the whole."""
        if not isinstance(self.part, Mask):
            return
        table = align(self.part.select(SELECTED).materialize(self.positions), 4)
        _same(table.expand(self.whole.shape), self.whole[SELECTED])
        bounds, keys = self.part.interval(self.positions), self.positions.key
        if bounds is not None:
            table = align((bounds[0] <= keys) & (keys < bounds[1]), 4)
            _same(table.expand(self.whole.shape), self.whole)


class _Layer:
    """Attention of items to themselves."""

    def __init__(self, layer: Any, width: int):
        self.layer = layer
        width = getattr(getattr(layer, "query", None), "in_features", width)
        self.items = torch.randn(ROWS, TIME, width).double()
        self.whole = layer(self.items, mask=causal())
        self.memory = layer.memory(self.items)
        reads = [part for part in layer.modules() if isinstance(part, Read)]
        self.has_windows = not any(read.score.needs_all_keys for read in reads)
        self.may_round = not any(isinstance(read.choice, KeySelection) for read in reads)

    def compare_steps(self, memory: Any, mask: Mask, bound: float = BOUND) -> None:
        """Compare steps of one and two items after the first two with all items at once."""
        kind, whole = type(memory).__name__, self.layer(self.items, mask=mask)
        last = 5 if isinstance(memory, memories.RingMemory) else 6
        for new in (slice(2, 3), slice(3, 4), slice(4, last)):
            memory = self.layer.extend(memory, self.items[:, new])
            out = self.layer(self.items[:, new], memory, mask=causal())
            _same(out, whole[:, new], bound, f" of a {kind}")

    def check_steps(self) -> None:
        """Steps equal all items at once in every memory."""
        first = self.layer.memory(self.items[:, :2])
        self.compare_steps(first, causal())
        self.compare_steps(self.memory.crop(2), causal())
        self.compare_steps(memories.StaticMemory.of(first, capacity=TIME + 2), causal())
        if self.has_windows:
            for kind in (memories.SlidingMemory, memories.RingMemory):
                self.compare_steps(kind.of(first, window=WINDOW), window(WINDOW))
        if self.may_round:  # rounded scores may select other keys
            self.compare_steps(memories.QuantizedMemory.of(first), causal(), QUANTIZED_BOUND)

    def check_select(self) -> None:
        """Selected rows are rows of the whole."""
        out = self.layer(self.items[SELECTED, -1:], self.memory.select(SELECTED))
        _same(out, self.whole[SELECTED, -1:])

    def check_masks(self) -> None:
        """Masks of every shape are those of all axes."""
        holes = torch.rand(ROWS, 1, TIME, TIME) > 0.4
        for table in (holes[0, 0], holes[0, 0, :1], holes[0, 0, :, :1], holes[:, 0], holes):
            whole = dense(align(table, 4).expand(ROWS, 1, TIME, TIME).contiguous())
            _same(self.layer(self.items, mask=dense(table)), self.layer(self.items, mask=whole))
        table = torch.ones(TIME, TIME, dtype=torch.bool).tril()
        _same(self.layer(self.items, mask=dense(table)), self.whole)
        if isinstance(self.layer, MultiHead):
            bias = torch.zeros(TIME, TIME).double().masked_fill(~table, -torch.inf)
            _same(self.layer(self.items, bias=bias), self.whole)

    def check_no_key(self) -> None:
        """A query without a key reads zeros: no value has an effect, and none is NaN."""
        nothing, others = padding(0), self.layer.memory(self.items.flip(0))
        outs = (self.layer(self.items, memory, mask=nothing) for memory in (others, self.memory))
        _same(*outs)

    def check_padding(self) -> None:
        """A masked key is an absent key, and padded rows are single rows."""
        masked = self.layer(self.items, memory_mask=padding(5))
        _same(masked[:, :5], self.layer(self.items[:, :5]))
        together = self.layer(self.items, mask=causal(), memory_mask=padding(LENGTHS))
        for row, length in enumerate(LENGTHS):
            alone = self.layer(self.items[row : row + 1, :length], mask=causal())
            _same(together[row : row + 1, :length], alone)

    def check_recorded(self) -> None:
        """Recording changes nothing, and records a Read, without weights of masked pairs."""
        with record(self.layer, dtype=torch.float64) as capture:
            _same(self.layer(self.items, mask=causal()), self.whole)
        for name in capture.recording:
            for weights in capture.recording[name]:
                assert not weights.triu(1).any(), "a masked pair has a weight"


class _Model:
    """A model and a batch of it."""

    def __init__(self, model: Model, batch: Batch | None):
        self.model = model
        batch = _random_tokens(model) if batch is None else batch
        target = batch.target if model.writer.part == "decoder" else None
        self.batch: Batch[Any, Any] = Batch(_double(batch.source), target)
        self.whole = self.outputs(model, self.batch)

    def outputs(self, model: Model, batch: Batch) -> list[Tensor]:
        out = model(batch.source, batch.target)
        return [out] if isinstance(out, Tensor) else list(out)

    def check_rows(self) -> None:
        """Rows do not depend on their batch, nor on padding."""
        for row in range(len(self.whole[0])):
            alone = Batch(_row_of(self.batch.source, row), _row_of(self.batch.target, row))
            outs = self.outputs(self.model, alone)
            for together, expected in zip(self.whole, outs, strict=True):
                within = tuple(slice(size) for size in expected.shape[1:])
                _same(together[(slice(row, row + 1), *within)], expected)

    def check_saved(self) -> None:
        """A saved model is the loaded one, and recording it changes nothing."""
        loaded = copy.deepcopy(self.model)
        for parameter in loaded.parameters():
            nn.init.normal_(parameter)
        load_tensors(loaded, load(save(tensors_of(self.model))), origin="the saved model")
        has_reads = any(isinstance(part, Read) for part in loaded.modules())
        with record(loaded, dtype=torch.float64) if has_reads else nullcontext():
            outs = self.outputs(loaded, self.batch)
        for out, expected in zip(outs, self.whole, strict=True):
            _same(out, expected, 0.0)


class _WrittenTokens(_Model):
    """A model that writes tokens, one after another."""

    def start(self) -> Any:
        return self.model.start(self.batch.source, rows=len(self.batch.target.items))

    def check_steps(self) -> None:
        """Steps equal all items at once."""
        tokens, state = self.batch.target.items, self.start()
        for time in range(tokens.shape[1] - 1):
            logits, state = self.model.step(tokens[:, time], state)
            _same(logits, self.whole[0][:, time])
        _, state = self.model.steps(tokens[:, :2], self.start())
        _same(self.model.steps(tokens[:, 2:4], state)[0], self.whole[0][:, 3])

    def check_select(self) -> None:
        """Selected and reordered rows are rows of the whole."""
        tokens, rows = self.batch.target.items, torch.tensor([1, 0, 1])
        _, state = self.model.step(tokens[:, 0], self.start())
        _same(self.model.step(tokens[rows, 1], state.select(rows))[0], self.whole[0][rows, 1])
        # Rows of one source, as the hypotheses of a beam.
        _, state = self.model.step(tokens[:2, 1], state.select(torch.tensor([0, 0])))
        both, _ = self.model.step(tokens[:2, 2], state)
        swapped = self.model.step(tokens[:2, 2].flip(0), state.reorder(torch.tensor([1, 0])))[0]
        _same(swapped, both.flip(0))


def _random_tokens(model: Model) -> Batch:
    reader, writer = model.reader, model.writer
    if not isinstance(reader, TokenReader | None) or not isinstance(writer, TokenWriter):
        raise TypeError("batch must be given for a model that does not read and write tokens")
    source, lengths = None, torch.tensor(LENGTHS)
    if reader is not None:
        source = Padded(torch.randint(reader.table.num_embeddings, (ROWS, TIME)), lengths)
    target = torch.randint(writer.inputs.table.num_embeddings, (ROWS, TIME - 1))
    return Batch(source, Padded(target, lengths.clamp(max=TIME - 1)))


def _row_of(value: Any, row: int) -> Any:
    """Return a row, without its padding."""
    rows = slice(row, row + 1)
    if not isinstance(value, Padded):
        return None if value is None else value[rows]
    length = int(value.lengths[row])
    items, lengths = value.items[rows, :length], value.lengths[rows]
    if value.relations is not None:
        return Related.of(items, lengths, value.relations[rows][..., :length, :length])
    return value._replace(items=items, lengths=lengths)


def _double(value: Any) -> Any:
    if isinstance(value, Padded):
        return value._replace(items=_double(value.items))
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
