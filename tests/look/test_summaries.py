"""Summaries of heads, by hand and by their formulas."""

import math

import pytest
import torch

from regard.look.maps import SampleMaps
from regard.look.measures import MAX_ROLLOUT, distance, entropy, summaries, with_rollout
from regard.look.sample import Axis
from tests.look.maps import map_of, sample_maps_of


def layers_of(layers: dict[tuple[str, int], torch.Tensor], *, size: int = 3) -> SampleMaps:
    names = {"source": size, "queries": 1, "output": size}
    axes = {name: Axis.from_count(count) for name, count in names.items()}
    maps = []
    for (kind, layer), weights in layers.items():
        queries = {"pooling": "queries", "cross": "output"}.get(kind, "source")
        maps.append(map_of(weights, kind, queries, layer=layer))
    return sample_maps_of("", axes, *maps)


def test_entropy_is_zero_for_one_key_and_ln_n_for_uniform_weights():
    assert entropy(torch.eye(4)) == 0
    assert entropy(torch.full((2, 5), 0.2)) == pytest.approx(math.log(5))
    assert entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx(math.log(2) / 2)


def test_distance_counts_entries_between():
    assert distance(torch.eye(4)) == 0
    weights = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0.5, 0, 0.5]])
    assert distance(weights) == pytest.approx((2 + 1 + 1) / 3)


def test_fully_masked_queries_do_not_count():
    rows = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    assert entropy(rows) == pytest.approx(math.log(2))
    assert distance(rows) == pytest.approx(0.5)
    assert entropy(torch.zeros(2, 2)) is distance(torch.zeros(2, 2)) is None


def test_distance_is_computed_only_within_one_sequence():
    weights = torch.rand(2, 3, 3).softmax(-1)
    shown = layers_of({("encoder self", 1): weights, ("cross", 1): weights})
    own, cross = map(summaries, shown.maps)
    assert own["entropy"] == cross["entropy"]
    assert own["entropy"] == pytest.approx([entropy(head) for head in weights])
    assert own["distance"] == pytest.approx([distance(head) for head in weights])
    assert set(cross) == {"entropy"}


def test_rollout_by_hand():
    first = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 0, 1]], [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]])
    second = torch.tensor([[[0.0, 1, 0], [0, 1, 0], [0, 0, 1]]])
    pool = torch.tensor([[[0.0, 0.5, 0.5]]])
    layers = {("encoder self", 1): first, ("encoder self", 2): second, ("pooling", 1): pool}
    maps = [own for own in with_rollout(layers_of(layers)).maps if own.measure == "rollout"]
    first_rollout, second_rollout, pooled = (own.weights[0] for own in maps)
    # (mean of heads + identity) / 2: the second entry attends to the first with 1/4
    torch.testing.assert_close(first_rollout, torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]]))
    # the first entry attends to itself and to the second with 1/2 each; 1/4 of the second is the
    # first
    expected = torch.tensor([[0.625, 0.375, 0], [0.25, 0.75, 0], [0, 0, 1]])
    torch.testing.assert_close(second_rollout, expected)
    torch.testing.assert_close(pooled, torch.tensor([[0.125, 0.375, 0.5]]))


def test_rollout_is_left_out_where_it_is_undefined():
    layer = torch.eye(3)[None]
    for only in (("encoder self", 2), ("cross", 1)):
        assert len(with_rollout(layers_of({only: layer})).maps) == 1
    many = layers_of({("encoder self", 1): layer}, size=MAX_ROLLOUT + 1)
    assert with_rollout(many).maps == many.maps
