"""Regions by hand: overlaps in 1 and 2 axes, refinement in bounds, matching by brute force."""

import itertools
import math

import pytest
import torch

from regard.models.writers.matching import (
    class_wise_nms,
    hungarian_matching,
    task_aligned_assignment,
)
from regard.models.writers.regions import RegionEmbedding, corners, overlaps, refine_regions
from tests.helpers import close


def test_overlaps_by_hand():
    # Intervals [0, 4] and [2, 6]: intersection 2, union 6, hull 6.
    iou, giou = overlaps(torch.tensor([2.0, 4.0]), torch.tensor([4.0, 4.0]))
    close(iou, torch.tensor(2 / 6))
    close(giou, torch.tensor(2 / 6))
    # Squares [0, 2] x [0, 2] and [1, 3] x [1, 3]: intersection 1, union 7, hull 9.
    iou, giou = overlaps(torch.tensor([1.0, 1, 2, 2]), torch.tensor([2.0, 2, 2, 2]))
    close(iou, torch.tensor(1 / 7))
    close(giou, torch.tensor(1 / 7 - 2 / 9))
    # Disjoint: IoU 0, and GIoU decreases with the distance.
    near, far = (overlaps(torch.tensor([0.0, 1.0]), torch.tensor([c, 1.0]))[1] for c in (2.0, 9.0))
    close(near, torch.tensor(-1 / 3))
    assert far < near


def test_corners_and_refined_regions():
    first, last = corners(torch.tensor([0.5, 0.2, 0.4, 0.2]))
    close(first, torch.tensor([0.3, 0.1]))
    close(last, torch.tensor([0.7, 0.3]))
    regions = torch.rand(5, 4)
    close(refine_regions(regions, torch.zeros(5, 4)), regions.clamp(1e-4, 1 - 1e-4))
    assert refine_regions(regions, torch.full((5, 4), 50.0)).max() <= 1
    assert refine_regions(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0])).isfinite().all()


def test_regions_far_apart_and_near_have_different_embeddings():
    torch.manual_seed(1)
    embed = RegionEmbedding(2, 16)
    a, near, far = embed(
        torch.tensor([[0.2, 0.2, 0.1, 0.1], [0.201, 0.2, 0.1, 0.1], [0.8, 0.3, 0.1, 0.1]])
    )
    assert 0 < (a - near).norm() < 0.5 * (a - far).norm()


def test_hungarian_matching_is_the_best_of_all_assignments():
    torch.manual_seed(2)
    cost = torch.randn(3, 5, 4)
    real = torch.tensor([[True, True, True, True], [False, True, True, False], [False] * 4])
    rows, queries, targets = hungarian_matching(cost, real)
    assert rows.tolist().count(2) == 0
    for row, expected in ((0, [0, 1, 2, 3]), (1, [1, 2])):
        in_row = rows == row
        assert sorted(targets[in_row].tolist()) == expected
        assert len(set(queries[in_row].tolist())) == len(expected)
        total_cost = cost[row, queries[in_row], targets[in_row]].sum()
        best = min(
            sum(cost[row, q, t] for q, t in zip(permutation, expected, strict=True))
            for permutation in itertools.permutations(range(5), len(expected))
        )
        close(total_cost, best)


def test_more_targets_than_queries_leaves_some_unmatched():
    rows, queries, targets = hungarian_matching(
        torch.tensor([[[3.0, 1.0, 2.0]]]), torch.ones(1, 3, dtype=torch.bool)
    )
    assert (rows.tolist(), queries.tolist(), targets.tolist()) == ([0], [0], [1])


def test_nan_costs_are_chosen_last():
    cost = torch.tensor([[[math.nan, 2.0], [1.0, math.nan]], [[math.nan, math.nan]] * 2])
    rows, queries, targets = hungarian_matching(cost, torch.ones(2, 2, dtype=torch.bool))
    assert rows.tolist() == [0, 0, 1, 1]
    assert list(zip(queries[:2].tolist(), targets[:2].tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert sorted(queries[2:].tolist()) == sorted(targets[2:].tolist()) == [0, 1]


def test_nms_keeps_the_highest_score_of_overlapping_predictions():
    middles = torch.tensor([[0.5, 0.52, 0.54, 0.56, 0.9]])
    regions = torch.stack((middles, torch.full_like(middles, 0.1)), -1)
    score, label = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.1]]), torch.tensor([[0, 0, 0, 0, 1]])
    # IoU is 2/3 with the next proposal, 3/7 with the one after it. Every second proposal duplicates
    # the one before.
    order, new = class_wise_nms(score, label, regions, overlap=0.6)
    assert order.tolist() == [[0, 2, 4, 1, 3]]
    assert new.tolist() == [[True, True, True, False, False]]
    assert class_wise_nms(score, label, regions, overlap=0.7)[1].all()
    other_classes = class_wise_nms(score, torch.tensor([[0, 1, 0, 1, 1]]), regions, overlap=0.6)
    assert other_classes[1].all()  # the overlapping ones are of another class


