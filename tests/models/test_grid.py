"""Every reader, core and writer: gradients, predictions, saved weights, recorded attention.

A new reader, core or writer is one more entry in its table here; tests find out if it has none.
"""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.elements import LabeledRegions
from regard.layers.pool import AttentionPooling
from regard.layers.positions.grid import GridPositions
from regard.layers.read import Read
from regard.look.hooks import record_weights
from regard.models import readers, writers
from regard.models.build import build_core
from regard.models.cores.config import (
    CoreConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.cores.core import Core
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from regard.models.readers.reader import Reader
from regard.models.readers.series import SeriesReader
from regard.models.readers.sound import FrameReader
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.readers.tracks import TrackReader
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import NONE, TagWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import TrackWriter
from regard.models.writers.writer import Writer
from regard.training.tensors import load_weights
from tests.helpers import close, save_weights, without_gradient
from tests.shapes import without_checks

ROWS, VOCAB, PREDICTED, STEPS = 3, 13, 5, 6


class Reads(NamedTuple):
    """Reader for items of a given size, and an input of it."""

    make: Callable[[int], Reader]
    source: Callable[[], Padded | Tensor]
    lengths: tuple[int, ...]
    """Number of items of each row."""


class Writes(NamedTuple):
    """Writer for a reader and a core, and the target of each row (given the lengths)."""

    make: Callable[[Any, Core], Writer]
    target: Callable[[tuple[int, ...]], Any]


def tags(lengths: tuple[int, ...]) -> Tensor:
    """Return one tag per item, and NONE for padding."""
    results = torch.full((ROWS, max(lengths)), NONE)
    for row, length in enumerate(lengths):
        results[row, :length] = torch.randint(3, (length,))
    return results


WIDTH = 12


def token_reader(width: int = WIDTH) -> TokenReader:
    return TokenReader(embedding_table(VOCAB, width))


READERS = {
    "tokens": Reads(
        token_reader,
        lambda: Padded(torch.randint(4, VOCAB, (ROWS, 7)), torch.tensor([7, 1, 4])),
        (7, 1, 4),
    ),
    "images": Reads(
        lambda width: ImageReader((2, 9, 6), width), lambda: torch.rand(ROWS, 2, 9, 6), (6,) * ROWS
    ),
    "sound": Reads(
        lambda width: FrameReader(400, width, sample_rate=2000, bands=8, channels=8),
        lambda: torch.rand(ROWS, 400) - 0.5,
        (5,) * ROWS,
    ),
    "series": Reads(
        lambda width: SeriesReader(2, width, window=3),
        lambda: Padded(torch.randn(ROWS, 13, 2), torch.tensor([13, 2, 6])),
        (5, 1, 2),
    ),
    "points": Reads(
        lambda width: PointReader(
            width, extent=(4.0, 4.0, 3.0), features=2, groups=5, neighbors=3, radius=1.5
        ),
        lambda: Padded(torch.randn(ROWS, 9, 5), torch.tensor([9, 1, 4])),
        (5, 1, 4),
    ),
    "tracks": Reads(
        lambda width: TrackReader(4, width),
        lambda: Padded(torch.randn(ROWS, 5, 4, 2), torch.tensor([5, 1, 2])),
        (5, 1, 2),
    ),
}
CORES = {
    "transformer": TransformerConfig(layers=1, width=WIDTH, heads=3, feedforward=17),
    "recurrent": RecurrentConfig(width=WIDTH, hidden=14, attention_hidden=5),
    "self-attentive": SelfAttentiveConfig(
        width=WIDTH, hidden=14, attention_hidden=5, self_attention_hidden=6
    ),
}
PARTS_OF_A_CORE = {"encoder": {"decodes": False}, "decoder": {}, "set": {"in_order": False}}


def pool(core: Core) -> AttentionPooling:
    return AttentionPooling(core.memory_dim, num_heads=2)


def write_tracks(reader: Reader, core: Core) -> TrackWriter:
    if isinstance(reader, TrackReader):
        return TrackWriter(core.memory_dim, PREDICTED)
    return TrackWriter(core.memory_dim, PREDICTED, from_velocity=False, pool=pool(core))


WRITERS = {
    "tokens": Writes(
        lambda reader, core: TokenWriter(token_reader(), embedding_table(VOCAB, WIDTH)),
        lambda _: Padded(torch.randint(4, VOCAB, (ROWS, 6)), torch.tensor([6, 5, 2])),
    ),
    "grid": Writes(
        lambda reader, core: TokenWriter(token_reader(), positions=GridPositions((2, 2), WIDTH)),
        lambda _: Padded(torch.randint(4, VOCAB, (ROWS, 6)), torch.tensor([6, 6, 6])),
    ),
    "classes": Writes(
        lambda reader, core: ClassWriter(core.memory_dim, 4, pool=pool(core)),
        lambda _: torch.tensor([0, 3, 1]),
    ),
    "labels": Writes(
        lambda reader, core: LabelWriter(core.memory_dim, 4, pool=pool(core)),
        lambda _: torch.eye(4)[:ROWS],
    ),
    "numbers": Writes(
        lambda reader, core: NumberWriter(
            core.memory_dim, means=(1.0, 50.0), deviations=(1.0, 9.0), pool=pool(core)
        ),
        lambda _: torch.tensor([[0.0, 40], [1, 50], [2, 70]]),
    ),
    "sets": Writes(
        lambda reader, core: SetWriter(WIDTH, 3, axes=1, num_queries=4, blocks=core.set_outputs),
        lambda _: LabeledRegions(
            torch.tensor([[0, 2], [1, -1], [-1, -1]]), torch.rand(ROWS, 2, 2) * 0.5 + 0.2
        ),
    ),
    "tags": Writes(lambda reader, core: TagWriter(core.memory_dim, 3), tags),
    "tracks": Writes(write_tracks, lambda _: torch.randn(ROWS, PREDICTED, 2)),
}
READS_PAST = ("cell.state_weight", "feedback_weight", "query_weight", "key_weight", "read.score.v")
IDLE = {
    "recurrent": {"core.cells.0.context_weight", "core.cells.0.state_weight"},
    "self-attentive": {
        "core.cells.0.cell.context_weight",
        *(f"core.cells.0.{name}" for name in READS_PAST),
    },
}
"""Each query of a set takes one step from zeros, before which nothing was read."""
UNUSED = {(reader, core, "sets"): names for reader in READERS for core, names in IDLE.items()} | {
    # The ego agent is the first item: the forward direction has no past there; only the backward
    # direction has read.
    ("tracks", "recurrent", "tracks"): {"core.encoder.rnn.weight_hh_l0"},
    ("tracks", "self-attentive", "tracks"): {
        f"core.encoder.forward_cells.0.{name}" for name in READS_PAST
    },
}
"""Parameters without a gradient for one batch."""
PARTS = {"reader", "writer", "vector", "matching", "regions"}
"""Modules of the folders without a reader or writer."""


def quick_cells() -> set[tuple[str, str, str]]:
    """Return every pair of a reader, core and writer at least once, and every cell of `UNUSED`."""
    cells = {cell for cell in UNUSED if cell[2] != "sets"}
    for i, reader in enumerate(READERS):
        for j, writer in enumerate(WRITERS):
            cells.add((reader, [*CORES][(i + j) % len(CORES)], writer))
    return cells


GRID = list(itertools.product(READERS, CORES, WRITERS))
QUICK = quick_cells()
every_model = pytest.mark.parametrize(
    ("reader", "core", "writer"),
    [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in GRID],
    ids=["-".join(cell) for cell in GRID],
)


@dataclass
class Example:
    source: Any
    target: Any


def make_model(reader: str, core: str, writer: str) -> Model:
    torch.manual_seed(1)
    part = "decoder" if writer in ("tokens", "grid") else "set" if writer == "sets" else "encoder"
    made = READERS[reader].make(WIDTH)
    built_core = build_core(CORES[core], **PARTS_OF_A_CORE[part])
    head = WRITERS[writer].make(made, built_core)
    assert head.part == part
    return Model(reader=made, core=built_core, writer=head)


def make_example(reader: str, writer: str) -> Example:
    torch.manual_seed(2)
    return Example(READERS[reader].source(), WRITERS[writer].target(READERS[reader].lengths))


def to_double(source: Padded | Tensor) -> Padded | Tensor:
    """Return a source in float64; token ids are unchanged."""
    if isinstance(source, Tensor):
        return source.double()
    items = source.items
    return source._replace(items=items.double() if items.is_floating_point() else items)


def predict(model: Model, example: Example) -> Tensor:
    """Return the predictions of a model; token by token where it decodes."""
    if model.writer.part == "set":
        results = model(example.source)
        return torch.cat((results.logits, results.regions), -1)
    if model.writer.part == "encoder":
        return model(example.source)
    state, results = model.start(example.source), []
    for i in range(example.target.items.shape[1] - 1):
        logits, state = model.step(example.target.items[:, i], state)
        results.append(logits)
    return torch.stack(results, 1)


def modules_in(folder: Any) -> set[str]:
    return {path.stem for path in Path(folder.__path__[0]).glob("*.py")} - {"__init__"} - PARTS


def test_every_reader_core_and_writer_is_in_the_tables():
    assert set(READERS) == modules_in(readers)
    assert set(CORES) == {core.name for core in get_args(CoreConfig)}
    assert set(WRITERS) - {"grid"} == modules_in(writers)  # a TokenWriter writes grids


def test_every_pair_of_a_reader_core_and_writer_is_tested_without_slow_tests():
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert {(cell[one], cell[other]) for cell in QUICK} == {
            (cell[one], cell[other]) for cell in GRID
        }


@every_model
@pytest.mark.usefixtures("in_float64")
def test_every_parameter_has_a_gradient(reader, core, writer):
    model, example = make_model(reader, core, writer).double().train(), make_example(reader, writer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        with nullcontext() if step == 0 else without_checks():
            loss = model.loss(example)
        assert loss.count == model.count(example) > 0
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]
    # Softmax ignores what all keys add to all scores of a query.
    key_biases = {name for name, _ in model.named_parameters() if name.endswith(".key.bias")}
    assert without_gradient(model) == UNUSED.get((reader, core, writer), set()) | key_biases


@every_model
def test_loaded_weights_give_the_same_predictions(reader, core, writer, tmp_path):
    model, example = make_model(reader, core, writer).eval(), make_example(reader, writer)
    if not predict(model, example).any():  # outputs initialized to zero
        nn.init.normal_(model.writer.output.weight)
    save_weights(tmp_path / "model.safetensors", model)
    other = make_model(reader, core, writer).eval()
    for value in other.parameters():
        nn.init.normal_(value)
    load_weights(tmp_path / "model.safetensors", other)
    with without_checks():  # the same calls as above
        predicted = predict(model, example)
        assert torch.equal(predicted, predict(other, example))
    assert predicted.isfinite().all()


@every_model
@pytest.mark.usefixtures("no_shape_checks")  # of parts whose shapes the tests above check
def test_rows_are_independent_of_their_batch(reader, core, writer):
    model, example = make_model(reader, core, writer).double().eval(), make_example(reader, writer)
    source, target, length = to_double(example.source), example.target, READERS[reader].lengths[1]
    if isinstance(source, Padded):
        items = source.items[1:2, : int(source.lengths[1])]
        alone: Any = Padded(items, source.lengths[1:2])
    else:
        alone = source[1:2]
    batched = predict(model, Example(source, target))[1]
    if isinstance(target, Padded):
        target = Padded(target.items[1:2], target.lengths[1:2])
    single = predict(model, Example(alone, target))[0]
    if writer == "tags":
        batched, single = batched[:length], single[:length]
    close(batched, single)


@every_model
@pytest.mark.usefixtures("no_shape_checks")  # of parts whose shapes the tests above check
@torch.no_grad()
def test_encoder_predictor_and_decoder_compose_the_model(reader, core, writer):
    model, example = make_model(reader, core, writer).eval(), make_example(reader, writer)
    encoded = model.encoder(example.source)
    assert isinstance(encoded, Padded)
    assert encoded.items.shape[2] == model.core.memory_dim
    assert torch.equal(encoded.items, model.core.encode(model.reader(example.source)).items)
    target = example.target if model.writer.part == "decoder" else None
    composed = model.decoder(model.predictor(target, encoded, source=example.source))
    expected = model(example.source, target)
    if isinstance(composed, Tensor):
        composed, expected = [composed], [expected]
    for part, other in zip(composed, expected, strict=True):
        assert torch.equal(part, other)


@every_model
@pytest.mark.usefixtures("no_shape_checks")  # of parts whose shapes the tests above check
def test_attention_weights_are_recorded_and_sum_to_one(reader, core, writer):
    model, example = make_model(reader, core, writer).eval(), make_example(reader, writer)
    if not any(isinstance(module, Read) for module in model.modules()):
        assert core == "recurrent"
        assert writer in ("tags", "tracks")
        return
    plain = predict(model, example)
    with record_weights(model) as recording:
        assert torch.equal(predict(model, example), plain)
    assert recording.names
    for name in recording.names:
        for weights in recording[name]:
            sums = weights.sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


@every_model
@pytest.mark.usefixtures("no_shape_checks")  # of parts whose shapes the tests above check
def test_steps_equal_all_positions(reader, core, writer):
    model, example = make_model(reader, core, writer).double().eval(), make_example(reader, writer)
    if model.writer.part != "decoder":
        with pytest.raises(
            TypeError, match=f"decodes targets in order, .* got {type(model.writer).__name__}"
        ):
            model.writer.embed(torch.zeros(1, 1, dtype=torch.int64))
        return
    source = to_double(example.source)
    close(predict(model, Example(source, example.target)), model(source, example.target))


def refused(message: str, parts: dict[str, Any], **core: bool) -> None:
    chosen = {
        "reader": READERS["tokens"].make(WIDTH),
        "core": build_core(CORES["recurrent"], **core),
    } | parts
    with without_checks(), pytest.raises((TypeError, ValueError), match=message):
        Model(**chosen)


def test_parts_that_do_not_fit_are_refused():
    tokens, classes = {"writer": TokenWriter(token_reader())}, {"writer": ClassWriter(14, 4)}
    queries = {"writer": SetWriter(WIDTH, 3, axes=1, num_queries=4, blocks=1)}
    refused("`core` must have decodes=True: a TokenWriter", tokens, decodes=False)
    refused("`core` must have in_order=True for a TokenWriter", tokens, in_order=False)
    refused("`core` must have in_order=False for a SetWriter", queries)
    refused("`core` must have encodes=True", tokens, encodes=False)
    refused("`core` must have encodes=False for reader=None", tokens | {"reader": None})
    refused("a ClassWriter needs a source", classes | {"reader": None}, encodes=False)
    refused("items of the core's width, 12, got dim=5", tokens | {"reader": token_reader(5)})
    refused("the core's memory_dim, 14, got dim=12", {"writer": ClassWriter(12, 4)})
    refused("the core's width, 12, got dim=14", {"writer": TokenWriter(token_reader(14))})
