"""Positions of queries and keys, and their tiles."""

import torch

from regard.attention.positions import Positions

CPU = torch.device("cpu")


def test_last_query_is_at_the_last_key():
    positions = Positions(2, 5, CPU)
    assert positions.query.tolist() == [[3], [4]]
    assert positions.key.tolist() == [0, 1, 2, 3, 4]
    assert positions.is_aligned
    assert Positions(3, 2, CPU).query.tolist() == [[-1], [0], [1]]


def test_start_and_key_positions_may_be_given():
    positions = Positions(2, 3, CPU, start=7, key_positions=torch.tensor([8, -1, 7]))
    assert positions.query.tolist() == [[7], [8]]
    assert positions.key.tolist() == [8, -1, 7]
    assert not positions.is_aligned
    assert not Positions(2, 3, CPU, start=1).is_aligned
    assert not Positions(2, 3, CPU, key_positions=torch.arange(3)).is_aligned


def test_start_may_be_a_tensor():
    positions = Positions(3, 5, CPU, start=torch.tensor(4))
    assert positions.query.tolist() == [[4], [5], [6]]
    assert positions.tile(1, 3).query.tolist() == [[5], [6]]
    assert int(positions.tile(1, 3).first) == 5


def test_tile_keeps_the_positions_of_its_rows():
    positions = Positions(5, 7, CPU)
    tile = positions.tile(1, 3)
    assert (tile.num_rows, positions.num_rows) == (2, 5)
    assert torch.equal(tile.query, positions.query[1:3])
    assert torch.equal(tile.key, positions.key)
    assert tile.is_aligned


def test_rows_of_a_tensor_are_those_of_the_tile():
    tensor = torch.arange(30).view(2, 5, 3)
    assert torch.equal(Positions(5, 3, CPU).tile(1, 3).rows_of(tensor), tensor[:, 1:3])
    assert Positions(5, 3, CPU).tile(1, 3).rows_of(tensor[:, :1]).shape == (2, 1, 3)
    assert Positions(5, 3, CPU).rows_of(tensor) is tensor
