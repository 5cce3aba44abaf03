"""A model that writes a grid: places by hand, one step at a time as all at once, for both cores."""

import pytest
import torch

from regard.attention.masks import Padded
from regard.data.batches import Batch, pad
from regard.models.build import build
from regard.models.config import ModelConfig, RecurrentConfig, TransformerConfig
from regard.models.grid import GridModel, Places
from tests.helpers import close

GRID = (2, 3)
CORES = {
    "transformer": TransformerConfig(layers=1, width=12, heads=2, feedforward=16),
    "recurrent": RecurrentConfig(width=12, hidden=10, attention_hidden=7),
}


def made(core: str) -> GridModel:
    torch.manual_seed(1)
    model = build(ModelConfig(core=CORES[core], tie="target", dropout=0.0), source_vocab=9, target_vocab=11, grid=GRID)
    assert isinstance(model, GridModel)
    return model.double().eval()


def sides() -> tuple[Padded, Padded]:
    draw = torch.Generator().manual_seed(3)
    codes = torch.randint(4, 11, (2, 6), generator=draw).tolist()
    return pad([[5, 6, 7, 3], [8, 3]]), pad([[2, *row, 3] for row in codes])


def test_places_are_rows_plus_columns_and_an_end():
    places = Places(GRID, 5)
    found = places()
    assert found.shape == (7, 5)
    close(found[4], places.rows[1] + places.columns[1])
    close(found[2], places.rows[0] + places.columns[2])
    close(found[6:], places.end)


@pytest.mark.parametrize("core", CORES)
def test_one_step_at_a_time_equals_all_at_once(core):
    model, (source, target) = made(core), sides()
    whole, state = model(source, target), model.start(source)
    for time in range(7):
        logits, state = model.step(target.items[:, time], state)
        close(logits, whole[:, time])
    turned = state.select(torch.tensor([1, 0]))
    assert turned.place == state.place == 7


@pytest.mark.parametrize("core", CORES)
def test_places_matter_and_learn(core):
    model, (source, target) = made(core), sides()
    before = model(source, target).detach()
    model.loss(Batch(source, target, (0, 1))).total.backward()
    for value in (model.places.rows, model.places.columns, model.places.end):
        assert value.grad is not None
        assert float(value.grad.abs().sum()) > 0
    with torch.no_grad():
        model.places.columns[2, :5] += 1.0  # not all alike: norms would take that out
    after = model(source, target).detach()
    close(before[:, :2], after[:, :2])
    assert float((before[:, 2] - after[:, 2]).abs().max()) > 1e-3
