"""Any reader goes with any core and any writer: each combination learns, answers, is saved and shows its weights.

A new reader, core or writer is one more entry in its table here; tests find out if it has none.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.elements import Elements
from regard.layers.read import Read
from regard.look.listen import listen
from regard.models import config as models_config
from regard.models import reads as reads_folder
from regard.models import writes as writes_folder
from regard.models.build import build_core, compose
from regard.models.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.detector import Detector
from regard.models.model import Model
from regard.models.reads.frames import FrameReader
from regard.models.reads.images import ImageReader
from regard.models.reads.series import SeriesReader
from regard.models.reads.tokens import TokenReader, embedding_table
from regard.models.reads.tracks import TrackReader
from regard.models.writes.classes import ClassWriter
from regard.models.writes.labels import LabelWriter
from regard.models.writes.numbers import NumberWriter
from regard.models.writes.sets import SetWriter
from regard.models.writes.tags import NONE, TagWriter
from regard.models.writes.tokens import TokenWriter
from regard.models.writes.tracks import TrackWriter
from regard.train.weights import load_weights, save_weights
from tests.helpers import close

ROWS, VOCAB, PREDICTED, STEPS = 3, 13, 5, 6


class Reads(NamedTuple):
    """A reader: of items of so many numbers, and something that it reads."""

    make: Callable[[int], nn.Module]
    source: Callable[[], Padded | Tensor]
    lengths: tuple[int, ...]
    """Items of each row."""


class Writes(NamedTuple):
    """A writer for a core, what is right for each row (given the rows' lengths), and the parts of a core it needs."""

    make: Callable[[Any], nn.Module]
    target: Callable[[tuple[int, ...]], Any]
    parts: dict[str, bool]


def tags(lengths: tuple[int, ...]) -> Tensor:
    """A tag an item, and none for padding."""
    found = torch.full((ROWS, max(lengths)), NONE)
    for row, length in enumerate(lengths):
        found[row, :length] = torch.randint(3, (length,))
    return found


def table() -> nn.Embedding:
    return embedding_table(VOCAB, WIDTH)


WIDTH = 12
READERS = {
    "tokens": Reads(
        lambda width: TokenReader(embedding_table(VOCAB, width)),
        lambda: Padded(torch.randint(4, VOCAB, (ROWS, 7)), torch.tensor([7, 1, 4])),
        (7, 1, 4),
    ),
    "images": Reads(lambda width: ImageReader((2, 9, 6), width), lambda: torch.rand(ROWS, 2, 9, 6), (6,) * ROWS),
    "frames": Reads(
        lambda width: FrameReader(400, width, sample_rate=2000, bands=8, channels=8),
        lambda: torch.rand(ROWS, 400) - 0.5,
        (5,) * ROWS,
    ),
    "series": Reads(
        lambda width: SeriesReader(2, width, window=3),
        lambda: Padded(torch.randn(ROWS, 13, 2), torch.tensor([13, 2, 6])),
        (5, 1, 2),
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
    "self-attentive": SelfAttentiveConfig(width=WIDTH, hidden=14, attention_hidden=5, self_attention_hidden=6),
}
ENCODER = {"decodes": False}
WRITERS = {
    "tokens": Writes(
        lambda core: TokenWriter(TokenReader(table()), table()),
        lambda _: Padded(torch.randint(4, VOCAB, (ROWS, 6)), torch.tensor([6, 5, 2])),
        {},
    ),
    "classes": Writes(lambda core: ClassWriter(core.memory_dim, 4), lambda _: torch.tensor([0, 3, 1]), ENCODER),
    "labels": Writes(lambda core: LabelWriter(core.memory_dim, 4), lambda _: torch.eye(4)[:ROWS], ENCODER),
    "numbers": Writes(
        lambda core: NumberWriter(core.memory_dim, means=(1.0, 50.0), deviations=(1.0, 9.0)),
        lambda _: torch.tensor([[0.0, 40], [1, 50], [2, 70]]),
        ENCODER,
    ),
    "sets": Writes(
        lambda core: SetWriter(WIDTH, 3, axes=1, num_queries=4, blocks=1),
        lambda _: Elements(torch.tensor([[0, 2], [1, -1], [-1, -1]]), torch.rand(ROWS, 2, 2) * 0.5 + 0.2),
        {"in_order": False},
    ),
    "tags": Writes(lambda core: TagWriter(core.memory_dim, 3), tags, ENCODER),
    "tracks": Writes(
        lambda core: TrackWriter(core.memory_dim, PREDICTED), lambda _: torch.randn(ROWS, PREDICTED, 2), ENCODER
    ),
}
READS_PAST = ("cell.state_weight", "feedback_weight", "query_weight", "key_weight", "read.score.v")
IDLE = {
    "recurrent": {"core.cells.0.context_weight", "core.cells.0.state_weight"},
    "self-attentive": {
        "core.cells.0.cell.context_weight",
        *(f"core.cells.0.{name}" for name in READS_PAST),
    },
}
"""A query of a set takes one step from a state of zeros, before which nothing was read."""
UNUSED = {(reads, core, "sets"): names for reads in READERS for core, names in IDLE.items()} | {
    # One's own track is the first: who reads forwards has no state there yet; only the other direction has read.
    ("tracks", "recurrent", "tracks"): {"core.encoder.run.weight_hh_l0"},
    ("tracks", "self-attentive", "tracks"): {f"core.encoder.forwards.0.{name}" for name in READS_PAST},
}
"""Weights that have nothing to learn from one batch."""
PARTS = {"vector", "matching"}
"""Modules of the folders that hold no reader or writer of their own."""
GRID = list(itertools.product(READERS, CORES, WRITERS))
every_model = pytest.mark.parametrize(("reads", "core", "writes"), GRID, ids=["-".join(cell) for cell in GRID])


@dataclass
class Example:
    source: Any
    target: Any


def model_of(reads: str, core: str, writes: str) -> nn.Module:
    torch.manual_seed(1)
    reader, writer = READERS[reads], WRITERS[writes]
    built = build_core(CORES[core], **writer.parts)
    return compose(reader.make(WIDTH), built, writer.make(built), pool_heads=2)


def example_of(reads: str, writes: str) -> Example:
    torch.manual_seed(2)
    return Example(READERS[reads].source(), WRITERS[writes].target(READERS[reads].lengths))


def answer(model: Any, example: Example) -> Tensor:
    """What a model says: all at once; token by token where it decodes."""
    if isinstance(model, Detector):
        found = model(example.source)
        return torch.cat((found.logits, found.regions), -1)
    if not isinstance(model, Model):
        return model(example.source)
    state, found = model.start(example.source), []
    for i in range(example.target.items.shape[1] - 1):
        logits, state = model.step(example.target.items[:, i], state)
        found.append(logits)
    return torch.stack(found, 1)


def modules_in(folder: Any) -> set[str]:
    return {path.stem for path in Path(folder.__path__[0]).glob("*.py")} - {"__init__"} - PARTS


def test_every_reader_core_and_writer_is_in_the_tables():
    assert set(READERS) == modules_in(reads_folder)
    assert set(CORES) == set(models_config.CORES)
    assert set(WRITERS) == modules_in(writes_folder)


@every_model
def test_a_batch_is_learned_by_every_parameter(reads, core, writes):
    model, example = model_of(reads, core, writes).train(), example_of(reads, writes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = model.loss(example)
        assert loss.count == model.count(example) > 0
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]
    idle = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert set(idle) == UNUSED.get((reads, core, writes), set())


@every_model
def test_answers_are_those_of_its_saved_weights(reads, core, writes, tmp_path):
    model, example = model_of(reads, core, writes).eval(), example_of(reads, writes)
    if not answer(model, example).any():  # what starts at zero says nothing yet
        nn.init.normal_(model.writes.output.weight)
    save_weights(tmp_path / "model.safetensors", model)
    other = model_of(reads, core, writes).eval()
    for value in other.parameters():
        nn.init.normal_(value)
    load_weights(tmp_path / "model.safetensors", other)
    said = answer(model, example)
    assert torch.equal(said, answer(other, example))
    assert said.isfinite().all()


@every_model
def test_a_row_is_answered_as_if_it_were_alone(reads, core, writes):
    model, example = model_of(reads, core, writes).double().eval(), example_of(reads, writes)
    source, row, length = example.source, 1, READERS[reads].lengths[1]
    if isinstance(source, Padded):
        source = source._replace(items=source.items.double() if source.items.is_floating_point() else source.items)
        alone: Any = Padded(source.items[row : row + 1, : int(source.lengths[row])], source.lengths[row : row + 1])
    else:
        source, alone = source.double(), source.double()[row : row + 1]
    target = example.target
    if isinstance(target, Padded):
        one = Padded(target.items[row : row + 1], target.lengths[row : row + 1])
        close(answer(model, Example(source, target))[row], answer(model, Example(alone, one))[0])
        return
    together, single = answer(model, Example(source, target))[row], answer(model, Example(alone, target))[0]
    close(together[:length] if writes == "tags" else together, single)


@every_model
def test_its_weights_are_recorded_and_sum_to_one(reads, core, writes):
    model, example = model_of(reads, core, writes).eval(), example_of(reads, writes)
    if not any(isinstance(module, Read) for module in model.modules()):
        assert (core, writes) in {("recurrent", "tags")} | {("recurrent", "tracks")}
        return
    plain = answer(model, example)
    with listen(model) as recording:
        assert torch.equal(answer(model, example), plain)
    assert recording.names
    for name in recording.names:
        for weights in recording[name]:
            sums = weights.sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_other_writers_are_refused():
    with pytest.raises(TypeError, match=r"writes must be a writer .* but is Linear"):
        compose(nn.Identity(), build_core(CORES["transformer"]), nn.Linear(2, 3))
