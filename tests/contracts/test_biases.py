"""What every bias must hold: in tiles, steps and rings, along diagonals, in a sum, by rows, in any dtype."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Bias, Given
from regard.attention.places import Places
from regard.attention.positional import Alibi, RelativeBias, ShawBias
from tests.helpers import close

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 3, 5, 7, 11


class Case(NamedTuple):
    build: Callable[[], Bias]
    by_place: bool = True
    """Whether it goes by the places of both."""
    by_distance: bool = False
    """Whether it is the same along each diagonal."""


CASES = {
    "given": Case(lambda: Given(torch.randn(BATCH, HEADS, QUERIES, KEYS)), by_place=False),
    "given row": Case(lambda: Given(torch.randn(BATCH, 1, KEYS)), by_place=False),
    "alibi": Case(lambda: Alibi(HEADS), by_distance=True),
    "relative": Case(lambda: RelativeBias(HEADS, 8, 5), by_distance=True),
    "relative one side": Case(lambda: RelativeBias(HEADS, 5, 6, two_sided=False), by_distance=True),
    "shaw": Case(lambda: ShawBias(DIM, 2)),
    "shaw by head": Case(lambda: ShawBias(DIM, 3, HEADS)),
    "sum": Case(lambda: Alibi(HEADS) + RelativeBias(HEADS, 8, 5), by_distance=True),
    "sum of all": Case(lambda: Alibi(HEADS) + ShawBias(DIM, 2) + Given(torch.randn(BATCH, 1, KEYS)), by_place=False),
}
every = pytest.mark.parametrize("name", CASES)
by_place = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_place])


def built(name: str, device: torch.device) -> Bias:
    bias = CASES[name].build()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    for part in bias.modules():
        if isinstance(part, Given):
            part.tensor = part.tensor.to(device, torch.float64)
    return bias.to(device, torch.float64)


def queries(device: torch.device) -> Tensor:
    return torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64, device=device)


def seen(bias: Bias, query: Tensor, places: Places) -> Tensor:
    """The bias of these places, all axes spelled out."""
    tensor = align(bias.see(query, places), 4)
    return tensor.expand(BATCH, HEADS, places.num_rows, places.num_keys)


@every
def test_tile_is_rows_of_the_whole(name, device):
    bias, query, places = built(name, device), queries(device), Places(QUERIES, KEYS, device)
    whole = seen(bias, query, places)
    tiles = [seen(bias, query[:, :, first:last], places.tile(first, last)) for first, last in ((0, 2), (2, 3), (3, 5))]
    close(torch.cat(tiles, 2), whole)


@by_place
def test_no_queries_get_nothing(name, device):
    bias, query = built(name, device), queries(device)
    assert bias.see(query[:, :, :0], Places(QUERIES, KEYS, device).tile(2, 2)).shape[-2:] == (0, KEYS)
    assert bias.see(query, Places(QUERIES, 0, device)).shape[-2:] == (QUERIES, 0)


@by_place
def test_queries_one_at_a_time_over_a_growing_memory_get_what_the_whole_gets(name, device):
    bias, query = built(name, device), queries(device)
    whole = seen(bias, query, Places(QUERIES, KEYS, device))
    for i in range(QUERIES):
        size = KEYS - QUERIES + i + 1
        step = seen(bias, query[:, :, i : i + 1], Places(1, size, device))
        close(step, whole[:, :, i : i + 1, :size])


@by_place
def test_start_may_be_a_number_or_a_tensor(name, device):
    bias, query, places = built(name, device), queries(device), Places(QUERIES, KEYS, device)
    close(seen(bias, query, places._replace(start=KEYS - QUERIES)), seen(bias, query, places))
    for start in (0, 4):
        told = seen(bias, query, places._replace(start=start))
        close(seen(bias, query, places._replace(start=torch.tensor(start, device=device))), told)
        # The same queries at the end of a memory of another size.
        close(seen(bias, query, Places(QUERIES, start + QUERIES, device))[..., :KEYS], told[..., : start + QUERIES])


@by_place
def test_order_of_the_keys_is_the_order_of_the_columns(name, device):
    bias, query, places = built(name, device), queries(device), Places(QUERIES, KEYS, device, start=1)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4], device=device)
    close(seen(bias, query, places._replace(key_places=order)), seen(bias, query, places)[..., order])


@every
@pytest.mark.parametrize(("num_queries", "num_keys"), [(5, 7), (7, 5), (1, 7), (7, 1)])
def test_diagonals_spread_out_are_the_bias(name, num_queries, num_keys, device):
    bias, places = built(name, device), Places(num_queries, num_keys, device)
    diagonals = bias.diagonals(places, torch.float64)
    if not CASES[name].by_distance:
        assert diagonals is None
        return
    assert diagonals.shape == (1, HEADS, num_queries + num_keys - 1)
    spread = torch.stack([diagonals[..., num_queries - 1 - i :][..., :num_keys] for i in range(num_queries)], -2)
    query = torch.randn(BATCH, HEADS, num_queries, DIM, dtype=torch.float64, device=device)
    close(bias.see(query, places), spread)


@every
def test_diagonals_are_only_for_whole_reads_in_their_own_places(name, device):
    bias, places = built(name, device), Places(QUERIES, KEYS, device)
    assert bias.diagonals(places.tile(0, 2)) is None
    assert bias.diagonals(places._replace(start=2)) is None
    assert bias.diagonals(places._replace(key_places=torch.arange(KEYS, device=device))) is None


@every
def test_select_takes_rows(name, device):
    bias, query, places = built(name, device), queries(device), Places(QUERIES, KEYS, device)
    index = torch.tensor([1, 0], device=device)
    close(seen(bias.select(index), query[index], places), seen(bias, query, places)[index])


@by_place
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_is_in_the_dtype_of_the_query(name, dtype, device):
    bias, query, places = built(name, device), queries(device), Places(QUERIES, KEYS, device)
    exact = seen(bias, query, places)
    got = bias.see(query.to(dtype), places)
    assert got.dtype == dtype
    bound = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    assert (got.double() - exact).abs().max() <= bound * exact.abs().max()
    if CASES[name].by_distance:
        assert bias.diagonals(places, dtype).dtype == dtype


@every
def test_bias_draws_itself(name, device):
    bias = built(name, device)
    query = queries(device)
    picture = bias.picture(QUERIES, KEYS, query=query)
    levels = torch.tensor([panel.levels for panel in picture.panels])
    table = bias.see(query, Places(QUERIES, KEYS, device))
    assert len(picture.panels) == table.shape[:-2].numel()
    expected = (table / table.abs().max() * 6).round().long().reshape(len(picture.panels), -1, KEYS) + 6
    assert (levels - expected.cpu()).abs().max() <= 1  # halves may round either way
    assert (levels == expected.cpu()).double().mean() > 0.99
