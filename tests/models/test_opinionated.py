"""A classifier with opinions: at first they count alike, padding says nothing, everything learns."""

import numpy as np
import pytest
import torch

from regard.data.batches import pad
from regard.data.labeled import LabeledBatch, opined
from regard.models.build import build_classifier
from regard.models.config import ClassifierConfig, RecurrentConfig
from regard.models.opinionated import Opinionated
from regard.models.writes.classes import ClassWriter
from regard.models.writes.labels import LabelWriter
from tests.helpers import close

CONFIG = ClassifierConfig(core=RecurrentConfig(width=12, hidden=14), pool_heads=2, dropout=0)
ROWS = [[4, 5, 6, 7, 8], [9], [4, 10]]
OPINIONS = [np.random.default_rng(i).normal(size=(len(row), 2, 3)).astype(np.float32) for i, row in enumerate(ROWS)]


def model() -> Opinionated:
    torch.manual_seed(1)
    made = build_classifier(CONFIG, vocab=11, writes=lambda dim: ClassWriter(dim, 3), opinions=2)
    assert isinstance(made, Opinionated)
    return made.double().eval()


def test_fresh_network_gives_the_sum_of_opinions():
    silent = model()
    torch.nn.init.ones_(silent.sum.scale)
    wanted = torch.stack([torch.from_numpy(rows).double().sum((0, 1)) for rows in OPINIONS]).softmax(-1)
    close(silent(opined(pad(ROWS), OPINIONS)).detach(), wanted)


def test_each_row_is_what_it_is_alone():
    whole = model()
    torch.nn.init.normal_(whole.sum.query)  # the pieces now count unlike
    together = whole(opined(pad(ROWS), OPINIONS))
    for row, (ids, rows) in enumerate(zip(ROWS, OPINIONS, strict=True)):
        close(whole(opined(pad([ids]), [rows])), together[row : row + 1])


def test_attention_decides_which_opinions_count():
    one = model().sum
    with torch.no_grad():
        one.scale.fill_(1)
        one.query.normal_(std=9)
    items = torch.randn(1, 5, 14, dtype=torch.float64)
    source = opined(pad([ROWS[0]]), OPINIONS[:1])
    weights = (one.key(items)[0] @ one.query / 14**0.5).softmax(0)
    wanted = 5 * weights @ source.opinions[0].double().sum(1)
    close(one(source.text._replace(items=items), source.opinions)[0], wanted)


def test_every_parameter_learns_but_the_keys_which_wait_for_the_query():
    whole = model()
    torch.nn.init.normal_(whole.writes.output.weight)  # nothing behind it learns while it is nought
    batch = LabeledBatch(opined(pad(ROWS), OPINIONS), torch.tensor([2, 0, 1]), (0, 1, 2))
    loss = whole.loss(batch)
    found = whole(batch.source)
    close(loss.total.detach(), -found.gather(1, batch.target[:, None]).log().sum().detach())
    loss.total.backward()
    still = {name for name, value in whole.named_parameters() if value.grad is None or not value.grad.any()}
    assert still <= {"sum.key.weight", "pool.attention.key.bias"}  # the latter adds the same to all scores


def test_opinions_are_of_classes():
    with pytest.raises(TypeError, match="opinions are of classes, but what is written is LabelWriter"):
        build_classifier(CONFIG, vocab=11, writes=lambda dim: LabelWriter(dim, 3), opinions=2)
