"""Places: where queries and keys stand, and their tiles."""

import torch

from regard.attention.places import Places

CPU = torch.device("cpu")


def test_last_query_stands_at_the_last_key():
    places = Places(2, 5, CPU)
    assert places.query.tolist() == [[3], [4]]
    assert places.key.tolist() == [0, 1, 2, 3, 4]
    assert places.aligned
    assert Places(3, 2, CPU).query.tolist() == [[-1], [0], [1]]


def test_start_and_places_of_keys_may_be_told():
    places = Places(2, 3, CPU, start=7, key_places=torch.tensor([8, -1, 7]))
    assert places.query.tolist() == [[7], [8]]
    assert places.key.tolist() == [8, -1, 7]
    assert not places.aligned
    assert not Places(2, 3, CPU, start=1).aligned
    assert not Places(2, 3, CPU, key_places=torch.arange(3)).aligned


def test_start_may_be_a_tensor():
    places = Places(3, 5, CPU, start=torch.tensor(4))
    assert places.query.tolist() == [[4], [5], [6]]
    assert places.tile(1, 3).query.tolist() == [[5], [6]]
    assert int(places.tile(1, 3).first) == 5


def test_tile_keeps_the_places_of_its_rows():
    places = Places(5, 7, CPU)
    tile = places.tile(1, 3)
    assert (tile.num_rows, places.num_rows) == (2, 5)
    assert torch.equal(tile.query, places.query[1:3])
    assert torch.equal(tile.key, places.key)
    assert tile.aligned


def test_rows_of_a_tensor_are_those_of_the_tile():
    tensor = torch.arange(30).view(2, 5, 3)
    assert torch.equal(Places(5, 3, CPU).tile(1, 3).rows_of(tensor), tensor[:, 1:3])
    assert Places(5, 3, CPU).tile(1, 3).rows_of(tensor[:, :1]).shape == (2, 1, 3)
    assert Places(5, 3, CPU).rows_of(tensor) is tensor
