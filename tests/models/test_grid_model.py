"""Grid model: positions by hand, and steps equal to forward, for all cores."""

import pytest
import torch

from regard.attention.masks import Padded
from regard.data.batches import PairBatch, pad
from regard.layers.positions.grid import GridPositions
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.model import Model
from tests.helpers import close

GRID = (2, 3)
CORES = {
    "transformer": TransformerConfig(layers=1, width=12, heads=2, feedforward=16),
    "recurrent": RecurrentConfig(width=12, hidden=10, attention_hidden=7),
}


def make_model(core: str) -> Model:
    torch.manual_seed(1)
    config = ModelConfig(core=CORES[core], tie="target", dropout=0.0)
    return build(config, source_vocab=9, target_vocab=11, grid=GRID).double().eval()


def make_source_and_target() -> tuple[Padded, Padded]:
    draw = torch.Generator().manual_seed(3)
    codes = torch.randint(4, 11, (2, 6), generator=draw).tolist()
    return pad([[5, 6, 7, 3], [8, 3]]), pad([[2, *row, 3] for row in codes])


def test_positions_are_rows_plus_columns_and_an_end():
    positions = GridPositions(GRID, 5)
    vectors = positions.vectors()
    assert vectors.shape == (7, 5)
    close(vectors[4], positions.rows[1] + positions.columns[1])
    close(vectors[2], positions.rows[0] + positions.columns[2])
    close(vectors[6:], positions.end)


@pytest.mark.parametrize("core", CORES)
def test_positions_change_the_output_and_have_gradients(core):
    model, (source, target) = make_model(core), make_source_and_target()
    before = model(source, target).detach()
    model.loss(PairBatch(source, target, (0, 1))).total.backward()
    positions = model.writer.positions
    for value in (positions.rows, positions.columns, positions.end):
        assert value.grad is not None
        assert float(value.grad.abs().sum()) > 0
    with torch.no_grad():
        positions.columns[2, :5] += 1.0  # not all equal, since norms would remove that
    after = model(source, target).detach()
    close(before[:, :2], after[:, :2])
    assert float((before[:, 2] - after[:, 2]).abs().max()) > 1e-3
