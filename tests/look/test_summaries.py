"""Summaries of heads, by hand and by their formulas."""

import math

import pytest
import torch

from regard.look.maps import AttentionMap, SampleMaps
from regard.look.measures import MAX_ROLLOUT, distance, entropy, summaries, with_rollout
from regard.look.sample import Axis, Sample


def seen(layers: dict[tuple[str, int], torch.Tensor], *, size: int = 3) -> SampleMaps:
    axes = {"source": Axis.from_count(size), "queries": Axis.from_count(1), "output": Axis.from_count(size)}
    maps = []
    for (kind, layer), weights in layers.items():
        queries = {"pooling": "queries", "cross": "output"}.get(kind, "source")
        heads = tuple(map(str, range(len(weights))))
        maps.append(
            AttentionMap(
                key=f"{kind}{layer}", name=kind, kind=kind, layer=layer, queries=queries, keys="source", heads=heads,
                load=lambda head, weights=weights: weights[head],
            )
        )  # fmt: skip
    return SampleMaps(sample=Sample(axes=axes), maps=tuple(maps))


def test_entropy_is_zero_for_one_key_and_ln_n_for_uniform_weights():
    assert entropy(torch.eye(4)) == 0
    assert entropy(torch.full((2, 5), 0.2)) == pytest.approx(math.log(5))
    assert entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx(math.log(2) / 2)


def test_distance_counts_entries_between():
    assert distance(torch.eye(4)) == 0
    assert distance(torch.tensor([[0.0, 0, 1], [1, 0, 0], [0.5, 0, 0.5]])) == pytest.approx((2 + 1 + 1) / 3)


def test_fully_masked_queries_do_not_count():
    rows = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    assert entropy(rows) == pytest.approx(math.log(2))
    assert distance(rows) == pytest.approx(0.5)
    assert entropy(torch.zeros(2, 2)) is distance(torch.zeros(2, 2)) is None


def test_distance_is_computed_only_within_one_sequence():
    weights = torch.rand(2, 3, 3).softmax(-1)
    shown = seen({("encoder self", 1): weights, ("cross", 1): weights})
    own, cross = map(summaries, shown.maps)
    assert own == {
        "entropy": [entropy(head) for head in weights],
        "distance": [distance(head) for head in weights],
    }
    assert set(cross) == {"entropy"}


def test_rollout_by_hand():
    first = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 0, 1]], [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]])
    second = torch.tensor([[[0.0, 1, 0], [0, 1, 0], [0, 0, 1]]])
    pool = torch.tensor([[[0.0, 0.5, 0.5]]])
    shown = with_rollout(seen({("encoder self", 1): first, ("encoder self", 2): second, ("pooling", 1): pool}))
    one, two, pooled = (found.weights[0] for found in shown.maps if found.measure == "rollout")
    # (mean of heads + identity) / 2: the second entry reads the first by 1/4
    torch.testing.assert_close(one, torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]]))
    # the first entry now reads itself by 1/2 and the second by 1/2, of which 1/4 is the first
    torch.testing.assert_close(two, torch.tensor([[0.625, 0.375, 0], [0.25, 0.75, 0], [0, 0, 1]]))
    torch.testing.assert_close(pooled, torch.tensor([[0.125, 0.375, 0.5]]))


def test_rollout_rows_sum_to_one():
    layers = {("encoder self", layer): torch.randn(4, 3, 3).softmax(-1) for layer in (1, 2, 3)}
    shown = with_rollout(seen(layers))
    for one in shown.maps:
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(len(one.heads), 3))
    assert sum(one.measure == "rollout" for one in shown.maps) == 3


def test_rollout_is_left_out_where_it_is_undefined():
    layer = torch.eye(3)[None]
    assert len(with_rollout(seen({("encoder self", 2): layer})).maps) == 1  # the first layer is missing
    assert len(with_rollout(seen({("cross", 1): layer})).maps) == 1
    many = seen({("encoder self", 1): layer}, size=MAX_ROLLOUT + 1)
    assert with_rollout(many).maps == many.maps
