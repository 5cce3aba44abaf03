"""Regions by hand: overlaps in one and two axes, moves that stay inside, and matching against every assignment."""

import itertools

import pytest
import torch

from regard.models.regions import RegionEmbedding, corners, moved, overlaps
from regard.models.writes.matching import aligned, distinct, one_to_one
from tests.helpers import close


def test_overlaps_by_hand():
    # [0, 4] and [2, 6] in time: both 2, either 6, hull 6.
    iou, giou = overlaps(torch.tensor([2.0, 4.0]), torch.tensor([4.0, 4.0]))
    close(iou, torch.tensor(2 / 6))
    close(giou, torch.tensor(2 / 6))
    # Squares [0, 2] x [0, 2] and [1, 3] x [1, 3]: both 1, either 7, hull 9.
    iou, giou = overlaps(torch.tensor([1.0, 1, 2, 2]), torch.tensor([2.0, 2, 2, 2]))
    close(iou, torch.tensor(1 / 7))
    close(giou, torch.tensor(1 / 7 - 2 / 9))
    # Apart: nothing in common, and the farther the less.
    near, far = (overlaps(torch.tensor([0.0, 1.0]), torch.tensor([c, 1.0]))[1] for c in (2.0, 9.0))
    close(near, torch.tensor(-1 / 3))
    assert far < near


def test_corners_and_moves():
    first, last = corners(torch.tensor([0.5, 0.2, 0.4, 0.2]))
    close(first, torch.tensor([0.3, 0.1]))
    close(last, torch.tensor([0.7, 0.3]))
    regions = torch.rand(5, 4)
    close(moved(regions, torch.zeros(5, 4)), regions.clamp(1e-4, 1 - 1e-4))
    assert moved(regions, torch.full((5, 4), 50.0)).max() <= 1
    assert moved(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0])).isfinite().all()


def test_regions_far_apart_and_near_have_different_embeddings():
    torch.manual_seed(1)
    embed = RegionEmbedding(2, 16)
    a, near, far = embed(torch.tensor([[0.2, 0.2, 0.1, 0.1], [0.201, 0.2, 0.1, 0.1], [0.8, 0.3, 0.1, 0.1]]))
    assert 0 < (a - near).norm() < 0.5 * (a - far).norm()


def test_one_to_one_is_the_best_of_all_assignments():
    torch.manual_seed(2)
    cost = torch.randn(3, 5, 4)
    real = torch.tensor([[True, True, True, True], [False, True, True, False], [False] * 4])
    rows, queries, targets = one_to_one(cost, real)
    assert rows.tolist().count(2) == 0
    for row, there in ((0, [0, 1, 2, 3]), (1, [1, 2])):
        of = rows == row
        assert sorted(targets[of].tolist()) == there
        assert len(set(queries[of].tolist())) == len(there)
        got = cost[row, queries[of], targets[of]].sum()
        best = min(
            sum(cost[row, q, t] for q, t in zip(some, there, strict=True))
            for some in itertools.permutations(range(5), len(there))
        )
        close(got, best)


def test_more_targets_than_queries_leaves_some_without():
    rows, queries, targets = one_to_one(torch.tensor([[[3.0, 1.0, 2.0]]]), torch.ones(1, 3, dtype=torch.bool))
    assert (rows.tolist(), queries.tolist(), targets.tolist()) == ([0], [0], [1])


def test_cost_that_is_no_number_is_survived():
    rows, *_ = one_to_one(torch.full((1, 2, 2), float("nan")), torch.ones(1, 2, dtype=torch.bool))
    assert len(rows) == 2


def test_of_repetitions_the_surest_stands_for_all():
    middles = torch.tensor([[0.5, 0.52, 0.54, 0.56, 0.9]])
    regions = torch.stack((middles, torch.full_like(middles, 0.1)), -1)
    score, label = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.1]]), torch.tensor([[0, 0, 0, 0, 1]])
    # IoU is 2/3 with the next place, 3/7 with the one after it. Each second place repeats the one before.
    order, new = distinct(score, label, regions, overlap=0.6)
    assert order.tolist() == [[0, 2, 4, 1, 3]]
    assert new.tolist() == [[True, True, True, False, False]]
    assert distinct(score, label, regions, overlap=0.7)[1].all()
    apart = distinct(score, torch.tensor([[0, 1, 0, 1, 1]]), regions, overlap=0.6)
    assert apart[1].all()  # what repeats is of another class


def test_distinct_is_the_greedy_rule():
    torch.manual_seed(9)
    regions = torch.cat((torch.rand(4, 30, 1), torch.rand(4, 30, 1) * 0.3 + 0.1), -1)
    score, label = torch.rand(4, 30), torch.randint(0, 2, (4, 30))
    order, new = distinct(score, label, regions, overlap=0.3)
    iou = overlaps(regions[:, :, None], regions[:, None])[0]
    for row in range(4):
        kept: list[int] = []
        for place in score[row].argsort(descending=True).tolist():
            if all(iou[row, place, other] <= 0.3 or label[row, place] != label[row, other] for other in kept):
                kept.append(place)
        assert order[row][new[row]].tolist() == kept
        assert 1 < len(kept) < 30


@pytest.fixture
def places():
    """Ten places along a line, all saying the region of 0.2 around themselves."""
    centers = (torch.arange(10)[:, None] + 0.5) / 10
    return centers, torch.cat((centers, torch.full_like(centers, 0.2)), -1)[None]


def test_places_answer_for_what_they_are_inside_of(places):
    centers, regions = places
    targets = torch.tensor([[[0.25, 0.3], [0.75, 0.01], [0.0, 0.0]]])
    real = torch.tensor([[True, True, False]])
    chosen, quality = aligned(torch.full((1, 10, 3), 0.5), regions, centers, targets, real)
    # Inside [0.1, 0.4] are the middles 0.15, 0.25, 0.35; of the tiny one only the nearest place answers.
    assert chosen.tolist() == [[-1, 0, 0, 0, -1, -1, -1, 1, -1, -1]]
    best = overlaps(regions[0, 2], targets[0, 0])[0]
    close(quality[0, 2], best)
    assert quality[0, 1] < quality[0, 2]
    assert (quality[chosen < 0] == 0).all()


def test_a_place_that_two_want_answers_for_the_one_it_overlaps_more(places):
    centers, regions = places
    targets = torch.tensor([[[0.3, 0.4], [0.35, 0.2]]])
    chosen, _ = aligned(torch.full((1, 10, 2), 0.5), regions, centers, targets, torch.ones(1, 2, dtype=torch.bool))
    assert chosen[0, 3] == 1
    assert chosen[0, 1] == 0


def test_no_more_places_than_asked_for(places):
    centers, regions = places
    targets = torch.tensor([[[0.5, 1.0]]])
    sure = torch.linspace(0.1, 0.9, 10).view(1, 10, 1)
    chosen, _ = aligned(sure, regions, centers, targets, torch.ones(1, 1, dtype=torch.bool), most=3)
    assert (chosen >= 0).sum() == 3
