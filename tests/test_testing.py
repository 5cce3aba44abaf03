"""`regard.testing.check`: a broken contract is named, with the part."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.memory import KeyValueCache
from regard.testing import check

pytestmark = pytest.mark.usefixtures("no_shape_checks")


class FromIndices(regard.Mask):
    """Causal by the numbers of the queries, not by their positions."""

    def materialize(self, positions: regard.Positions) -> Tensor:
        sizes = positions.num_rows, positions.num_keys
        return torch.ones(sizes, dtype=torch.bool).tril()

    def select(self, index: Tensor) -> regard.Mask:
        return self


class ForgetsRows(regard.Mask):
    """Padding that keeps the rows that it began with."""

    def materialize(self, positions: regard.Positions) -> Tensor:
        return positions.key < torch.tensor([7, 3, 5])[:, None, None]

    def select(self, index: Tensor) -> regard.Mask:
        return self


class InOrder(regard.Bias):
    """Bias of the order in which keys lie."""

    def materialize(self, query: Tensor, keys: Tensor, positions: regard.Positions) -> Tensor:
        return keys.sum(-1).cumsum(-1).unsqueeze(-2)


class FirstRow(regard.Score):
    """Scores of the first row for all rows."""

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ keys.mT)[:1].expand(len(query), -1, -1, -1)


class CountsMask(regard.Choice):
    """Weights divided by the number of keys, counted in a mask that may have an axis of size 1."""

    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return torch.sigmoid(scores) / scores.shape[-1]
        return torch.sigmoid(scores) * allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


class NoPosition(regard.PositionalEncoding):
    """Rotation by the place in the call."""

    def rotate(self, vectors: Tensor, start: Any = 0) -> Tensor:
        return vectors * torch.arange(vectors.shape[-2]).unsqueeze(-1)


class Restarts(regard.PositionalEncoding):
    """Adds the place in the call."""

    def add(self, items: Tensor, start: int = 0) -> Tensor:
        return items + torch.arange(items.shape[1]).unsqueeze(-1)


class OfTheCall(regard.PositionalEncoding):
    """Adds the place, as a part of the length of a call that begins at 0."""

    def add(self, items: Tensor, start: int = 0) -> Tensor:
        places = start + torch.arange(items.shape[1]).unsqueeze(-1)
        return items + places / (start + items.shape[1])


class FromSizes(regard.Bias):
    """Bias of the distance by the numbers of queries and keys, which hides what comes later."""

    def materialize(self, query: Tensor, keys: Tensor, positions: regard.Positions) -> Tensor:
        distance = torch.arange(query.shape[-2])[:, None] - torch.arange(keys.shape[-2])
        return (-distance.double()).masked_fill(distance < 0, -torch.inf)


class BiasFromSizes(regard.PositionalEncoding):
    """Positions with a wrong bias."""

    def bias(self, *, two_sided: bool) -> regard.Bias:
        return FromSizes()


class TooFew(regard.Mask):
    """Causal, with an interval that excludes the own position."""

    def materialize(self, positions: regard.Positions) -> Tensor:
        return positions.key <= positions.query

    def interval(self, positions: regard.Positions) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(positions.query), positions.query

    def select(self, index: Tensor) -> regard.Mask:
        return self


class LargeNegative(regard.Choice):
    """Softmax with -1e9 for masked pairs: of a query without a key, the mean of all values."""

    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return (scores if allowed is None else scores.masked_fill(~allowed, -1e9)).softmax(-1)


class Listed(nn.Module):
    """Feed-forward network whose layers are not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(16, 16).double()]

    def forward(self, items: Tensor) -> Tensor:
        return self.layers[0](items)


