"""Contracts of a part of your own: `check(part)` raises an AssertionError that names a broken one.

| part                     | contracts                                                             |
|--------------------------|-----------------------------------------------------------------------|
| Mask, Bias               | tiles, steps and selected rows are rows of the whole; the order of    |
|                          | keys does not matter                                                  |
| Score, Choice, positions | those of a MultiHead with the part; added positions in steps          |
| attention module         | steps in every memory = all at once; crop, select; masks of every     |
|                          | shape; masked key = absent key; padded rows = single rows; recorded   |
|                          | weights are those of the read                                         |
| Model                    | padded rows = single rows; recording changes nothing; saved = loaded; |
|                          | of tokens: steps = all at once, select and reorder, no later tokens   |

Parts are copied, and computed in float64 in evaluation. Parameters that are zero are drawn anew:
they would hide an effect.
"""

import copy
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from regard.attention.axes import align
from regard.attention.biases import Bias
from regard.attention.choices import Choice, KeySelection
from regard.attention.masks import Mask, Padded, Related, causal, dense, padding, window
from regard.attention.memory import (
    KeyValueCache,
    QuantizedMemory,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.data.batches import Batch
from regard.layers.multihead import MultiHead
from regard.layers.positions.base import PositionalEncoding
from regard.layers.read import Read
from regard.look.record import record
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter
from regard.training.tensors import load_tensors, tensors_of

ROWS, TIME, WINDOW = 3, 7, 4
LENGTHS = [7, 3, 5]
BOUND, QUANTIZED_BOUND = 1e-9, 0.1
"""Largest differences, relative to the largest number: in float64, and of a memory in int8."""


def check(part: Any, batch: Batch | None = None, *, dim: int = 8, heads: int = 2) -> None:
    """Check the contracts of a part, or of a model.

    batch: input of a model, two rows or more, the first the longest; default: random tokens.
    dim:   size of the queries and keys of a head, for a part of a MultiHead.
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
                except AssertionError as error:
                    kind, text = type(part).__name__, contract.__doc__.rstrip(".")
                    raise AssertionError(f"{kind} breaks a contract: {text}: {error}") from error


def _cases(part: Any, batch: Batch | None, dim: int, heads: int) -> list[Any]:
    """Return objects whose methods `check_...` are the contracts of a part."""
    if isinstance(part, Mask):
        return [_Table(part, dim, heads)]
    if not isinstance(part, nn.Module):
        raise TypeError(f"part must be a Mask or a module, got {type(part).__name__}")
    part = copy.deepcopy(part).double().eval()
    for parameter in part.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    if isinstance(part, Model):
        decodes = isinstance(part.writer, TokenWriter)
        return [_Model(part, batch), *([_WrittenTokens(part, batch)] if decodes else [])]
    cases, width = [], dim * heads
    if isinstance(part, Bias):
        cases.append(_Table(part, dim, heads))
    if isinstance(part, PositionalEncoding):
        cases.append(_Added(part, width))
        if not part.rotates:
            return cases
    kinds = {"bias": Bias, "score": Score, "choice": Choice, "positions": PositionalEncoding}
    for name, kind in kinds.items():
        if isinstance(part, kind):
            options: dict[str, Any] = {name: part}
            part = MultiHead(width, heads, **options).double()
    return [*cases, _Layer(part, width)]


def _same(actual: Tensor, expected: Tensor, bound: float = BOUND, what: str = "") -> None:
    shapes = f"{tuple(expected.shape)}, got {tuple(actual.shape)}"
    assert actual.shape == expected.shape, f"the shape must be {shapes}"
    largest = max(1.0, float(expected.abs().max())) if expected.dtype.is_floating_point else 1.0
    actual, expected = actual.double(), expected.double()
    fits = (actual == expected) | ((actual - expected).abs() <= bound * largest)
    differences = (actual - expected)[~fits].abs()
    assert fits.all(), f"{len(differences)} numbers{what} differ, by {differences.max():.2g}"


class _Added:
    """Positions that are added to items."""

    def __init__(self, positions: PositionalEncoding, width: int):
        self.positions, self.items = positions, torch.randn(ROWS, TIME, width).double()

    def check_start(self) -> None:
        """Items at a later start are those of the whole."""
        _same(self.positions(self.items[:, 3:], 3), self.positions(self.items)[:, 3:])


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
        for first, last in ((0, 2), (2, 3), (3, TIME)):
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

    def check_select(self) -> None:
        """Selected rows are rows of the whole."""
        if isinstance(self.part, Mask):
            rows = torch.tensor([2, 0, 2])
            table = align(self.part.select(rows).materialize(self.positions), 4)
            _same(table.expand(self.whole.shape), self.whole[rows])


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

    def compare_steps(self, memory: KeyValueCache, mask: Mask, bound: float = BOUND) -> None:
        """Compare steps of one and two items after the first two with all items at once."""
        kind, whole = type(memory).__name__, self.layer(self.items, mask=mask)
        last = 5 if isinstance(memory, RingMemory) else 6
        for new in (slice(2, 3), slice(3, 4), slice(4, last)):
            memory = self.layer.extend(memory, self.items[:, new])
            out = self.layer(self.items[:, new], memory, mask=causal())
            _same(out, whole[:, new], bound, f" of a {kind}")

    def check_steps(self) -> None:
        """Steps are all at once in every memory."""
        first = self.layer.memory(self.items[:, :2])
        self.compare_steps(first, causal())
        self.compare_steps(self.memory.crop(2), causal())
        self.compare_steps(StaticMemory.of(first, capacity=TIME + 2), causal())
        if self.has_windows:
            self.compare_steps(SlidingMemory.of(first, window=WINDOW), window(WINDOW))
            self.compare_steps(RingMemory.of(first, window=WINDOW), window(WINDOW))
        if self.may_round:  # rounded scores may select other keys
            self.compare_steps(QuantizedMemory.of(first), causal(), QUANTIZED_BOUND)

    def check_select(self) -> None:
        """Selected rows are rows of the whole."""
        rows = torch.tensor([2, 0, 2])
        out = self.layer(self.items[rows, -1:], self.memory.select(rows))
        _same(out, self.whole[rows, -1:])

    def check_masks(self) -> None:
        """Masks of every shape are those of all axes, and a query without a key is finite."""
        holes = torch.rand(ROWS, 1, TIME, TIME) > 0.4
        for table in (holes[0, 0], holes[0, 0, :1], holes[0, 0, :, :1], holes[:, 0], holes):
            whole = dense(align(table, 4).expand(ROWS, 1, TIME, TIME).contiguous())
            _same(self.layer(self.items, mask=dense(table)), self.layer(self.items, mask=whole))
        table = torch.ones(TIME, TIME, dtype=torch.bool).tril()
        _same(self.layer(self.items, mask=dense(table)), self.whole)
        if isinstance(self.layer, MultiHead):
            bias = torch.zeros(TIME, TIME).double().masked_fill(~table, -torch.inf)
            _same(self.layer(self.items, bias=bias), self.whole)
        out = self.layer(self.items, mask=dense(table & False))
        assert out.isfinite().all(), "the output is not finite"

    def check_padding(self) -> None:
        """A masked key is an absent key, and padded rows are single rows."""
        masked = self.layer(self.items, memory_mask=padding(5))
        _same(masked[:, :5], self.layer(self.items[:, :5]))
        together = self.layer(self.items, mask=causal(), memory_mask=padding(LENGTHS))
        for row, length in enumerate(LENGTHS):
            alone = self.layer(self.items[row : row + 1, :length], mask=causal())
            _same(together[row : row + 1, :length], alone)

    def check_recorded(self) -> None:
        """Recording changes nothing, and records no weight of a masked pair."""
        with record(self.layer, dtype=torch.float64) as capture:
            _same(self.layer(self.items, mask=causal()), self.whole)
        for name in capture.recording:
            for weights in capture.recording[name]:
                assert not weights.triu(1).any(), "a masked pair has a weight"


class _Model:
    """A model and a batch of it."""

    def __init__(self, model: Model, batch: Batch | None):
        self.model = model
        self.batch: Batch[Any, Any] = _random_tokens(model) if batch is None else batch
        if model.writer.part != "decoder":
            self.batch = Batch(_double(self.batch.source), None)
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

    def check_recorded(self) -> None:
        """Recording changes nothing."""
        if not any(isinstance(part, Read) for part in self.model.modules()):
            return
        with record(self.model, dtype=torch.float64):
            outs = self.outputs(self.model, self.batch)
        for out, expected in zip(outs, self.whole, strict=True):
            _same(out, expected, 0.0)

    def check_saved(self) -> None:
        """A saved model is the loaded one."""
        loaded = copy.deepcopy(self.model)
        for parameter in loaded.parameters():
            nn.init.normal_(parameter)
        load_tensors(loaded, load(save(tensors_of(self.model))), origin="the saved model")
        for out, expected in zip(self.outputs(loaded, self.batch), self.whole, strict=True):
            _same(out, expected, 0.0)


class _WrittenTokens(_Model):
    """A model that writes tokens, one after another."""

    def start(self, source: Any, rows: int) -> Any:
        return self.model.start(rows=rows) if source is None else self.model.start(source)

    def check_steps(self) -> None:
        """Steps are all at once."""
        tokens, source = self.batch.target.items, self.batch.source
        state = self.start(source, len(tokens))
        for time in range(tokens.shape[1] - 1):
            logits, state = self.model.step(tokens[:, time], state)
            _same(logits, self.whole[0][:, time])
        _, state = self.model.steps(tokens[:, :2], self.start(source, len(tokens)))
        _same(self.model.steps(tokens[:, 2:4], state)[0], self.whole[0][:, 3])

    def check_later(self) -> None:
        """Later targets have no effect."""
        tokens = self.batch.target.items.clone()
        tokens[:, 3:] = tokens[:, 3:].flip(0)
        target = self.batch.target._replace(items=tokens)
        (out,) = self.outputs(self.model, Batch(self.batch.source, target))
        _same(out[:, :3], self.whole[0][:, :3])

    def check_select(self) -> None:
        """Selected and reordered rows are rows of the whole."""
        tokens, rows = self.batch.target.items, torch.tensor([1, 0, 1])
        _, state = self.model.step(tokens[:, 0], self.start(self.batch.source, len(tokens)))
        _same(self.model.step(tokens[rows, 1], state.select(rows))[0], self.whole[0][rows, 1])
        _, state = self.model.step(tokens[:2, 0], self.start(_row_of(self.batch.source, 0, 2), 2))
        both, _ = self.model.step(tokens[:2, 1], state)
        swapped = self.model.step(tokens[:2, 1].flip(0), state.reorder(torch.tensor([1, 0])))[0]
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


def _row_of(value: Any, row: int, count: int = 1) -> Any:
    """Return a row, without its padding, `count` times."""
    if value is None:
        return None
    rows = torch.full((count,), row)
    if not isinstance(value, Padded):
        return value[rows]
    length = int(value.lengths[row])
    items, lengths, relations = value.items[rows, :length], value.lengths[rows], value.relations
    if relations is not None:
        return Related.of(items, lengths, relations[rows][..., :length, :length])
    return value._replace(items=items, lengths=lengths)


def _double(value: Any) -> Any:
    if isinstance(value, Padded):
        return value._replace(items=_double(value.items))
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
