"""Which prediction answers for which target: one for each (Hungarian matching), or several for each.

    one to one    the assignment of least cost over all; every target has one prediction, the others have none
    several       each target takes the k predictions inside it of largest alignment  p^a IoU^b

One to one leaves no duplicates to remove, and so decides what is written in the end; several teach faster, since every
target is shown to many places at once.

    distinct      of predictions of one class that overlap much, the surest alone stands for all

Source: carion2020, section 3.1 (one to one; kuhn1955); feng2021, section 3.2 (several);
distinct zhang2023.
"""

import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from regard.models.regions import corners, overlaps

_CLASS_POWER, _IOU_POWER = 0.5, 6.0


@torch.no_grad()
def one_to_one(
    cost: Float[Tensor, "rows queries targets"], real: Bool[Tensor, "rows targets"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Row, prediction and target of each pair: of least total cost in every row.

    real: which targets there are; the rest is padding.
    With fewer predictions than targets, some targets stay without one.
    """
    rows, queries, targets = [], [], []
    counts = real.sum(1).tolist()
    where = real.long().argsort(dim=1, descending=True, stable=True).cpu()
    for row, table in enumerate(cost.float().cpu()):
        there = where[row, : counts[row]]
        # A cost that is no number (weights that diverge) is for the loop's check of the loss to tell.
        found = linear_sum_assignment(torch.nan_to_num(table[:, there], nan=1e6, posinf=1e6, neginf=-1e6).numpy())
        query, target = (torch.from_numpy(part) for part in found)
        rows.append(torch.full_like(query, row))
        queries.append(query)
        targets.append(there[target])
    device = cost.device
    return torch.cat(rows).to(device), torch.cat(queries).to(device), torch.cat(targets).to(device)


@torch.no_grad()
def distinct(
    score: Float[Tensor, "rows places"],
    label: Int[Tensor, "rows places"],
    regions: Float[Tensor, "rows places sides"],
    *,
    overlap: float,
) -> tuple[Int[Tensor, "rows places"], Bool[Tensor, "rows places"]]:
    """The places from the surest to the least sure, those that repeat another one behind all others; which are new.

    A place repeats a surer new one if both say the same class and their IoU is above `overlap`.
    """
    order = score.argsort(dim=1, descending=True, stable=True)
    label, regions = label.gather(1, order), regions.gather(1, order[..., None].expand_as(regions))
    iou, _ = overlaps(regions[:, :, None], regions[:, None])
    same = (iou > overlap) & (label[:, :, None] == label[:, None])
    repeats = same.tril(-1)  # each place and the surer ones
    new = torch.ones_like(label, dtype=torch.bool)
    # Whether a place is new depends on the surer ones alone, so this settles, usually after three or four rounds.
    for _ in range(label.shape[1]):
        before, new = new, ~(repeats & new[:, None]).any(-1)
        if torch.equal(before, new):
            break
    last = (~new).long().argsort(dim=1, stable=True)
    return order.gather(1, last), new.gather(1, last)


@torch.no_grad()
def aligned(
    probability: Float[Tensor, "rows places targets"],
    regions: Float[Tensor, "rows places sides"],
    centers: Float[Tensor, "places axes"],
    targets: Float[Tensor, "rows targets sides"],
    real: Bool[Tensor, "rows targets"],
    *,
    most: int = 9,
) -> tuple[Int[Tensor, "rows places"], Float[Tensor, "rows places"]]:
    """For each place the target that it answers for, -1 if none, and how well it should say so, within [0, 1].

    probability: of each target's own class, as each place sees it.
    A target takes up to `most` places whose center lies inside it, or is the nearest. A place that several want answers
    for the one that it overlaps most. The best place of a target should be as sure as it overlaps.
    """
    iou, _ = overlaps(regions[:, :, None], targets[:, None])  # (rows, places, targets)
    first, last = corners(targets)
    point = centers[None, :, None]
    inside = ((point > first[:, None]) & (point < last[:, None])).all(-1)
    away = (point - targets[:, None, :, : centers.shape[-1]]).square().sum(-1)
    nearest = torch.zeros_like(inside).scatter_(1, away.argmin(1, keepdim=True), True)
    inside = (inside | nearest) & real[:, None]
    fit = (probability.clamp(min=1e-6) ** _CLASS_POWER * iou.clamp(min=1e-6) ** _IOU_POWER) * inside
    count = min(most, fit.shape[1])
    least = fit.topk(count, dim=1).values[:, -1:]
    taken = inside & (fit >= least) & (fit > 0)
    best = torch.where(taken, iou, -1.0).max(-1)
    chosen = torch.where(best.values >= 0, best.indices, -1)
    taken = taken & (chosen[..., None] == torch.arange(targets.shape[1], device=iou.device))
    largest_fit = torch.where(taken, fit, 0.0).amax(1, keepdim=True).clamp(min=1e-12)
    largest_iou = torch.where(taken, iou, 0.0).amax(1, keepdim=True)
    quality = torch.where(taken, fit / largest_fit * largest_iou, 0.0).amax(-1)
    return chosen, quality
