"""Contributions to scores of models with a vector as output: their sum, and their items."""

import pytest
import torch
from torch import nn

from regard.attention.choices import Hard, SinkSoft, Soft, Sparse, TopK
from regard.attention.masks import Padded, Unpadded
from regard.data.batches import pad
from regard.layers.norms import RMSNorm
from regard.layers.pool import (
    AttentionPooling,
    ClassToken,
    FirstItem,
    LastItem,
    MeanPooling,
    PooledTerms,
)
from regard.models.build import build_classifier, build_core, build_token_reader
from regard.models.config import TextClassifierConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.model import Model
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.vector import NoTermsError, VectorWriter
from tests.helpers import close

TEXTS = [[4, 5, 6, 7, 8], [9], [4, 10]]
WRITERS = {
    "classes": lambda dim, pool: ClassWriter(dim, 3, pool=pool),
    "without norm": lambda dim, pool: ClassWriter(dim, 3, pool=pool, norm=False),
    "labels": lambda dim, pool: LabelWriter(dim, 2, pool=pool),
    "numbers": lambda dim, pool: NumberWriter(
        dim, means=(3.0, -1.0), deviations=(2.0, 0.5), pool=pool
    ),
}
POOLS = {
    "one head": lambda dim: AttentionPooling(dim, num_heads=1),
    "four heads": lambda dim: AttentionPooling(dim, num_heads=4),
    "hard": lambda dim: AttentionPooling(dim, num_heads=2, choice=Hard()),
    "top k": lambda dim: AttentionPooling(dim, num_heads=2, choice=TopK(2)),
    "sparse": lambda dim: AttentionPooling(dim, num_heads=2, choice=Sparse()),
    "sharp": lambda dim: AttentionPooling(dim, num_heads=2, choice=Soft(4.0)),
    "sink": lambda dim: AttentionPooling(dim, num_heads=2, choice=SinkSoft(2)),
    "mean": lambda _dim: MeanPooling(),
    "last": lambda _dim: LastItem(),
    "last of two directions": lambda _dim: LastItem(directions=2),
    "class token": ClassToken,
    "class token and mean": lambda dim: ClassToken(dim, also="mean"),
    "two tokens": lambda dim: ClassToken(dim, distillation=True, also="distillation"),
    "first": lambda _dim: FirstItem(),
}


CORE = build_core(TransformerConfig(width=4, layers=1, feedforward=4), dropout=0, decodes=False)


def model(pool: str, writer: str = "classes") -> Model:
    torch.manual_seed(3)
    core = TransformerConfig(width=16, layers=1, feedforward=16)
    if pool == "last of two directions":
        core = RecurrentConfig(width=16, hidden=16)
    config = TextClassifierConfig(core=core, dropout=0)
    classifier = build_classifier(
        config,
        build_token_reader(config, 12),
        lambda dim, _pool: WRITERS[writer](dim, POOLS[pool](dim)),
    )
    for parameter in classifier.writer.parameters():
        nn.init.normal_(parameter, std=0.7)  # scales, shifts and biases that matter
    return classifier.double().eval()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("pool", POOLS)
def test_contributions_sum_to_the_scores(pool: str, writer: str):
    classifier = model(pool, writer)
    encoded = classifier.encoder(pad(TEXTS))
    scores = classifier.writer.scores(classifier.writer.pool(encoded)).detach()
    weights = torch.randn(4, scores.shape[1], dtype=torch.float64)
    found = classifier.writer.explain(classifier.core, encoded, weights)
    assert found.terms.shape == (3, 4, len(found.parts), encoded.items.shape[1])
    close(found.total.detach(), scores @ weights.T)
    for row, count in enumerate(encoded.lengths.tolist()):
        assert not found.terms[row, ..., count:].any()


