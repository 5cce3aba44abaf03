"""Naive-Bayes classifier: initial scores, padding, gradients."""

import numpy as np
import pytest
import torch

from regard.data.batches import pad
from regard.data.text.labels import LabeledBatch, attach_ratios
from regard.models.build import build_classifier
from regard.models.config import ClassifierConfig, RecurrentConfig
from regard.models.naive_bayes import NaiveBayesClassifier
from regard.models.writers.classes import ClassWriter
from regard.models.writers.labels import LabelWriter
from tests.helpers import close, without_gradient

CONFIG = ClassifierConfig(core=RecurrentConfig(width=12, hidden=14), pool_heads=2, dropout=0)
ROWS = [[4, 5, 6, 7, 8], [9], [4, 10]]
RATIOS = [np.random.default_rng(i).normal(size=(len(row), 2, 3)).astype(np.float32) for i, row in enumerate(ROWS)]


def model() -> NaiveBayesClassifier:
    torch.manual_seed(1)
    classifier = build_classifier(CONFIG, vocab=11, writes=lambda dim: ClassWriter(dim, 3), ratio_kinds=2)
    assert isinstance(classifier, NaiveBayesClassifier)
    return classifier.double().eval()


def test_untrained_classifier_gives_the_sum_of_ratios():
    untrained = model()
    torch.nn.init.ones_(untrained.ratio_scores.scale)
    expected = torch.stack([torch.from_numpy(rows).double().sum((0, 1)) for rows in RATIOS]).softmax(-1)
    close(untrained(attach_ratios(pad(ROWS), RATIOS)).detach(), expected)


def test_rows_are_independent_of_their_batch():
    classifier = model()
    torch.nn.init.normal_(classifier.ratio_scores.query)  # the subwords now have different weights
    batched = classifier(attach_ratios(pad(ROWS), RATIOS))
    for row, (ids, rows) in enumerate(zip(ROWS, RATIOS, strict=True)):
        close(classifier(attach_ratios(pad([ids]), [rows])), batched[row : row + 1])


def test_attention_weights_the_ratios():
    scores = model().ratio_scores
    with torch.no_grad():
        scores.scale.fill_(1)
        scores.query.normal_(std=9)
    items = torch.randn(1, 5, 14, dtype=torch.float64)
    source = attach_ratios(pad([ROWS[0]]), RATIOS[:1])
    weights = (scores.key(items)[0] @ scores.query / 14**0.5).softmax(0)
    expected = 5 * weights @ source.ratios[0].double().sum(1)
    close(scores(source.text._replace(items=items), source.ratios)[0], expected)


def test_every_parameter_has_a_gradient_except_the_keys_while_the_query_is_zero():
    classifier = model()
    torch.nn.init.normal_(classifier.writes.output.weight)  # layers before it have no gradient while it is zero
    batch = LabeledBatch(attach_ratios(pad(ROWS), RATIOS), torch.tensor([2, 0, 1]), (0, 1, 2))
    loss = classifier.loss(batch)
    probabilities = classifier(batch.source)
    close(loss.total.detach(), -probabilities.gather(1, batch.target[:, None]).log().sum().detach())
    loss.total.backward()
    # The bias of the keys adds the same number to all scores.
    assert without_gradient(classifier) == {"ratio_scores.key.weight", "pool.attention.key.bias"}


def test_ratios_need_a_class_writer():
    with pytest.raises(TypeError, match=r"writes must be a ClassWriter, .* got LabelWriter"):
        build_classifier(CONFIG, vocab=11, writes=lambda dim: LabelWriter(dim, 3), ratio_kinds=2)
