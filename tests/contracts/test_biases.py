"""Contract of all biases: tiles, steps and rings, diagonals, sums, rows, dtypes."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Alibi, Bias, RelativeBias, ShawBias, TensorBias
from regard.attention.positions import Positions
from regard.testing import check
from tests.helpers import close

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 3, 5, 7, 11


class BiasCase(NamedTuple):
    build: Callable[[], Bias]
    by_position: bool = True
    """True if it depends on the positions of queries and keys."""
    by_distance: bool = False
    """True if it is constant along diagonals."""


CASES = {
    "given": BiasCase(
        lambda: TensorBias(torch.randn(BATCH, HEADS, QUERIES, KEYS)), by_position=False
    ),
    "given row": BiasCase(lambda: TensorBias(torch.randn(BATCH, 1, KEYS)), by_position=False),
    "alibi": BiasCase(lambda: Alibi(HEADS), by_distance=True),
    "relative": BiasCase(lambda: RelativeBias(HEADS, 8, 5), by_distance=True),
    "relative one side": BiasCase(
        lambda: RelativeBias(HEADS, 5, 6, two_sided=False), by_distance=True
    ),
    "shaw": BiasCase(lambda: ShawBias(DIM, 2)),
    "shaw by head": BiasCase(lambda: ShawBias(DIM, 3, HEADS)),
    "sum": BiasCase(lambda: Alibi(HEADS) + RelativeBias(HEADS, 8, 5), by_distance=True),
    "sum of all": BiasCase(
        lambda: Alibi(HEADS) + ShawBias(DIM, 2) + TensorBias(torch.randn(BATCH, 1, KEYS)),
        by_position=False,
    ),
}
every = pytest.mark.parametrize("name", CASES)
by_position = pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.by_position]
)


def make_bias(name: str, device: torch.device) -> Bias:
    bias = CASES[name].build()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    for part in bias.modules():
        if isinstance(part, TensorBias):
            part.tensor = part.tensor.to(device, torch.float64)
    return bias.to(device, torch.float64)


def make_case(name: str, device: torch.device) -> tuple[Bias, Tensor, Positions]:
    """Return the bias of this name, queries, and the positions of a whole read."""
    return make_bias(name, device), make_queries(device), Positions(QUERIES, KEYS, device)


def make_queries(device: torch.device) -> Tensor:
    return torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64, device=device)


def make_keys(positions: Positions) -> Tensor:
    return torch.randn(BATCH, HEADS, positions.num_keys, DIM, device=positions.device).double()


def materialize_bias(bias: Bias, query: Tensor, positions: Positions) -> Tensor:
    """Return the bias at these positions, expanded to all axes."""
    tensor = align(bias.materialize(query, make_keys(positions), positions), 4)
    return tensor.expand(BATCH, HEADS, positions.num_rows, positions.num_keys)


@by_position
def test_bias_keeps_the_contracts_of_a_part(name):
    check(make_bias(name, torch.device("cpu")), dim=DIM, heads=HEADS)


@every
def test_tile_equals_rows_of_the_full_bias(name, device):
    bias, query, positions = make_case(name, device)
    full = materialize_bias(bias, query, positions)
    tile = materialize_bias(bias, query[:, :, 2:3], positions.tile(2, 3))
    close(tile, full[:, :, 2:3])


@by_position
def test_empty_queries_have_an_empty_bias(name, device):
    bias, query = make_bias(name, device), make_queries(device)
    positions = Positions(QUERIES, KEYS, device).tile(2, 2)
    keys = make_keys(positions)
    assert bias.materialize(query[:, :, :0], keys, positions).shape[-2:] == (0, KEYS)
    positions = Positions(QUERIES, 0, device)
    assert bias.materialize(query, keys[:, :, :0], positions).shape[-2:] == (QUERIES, 0)


@every
@pytest.mark.parametrize(("num_queries", "num_keys"), [(5, 7), (7, 5), (1, 7), (7, 1)])
def test_expanded_diagonals_equal_the_bias(name, num_queries, num_keys, device):
    bias, positions = make_bias(name, device), Positions(num_queries, num_keys, device)
    diagonals = bias.diagonals(positions, torch.float64)
    if not CASES[name].by_distance:
        assert diagonals is None
        return
    assert diagonals.shape == (1, HEADS, num_queries + num_keys - 1)
    spread = torch.stack(
        [diagonals[..., num_queries - 1 - i :][..., :num_keys] for i in range(num_queries)], -2
    )
    query = torch.randn(BATCH, HEADS, num_queries, DIM, dtype=torch.float64, device=device)
    close(bias.materialize(query, make_keys(positions), positions), spread)


@every
def test_diagonals_are_only_for_full_reads_at_default_positions(name, device):
    bias, positions = make_bias(name, device), Positions(QUERIES, KEYS, device)
    assert bias.diagonals(positions.tile(0, 2)) is None
    assert bias.diagonals(positions._replace(start=2)) is None
    assert (
        bias.diagonals(positions._replace(key_positions=torch.arange(KEYS, device=device))) is None
    )


@by_position
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_is_in_the_dtype_of_the_query(name, dtype, device):
    bias, query, positions = make_case(name, device)
    exact = materialize_bias(bias, query, positions)
    materialized = bias.materialize(query.to(dtype), make_keys(positions), positions)
    assert materialized.dtype == dtype
    bound = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    assert (materialized.double() - exact).abs().max() <= bound * exact.abs().max()
    if CASES[name].by_distance:
        assert bias.diagonals(positions, dtype).dtype == dtype


@every
def test_bias_draws_itself(name, device):
    bias = make_bias(name, device)
    query = make_queries(device)
    picture = bias.picture(QUERIES, KEYS, query=query)
    numbers = torch.stack([panel.numbers for panel in picture.panels])
    positions = Positions(QUERIES, KEYS, device)
    table = bias.materialize(query, make_keys(positions), positions)
    table = table.detach().expand(*table.shape[:-2], QUERIES, KEYS)
    close(numbers, table.reshape(-1, QUERIES, KEYS))