def test_nms_equals_the_greedy_algorithm():
    torch.manual_seed(9)
    regions = torch.cat((torch.rand(4, 30, 1), torch.rand(4, 30, 1) * 0.3 + 0.1), -1)
    score, label = torch.rand(4, 30), torch.randint(0, 2, (4, 30))
    order, new = class_wise_nms(score, label, regions, overlap=0.3)
    iou = overlaps(regions[:, :, None], regions[:, None])[0]
    for row in range(4):
        selected: list[int] = []
        for index in score[row].argsort(descending=True).tolist():
            if all(
                iou[row, index, other] <= 0.3 or label[row, index] != label[row, other]
                for other in selected
            ):
                selected.append(index)
        assert order[row][new[row]].tolist() == selected
        assert 1 < len(selected) < 30


@pytest.fixture
def proposals():
    """Return ten proposals along a line, each with a region of 0.2 around its center."""
    centers = (torch.arange(10)[:, None] + 0.5) / 10
    return centers, torch.cat((centers, torch.full_like(centers, 0.2)), -1)[None]


def test_proposals_are_assigned_to_the_targets_that_contain_them(proposals):
    centers, regions = proposals
    targets = torch.tensor([[[0.25, 0.3], [0.75, 0.01], [0.0, 0.0]]])
    real = torch.tensor([[True, True, False]])
    assigned, quality = task_aligned_assignment(
        torch.full((1, 10, 3), 0.5), regions, centers, targets, real
    )
    # Centers 0.15, 0.25, 0.35 are inside [0.1, 0.4]; the tiny target gets only the nearest
    # proposal.
    assert assigned.tolist() == [[-1, 0, 0, 0, -1, -1, -1, 1, -1, -1]]
    best = overlaps(regions[0, 2], targets[0, 0])[0]
    close(quality[0, 2], best)
    assert quality[0, 1] < quality[0, 2]
    assert (quality[assigned < 0] == 0).all()


def test_margin_assigns_centers_just_outside_a_target():
    centers = torch.tensor([[0.1, 0.5], [0.25, 0.5], [0.5, 0.85], [0.5, 0.95]])
    regions = torch.cat((centers, torch.full_like(centers, 0.5)), -1)[None]
    targets = torch.tensor([[[0.5, 0.5, 0.4, 0.6]]])  # from (0.3, 0.2) to (0.7, 0.8)
    real = torch.ones(1, 1, dtype=torch.bool)
    arguments = (torch.full((1, 4, 1), 0.5), regions, centers, targets, real)
    assert task_aligned_assignment(*arguments)[0].tolist() == [[-1, 0, -1, -1]]  # only the nearest
    for margin, expected in (
        ((0.1, 0.1), [-1, 0, 0, -1]),
        ((0.01, 0.2), [-1, 0, 0, 0]),
        ((0.21, 0.0), [0, 0, -1, -1]),
    ):
        assigned, _ = task_aligned_assignment(*arguments, margin=torch.tensor(margin))
        assert assigned.tolist() == [expected]


def test_proposal_of_two_targets_is_assigned_to_the_one_of_larger_iou(proposals):
    centers, regions = proposals
    targets = torch.tensor([[[0.3, 0.4], [0.35, 0.2]]])
    assigned, _ = task_aligned_assignment(
        torch.full((1, 10, 2), 0.5), regions, centers, targets, torch.ones(1, 2, dtype=torch.bool)
    )
    assert assigned[0, 3] == 1
    assert assigned[0, 1] == 0


def test_at_most_the_given_number_of_proposals_per_target(proposals):
    centers, regions = proposals
    targets = torch.tensor([[[0.5, 1.0]]])
    sure = torch.linspace(0.1, 0.9, 10).view(1, 10, 1)
    assigned, _ = task_aligned_assignment(
        sure, regions, centers, targets, torch.ones(1, 1, dtype=torch.bool), most=3
    )
    assert (assigned >= 0).sum() == 3
