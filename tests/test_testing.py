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
        (ForgetsRows(), "Selected rows are rows of the whole"),
        (InOrder(), "Keys in another order are columns in that order"),
        (FirstRow(), "Selected rows are rows of the whole"),
        (CountsMask(), "Masks of every shape"),
        (NoPosition(), "Steps are all at once"),
        (OwnScale(16, 2), "Steps are all at once"),
        (Reversed(16, 2), "Steps are all at once"),
        (Restarts(), "Items at a later start"),
        (language_model(feedforward=AcrossRows), "Rows do not depend on their batch"),
        (language_model(feedforward=Ahead), "Rows do not depend on their batch"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_broken_contract_is_named_with_the_part(part: Any, contract: str) -> None:
    message = f"{type(part).__name__} breaks a contract: {contract}.*: .* differ"
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
    with pytest.raises(TypeError, match="part must be a Mask or a module, got str"):
        check("causal")
    classes = regard.Model(
        reader=regard.SeriesReader(2, 16, window=1),
        core=regard.Transformer(layers=1, width=16, heads=2, decodes=False),
        writer=regard.ClassWriter(16, 3),
    )
    with pytest.raises(TypeError, match="batch must be given for a model"):
        check(classes)
    source = regard.Padded(torch.randn(2, 5, 2), torch.tensor([5, 3]))
    check(classes, regard.Batch(source, None))