@pytest.mark.parametrize("pool", ["four heads", "mean", "last of two directions", "class token"])
def test_a_contribution_is_what_a_change_of_its_term_changes(pool: str):
    """At fixed statistics of the norm, the derivative in a term's factor is its contribution."""
    classifier = model(pool)
    writer, core = classifier.writer, classifier.core
    items = Padded(torch.randn(1, 5, writer.dim, dtype=torch.float64), torch.tensor([5]))
    found = writer.explain(core, items, torch.eye(3, dtype=torch.float64))
    pooled = writer.pool.decompose(items)
    vector = writer.pool(items)
    deviation = (vector.var(unbiased=False) + writer.norm.eps).sqrt()

    def scores(changed: torch.Tensor) -> torch.Tensor:
        # The mean is linear in the vector; the deviation is held.
        normal = (changed - changed.mean()) / deviation
        return writer.output(normal * writer.norm.weight + writer.norm.bias)[0]

    close(scores(vector), writer.scores(vector)[0])
    for part in range(len(found.parts)):
        for item in range(5):
            without = scores(vector - pooled.terms[:, part, item])
            close(scores(vector) - without, found.terms[0, :, part, item])


def test_mean_by_hand():
    writer = ClassWriter(2, 2, pool=MeanPooling()).double().eval()
    with torch.no_grad():
        writer.output.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        writer.output.bias.copy_(torch.tensor([0.5, 0.0]))
    items = Padded(torch.tensor([[[6.0, 0.0], [0.0, 2.0]]], dtype=torch.float64), torch.tensor([2]))
    found = writer.explain(CORE, items, torch.tensor([[1.0, -1.0]], dtype=torch.float64))
    # The vector is (3, 1): mean 2, deviation 1. g = (1, -1), the terms are (3, 0) and (0, 1).
    expected = torch.tensor([3.0, -1.0], dtype=torch.float64) / (1 + writer.norm.eps) ** 0.5
    close(found.terms[0, 0, 0], expected)
    close(found.bias[0, 0], torch.tensor(0.5, dtype=torch.float64))


def test_last_state_of_two_directions_is_that_of_the_last_item_and_of_the_first():
    states = torch.arange(1.0, 25.0).view(2, 3, 4)
    terms = LastItem(directions=2).decompose(Padded(states, torch.tensor([3, 2]))).terms[:, 0]
    assert terms[0].tolist() == [[0, 0, 3, 4], [0, 0, 0, 0], [9, 10, 0, 0]]
    assert terms[1].tolist() == [[0, 0, 15, 16], [17, 18, 0, 0], [0, 0, 0, 0]]


class Maximum(nn.Module):
    def forward(self, items: Padded) -> torch.Tensor:
        return items.items.amax(1)


class Wrong(MeanPooling):
    def decompose(self, items: Padded) -> PooledTerms:
        terms = super().decompose(items)
        return terms._replace(terms=2 * terms.terms)


class Cooled(ClassWriter):
    def scores(self, vector: torch.Tensor) -> torch.Tensor:
        return super().scores(vector) / 2


class Doubled(ClassWriter):
    def scores(self, vector: torch.Tensor) -> torch.Tensor:
        return super().scores(vector).repeat(1, 2)


def explain(writer: VectorWriter) -> None:
    writer.eval().explain(CORE, Unpadded.of(torch.randn(1, 3, writer.dim)), torch.eye(2))


def test_other_modules_are_refused():
    with pytest.raises(NoTermsError, match="the pool Maximum has no method `decompose`"):
        explain(ClassWriter(4, 2, pool=Maximum()))
    with pytest.raises(NoTermsError, match="the terms do not sum to the scores"):
        explain(ClassWriter(4, 2, pool=Wrong()))
    with pytest.raises(NoTermsError, match="the terms do not sum to the scores"):
        explain(Cooled(4, 2, pool=MeanPooling()))
    with pytest.raises(NoTermsError, match="the writer has 1 scores for 2 answers"):
        explain(ClassWriter(4, 1, pool=MeanPooling()))
    with pytest.raises(NoTermsError, match="`scores` returns 4 for 2 answers"):
        explain(Doubled(4, 2, pool=MeanPooling()))
    other = ClassWriter(4, 2, pool=MeanPooling())
    other.norm = RMSNorm(4)
    for writer in (other, ClassWriter(4, 2, pool=MeanPooling(), head="tanh")):
        with pytest.raises(NoTermsError, match="not a LayerNorm and a Linear"):
            explain(writer)