class Average(nn.Module):
    """Norm by the average of earlier batches, which is not registered."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.mean = torch.zeros(dim)

    def forward(self, items: Tensor) -> Tensor:
        return items - self.mean


class Pair(regard.MultiHead):
    """Keys and values without their mask."""

    def pairs(self, memory: KeyValueCache) -> Any:
        return memory.keys, memory.values


class Narrow(nn.Module):
    """Feed-forward network of one number, which would be added to all of an item."""

    def forward(self, items: Tensor) -> Tensor:
        return items[..., :1]


class Unread(regard.MultiHead):
    """Attention that is right, without its Read."""

    def forward(self, query: Tensor, memory: Any = None, **options: Any) -> Tensor:
        memory_mask = options.pop("memory_mask", None)
        memory = self.memory(query, memory_mask) if memory is None else memory
        queries, _, _ = self.project(query, None)
        heads = regard.attend(queries, memory, score=self.read.score, **options)
        return self.output(self.merge(heads, query))


class OwnScale(regard.MultiHead):
    """Keys divided by their mean over the items of a call."""

    def project(self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None):
        queries, keys, own_values = super().project(query, source, values)
        return queries, None if keys is None else keys - keys.mean(-2, keepdim=True), own_values


class Reversed(regard.MultiHead):
    """Values of the last items for the first."""

    def pairs(self, memory: KeyValueCache) -> KeyValueCache:
        return memory.with_pairs(memory.keys, memory.values.flip(-2))


class AcrossRows(nn.Module):
    """Feed-forward network whose rows depend on one another."""

    def forward(self, items: Tensor) -> Tensor:
        return items + items.mean(0, keepdim=True)


class Ahead(nn.Module):
    """Feed-forward network of the next item."""

    def forward(self, items: Tensor) -> Tensor:
        return items.roll(-1, 1)


def language_model(**parts: Any) -> regard.Model:
    core = regard.Transformer(layers=1, width=16, heads=2, encodes=False, **parts)
    tokens = regard.TokenReader(regard.embedding_table(8, 16))
    return regard.Model(reader=None, core=core, writer=regard.TokenWriter(tokens))


@pytest.mark.parametrize(
    ("part", "contract"),
    [
        (FromIndices(), "Tiles are rows of the whole"),
        (ForgetsRows(), "Selected rows and the interval"),
        (InOrder(), "Keys in another order are columns in that order"),
        (FirstRow(), "Selected rows are rows of the whole"),
        (CountsMask(), "Masks of every shape"),
        (NoPosition(), "Steps equal all items at once"),
        (OfTheCall(), "The shape is kept, and a range"),
        (FromSizes(), "Tiles are rows of the whole"),
        (BiasFromSizes(), "Tiles are rows of the whole"),
        (TooFew(), "Selected rows and the interval"),
        (LargeNegative(), "A query without a key"),
        (AcrossRows(), "Selected rows are rows of the whole"),
        (OwnScale(16, 2), "Steps equal all items at once"),
        (Reversed(16, 2), "Steps equal all items at once"),
        (Restarts(), "The shape is kept, and a range"),
        (language_model(feedforward=AcrossRows), "Rows do not depend on their batch"),
        (language_model(feedforward=Ahead), "Rows do not depend on their batch"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_broken_contract_is_named_with_the_part(part: Any, contract: str) -> None:
    message = f"{type(part).__name__} breaks a contract: {contract}.*: .* differ"
    with pytest.raises(AssertionError, match=message):
        check(part)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (language_model(feedforward=Listed), "Listed.layers holds a Linear that is not registered"),
        (Narrow(), "Narrow breaks a contract: The shape is kept.*got .3, 7, 1."),
        (Average(), "Average.mean holds a Tensor that is not registered"),
        (Unread(16, 2), "Unread breaks a contract: Recording .*: nothing was recorded"),
    ],
)
def test_what_is_not_saved_or_recorded_is_named(part: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(part)


def test_part_and_random_numbers_are_left_as_they_were() -> None:
    layer = regard.MultiHead(16, 2).train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    state = torch.random.get_rng_state()
    check(layer)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert layer.training
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(TypeError, match=r"part must be a Mask, .* or a Model, got str"):
        check("causal")
    with pytest.raises(TypeError, match=r"Pair\.pairs must return memory\.with_pairs"):
        check(Pair(16, 2))
    with pytest.raises(TypeError, match="got SeriesReader"):
        check(regard.SeriesReader(2, 16, window=1))
    classes = regard.Model(
        reader=regard.SeriesReader(2, 16, window=1),
        core=regard.Transformer(layers=1, width=16, heads=2, decodes=False),
        writer=regard.ClassWriter(16, 3),
    )
    with pytest.raises(TypeError, match="batch must be given for a model"):
        check(classes)
    source = regard.Padded(torch.randn(2, 5, 2), torch.tensor([5, 3]))
    check(classes, regard.Batch(source, None))
    core = regard.Transformer(layers=1, width=16, heads=2)
    tokens = regard.TokenWriter(regard.TokenReader(regard.embedding_table(8, 16)))
    captions = regard.Model(reader=regard.SeriesReader(2, 16, window=1), core=core, writer=tokens)
    target = regard.Padded(torch.randint(8, (2, 6)), torch.tensor([6, 4]))
    check(captions, regard.Batch(source, target))
