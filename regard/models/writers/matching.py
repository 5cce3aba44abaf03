"""Assignment of predictions to targets (Hungarian matching, task-aligned), and NMS.

    one-to-one     the assignment of minimum total cost: one prediction for every target
    one-to-many    the k predictions inside each target of largest alignment  p^a IoU^b
    NMS            non-maximum suppression: of overlapping predictions of one class, only that of
                   highest score is kept

One-to-one matching is used for the final predictions, one-to-many assignment for the proposals.

Source: carion2020, section 3.1 (one-to-one; kuhn1955); feng2021, section 3.2 (one-to-many);
class-wise NMS before the selection of queries zhang2023.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.models.writers.regions import corners, region_iou

_CLASS_POWER, _IOU_POWER = 0.5, 6.0


@torch.no_grad()
def hungarian_matching(
    cost: Float[Tensor, "rows queries targets"], real: Bool[Tensor, "rows targets"]
) -> Int[Tensor, "3 pairs"]:
    """Return row, prediction and target of each pair of the assignment of minimum total cost.

    real: True for targets, False for padding. All tensors are on the CPU.
    With fewer predictions than targets, some targets are unmatched.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # takes 0.5 s to import

    pairs = []
    for row, (table, is_real) in enumerate(zip(cost.numpy(), real.numpy(), strict=True)):
        present = is_real.nonzero()[0]
        # NaN costs (diverged weights) are reported by the check of the loss in the training loop.
        finite = np.nan_to_num(table[:, present], nan=1e6, posinf=1e6, neginf=-1e6)
        query, target = linear_sum_assignment(finite)
        pairs.append(np.stack((np.full_like(query, row), query, present[target])))
    return torch.from_numpy(np.concatenate(pairs, axis=1))


@torch.no_grad()
def class_wise_nms(
    score: Float[Tensor, "rows proposals"],
    label: Int[Tensor, "rows proposals"],
    regions: Float[Tensor, "rows proposals sides"],
    *,
    overlap: float,
) -> tuple[Int[Tensor, "rows proposals"], Bool[Tensor, "rows proposals"]]:
    """Return the predictions' order by score, suppressed ones last, and which are kept.

    A prediction is suppressed by a kept one of higher score and the same class if their IoU is
    above `overlap`.
    """
    order = score.argsort(dim=1, descending=True, stable=True)
    label, regions = label.gather(1, order), regions.gather(1, order[..., None].expand_as(regions))
    iou = region_iou(regions[:, :, None], regions[:, None])
    same = (iou > overlap) & (label[:, :, None] == label[:, None])
    suppresses = same.tril(-1)  # only predictions of higher score
    keep = torch.ones_like(label, dtype=torch.bool)

    def decide(before: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        return keep.clone(), ~(suppresses & keep[:, None]).any(-1)

    # Each decision depends only on predictions of higher score, so this converges, usually in three
    # or four iterations.
    state = decide(keep, keep)
    if torch.compiler.is_exporting():
        state = torch.while_loop(lambda before, keep: (before != keep).any(), decide, state)
    else:
        while not torch.equal(*state):
            state = decide(*state)
    keep = state[1]
    last = (~keep).long().argsort(dim=1, stable=True)
    return order.gather(1, last), keep.gather(1, last)


@torch.no_grad()
def task_aligned_assignment(
    probability: Float[Tensor, "rows proposals targets"],
    regions: Float[Tensor, "rows proposals sides"],
    centers: Float[Tensor, "*rows proposals axes"],
    targets: Float[Tensor, "rows targets sides"],
    real: Bool[Tensor, "rows targets"],
    *,
    most: int = 9,
    margin: Float[Tensor, " axes"] | float = 0.0,
) -> tuple[Int[Tensor, "rows proposals"], Float[Tensor, "rows proposals"]]:
    """Return the target assigned to each proposal (-1 if none) and its target score, in [0, 1].

    probability: predicted by each proposal for the class of each target.
    centers: (proposals, axes), the position of each proposal; or (rows, proposals, axes).
    margin: distance by which a center may lie outside a target, of each axis.
    Each target is assigned to the `most` best aligned proposals whose center lies inside it, within
    the margin, or is nearest to it. A proposal of several targets keeps the one of largest IoU. The
    target score of the best proposal is its IoU.
    """
    iou = region_iou(regions[:, :, None], targets[:, None])  # (rows, proposals, targets)
    if targets.shape[1] == 0:
        return torch.full(iou.shape[:2], -1, device=iou.device), iou.new_zeros(iou.shape[:2])
    first, last = corners(targets)
    point = centers[..., None, :]
    inside = ((point > first[:, None] - margin) & (point < last[:, None] + margin)).all(-1)
    distance = (point - targets[:, None, :, : centers.shape[-1]]).square().sum(-1)
    nearest = torch.zeros_like(inside).scatter_(1, distance.argmin(1, keepdim=True), True)
    inside = (inside | nearest) & real[:, None]
    alignment = (
        probability.clamp(min=1e-6) ** _CLASS_POWER * iou.clamp(min=1e-6) ** _IOU_POWER
    ) * inside
    count = min(most, alignment.shape[1])
    least = alignment.topk(count, dim=1).values[:, -1:]
    assigned = inside & (alignment >= least) & (alignment > 0)
    best = torch.where(assigned, iou, -1.0).max(-1)
    index = torch.where(best.values >= 0, best.indices, -1)
    assigned = assigned & (index[..., None] == torch.arange(targets.shape[1], device=iou.device))
    largest_alignment = torch.where(assigned, alignment, 0.0).amax(1, keepdim=True).clamp(min=1e-12)
    largest_iou = torch.where(assigned, iou, 0.0).amax(1, keepdim=True)
    quality = torch.where(assigned, alignment / largest_alignment * largest_iou, 0.0).amax(-1)
    return index, quality
