"""Models of every core and writer, and rows of which every second one has nothing to predict.

`tests.training.together` compares the gradients of two processes with those of one.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from regard.attention.masks import Padded
from regard.data.batches import Batch
from regard.data.elements import LabeledRegions
from regard.layers.dropout import Dropout
from regard.models.build import build_core
from regard.models.model import Model
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import NONE
from regard.training.distribution import Replica, World
from regard.training.seeds import derive_seed
from regard.training.step import add_gradients
from regard.training.tensors import is_sharded
from tests.helpers import close
from tests.models.test_grid import CORES, READERS, VOCAB, WIDTH, WRITERS, make_model

ROWS = 4
NAMES = [*itertools.product(CORES, [*WRITERS, "proposals", "language"])]
LABELS = torch.tensor([[0, 2], [-1, -1], [1, -1], [-1, -1]])
SHARDS: tuple[Literal["ddp", "fsdp"], ...] = ("ddp", "fsdp")
SEED = 7


def model_of(core: str, writer: str, *, dropout: float = 0.0) -> Model:
    """Return a model in float64, with queries from proposals, or without a reader."""
    torch.manual_seed(1)
    if writer == "proposals":
        reader = READERS["images"].make(WIDTH)
        built = build_core(CORES[core], in_order=False)
        head = SetWriter(
            WIDTH,
            3,
            axes=2,
            num_queries=4,
            blocks=built.set_outputs or 1,
            centers=reader.centers,
            memory_dim=built.memory_dim,
        )
        model = Model(reader=reader, core=built, writer=head)
    elif writer == "language":
        built = build_core(CORES[core], encodes=False)
        model = Model(reader=None, core=built, writer=WRITERS["tokens"].make(None, built))
    else:
        model = make_model("tokens", core, writer)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = dropout
    return model.double().train()


def _pad(rows: Sequence[int], lengths: Sequence[int]) -> Padded:
    ids = torch.randint(4, VOCAB, (ROWS, max(lengths)))[list(rows)]
    own = torch.tensor(lengths)[list(rows)]
    return Padded(ids[:, : int(own.max())], own)


class Rows:
    """Batches of rows; odd ones have the shortest source, and no target."""

    def __init__(self, writer: str):
        self.writer = writer

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(range(ROWS))]

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Any, Any]:
        torch.manual_seed(1)
        rows = list(indices)
        source: Any = _pad(rows, (5, 1, 3, 1))
        if self.writer == "proposals":
            source = torch.rand(ROWS, 2, 9, 6, dtype=torch.float64)[rows]
        if self.writer in ("sets", "proposals"):
            count = int((LABELS[rows] >= 0).sum(1).max())
            sides = 2 if self.writer == "sets" else 4
            regions = (torch.rand(ROWS, 2, sides) * 0.5 + 0.2).double()
            target: Any = LabeledRegions(LABELS[rows, :count], regions[rows, :count])
        elif self.writer in ("tokens", "grid", "language"):
            source = None if self.writer == "language" else source
            target = _pad(rows, (6, 1, 6, 1))
        elif self.writer == "tags":
            target = torch.randint(3, (ROWS, source.items.shape[1]))[rows]
            odd = torch.tensor(rows) % 2 == 1
            target[odd] = NONE
        else:
            whole = WRITERS[self.writer].target(READERS["tokens"].lengths)
            target = torch.cat((whole, whole[:1]))[rows]
            target = target.double() if target.is_floating_point() else target
        return Batch(source, target, tuple(rows))


def expected_gradients(model: nn.Module, batches: Rows, parts: Sequence[tuple[int, ...]]) -> None:
    """Add the gradients of parts of a batch, each with the random numbers of its process."""
    whole: Any = model
    own = [batches.collate(0, part) for part in parts]
    count = sum(whole.count(batch) for batch in own)
    for rank, batch in enumerate(own):
        torch.manual_seed(derive_seed(SEED, 1, 0, rank))
        (whole.loss(batch).total / count).backward()


def comparisons(*, every: bool) -> list[tuple[str, str, str, float]]:
    """Return (core, writer, shard, dropout) of all comparisons.

    every: each model in all ways; by default a writer's model with one core by ddp, and with the
    next by fsdp, with dropout for every second writer.
    """
    if every:
        return [(*names, *way) for names in NAMES for way in itertools.product(SHARDS, (0.0, 0.3))]
    chosen = []
    for number, writer in enumerate(dict.fromkeys(writer for _, writer in NAMES)):
        for place, shard in enumerate(SHARDS):
            core = [*CORES][(number + place) % len(CORES)]
            chosen.append((core, writer, shard, 0.3 * (number % 2)))
    return chosen


def compare_gradients(world: World, *, every: bool) -> int:
    """Compare gradients of all processes with those of one; return the number of comparisons."""
    chosen = comparisons(every=every)
    for core, writer, shard, dropout in chosen:
        batches, (rows,) = Rows(writer), Rows(writer).plan(0)
        parts = [rows[::2], rows[1::2]] if dropout else [rows]
        model = model_of(core, writer, dropout=dropout)
        single = copy.deepcopy(model)
        expected_gradients(single, batches, parts)
        replica = Replica(model, world, shard=shard)
        options = {"epoch": 0, "step": 1, "seed": SEED, "precision": "float32"}
        add_gradients(replica, batches, [rows], **options)
        pairs = zip(replica.model.named_parameters(), single.parameters(), strict=True)
        for (name, value), other in pairs:
            assert value.grad is not None, (core, writer, shard, name)
            assert other.grad is not None, (core, writer, name)
            found = value.grad.full_tensor() if is_sharded(value.grad) else value.grad
            close(found, other.grad)
    return len(chosen)
