"""Set prediction head (DETR): queries that read the source predict a class and a region each.

    q, y_0  = learned queries and references, or those of proposals
    h_l     = core.decode_set(q, items)_l            self-attention, and attention to the items

    p_qc    = sigmoid(W h_q + b)_c                   "no object": no class is likely
    r_q     = sigmoid(logit(reference_q) + MLP(h_q)) region: center and size
    pairs   = Hungarian matching by  2 class + 5 |r - r*|_1 - 2 GIoU
    loss    = sum over queries and classes of varifocal(p, IoU of the pair)
              + sum over pairs of 5 |r - r*|_1 + 2 (1 - GIoU)

at every decoder block; block l refines the regions of block l - 1. The target score of a matched
class is the IoU of its region. References are learned (carion2020, liu2022) or come from proposals
(two-stage): every item of the memory predicts the element around it, with one-to-many assignment.
Duplicate proposals are suppressed, and a query corrects the prediction of its proposal:
p_qc = sigmoid(logit p_proposal + W h_q + b).

Source: lectures, E.2, E.5 (image to set, sequence to set); carion2020; proposals zhu2021, section
4.2, with class-wise NMS zhang2023; varifocal zhang2021.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded, Placed
from regard.compat.torch import run_pre_hooks
from regard.layers.linear import Linear
from regard.models.cores.core import Core
from regard.models.readers.reader import Shape
from regard.models.writers.matching import (
    class_wise_nms,
    hungarian_matching,
    task_aligned_assignment,
)
from regard.models.writers.regions import RegionEmbedding, overlaps, refine_regions
from regard.models.writers.writer import Writer, check_target
from regard.ops.constants import constant, tensor_of
from regard.ops.copies import copy_to, cpu_copy
from regard.ops.token_loss import TokenLoss

_COST_CLASS, _COST_DISTANCE, _COST_GIOU = 2.0, 5.0, 2.0
_NEGATIVE, _FOCUS = 0.75, 2.0
_RARE = -4.6  # the logit of 0.01: initially no class is likely (lin2017, section 3.3)
_SIDE = 0.1


class SetPredictions(NamedTuple):
    """Predictions of queries or proposals."""

    logits: Float[Tensor, "rows queries classes"]
    regions: Float[Tensor, "rows queries sides"]

    def order(self) -> Int[Tensor, "rows queries"]:
        """Return the queries by decreasing score, the order of `best`."""
        return self.logits.sigmoid().amax(-1).sort(dim=1, descending=True, stable=True).indices

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return score and index of the likeliest class of each query, and its region, sorted."""
        (score, label), order = self.logits.sigmoid().max(-1), self.order()
        regions = self.regions.gather(1, order[..., None].expand_as(self.regions))
        return score.gather(1, order), label.gather(1, order), regions


class SetHidden(NamedTuple):
    """Predictions of the queries and proposals, from which the loss and the set are computed."""

    predictions: list[SetPredictions]
    proposed: SetPredictions | None
    """Proposals of all items; None for learned queries."""
    centers: Tensor | None = None
    """Positions of the items of the proposals: (items, axes), or (rows, items, axes)."""


class SetWriter(Writer):
    """Set prediction head for `num_queries` queries and regions of `axes` axes.

    Targets have `labels` (rows, elements), -1 for padding; and `regions` (rows, elements, sides).

    blocks:        number of decoder blocks (`Core.set_outputs`).
    centers:       positions of the encoded items in the source, (item, axis) in [0, 1], if queries
                   start from proposals, such as `ImageReader.centers`; "items" if the reader gives
                   each row centers of its own (`Placed`), such as PointReader; None for learned
                   queries.
    memory_dim:    size of the encoded items; `dim` if not given.
    nms_threshold: IoU above which proposals of the same class are suppressed (NMS).
    margin:        distance of each axis by which a center may lie outside a region whose proposal
                   it becomes, for centers on the surface of what is detected (PointReader); 0 if
                   not given.
    """

    part = "set"

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        axes: int,
        num_queries: int,
        blocks: int,
        centers: Float[Tensor, "items axes"] | Literal["items"] | None = None,
        memory_dim: int | None = None,
        nms_threshold: float = 0.5,
        margin: Sequence[float] | None = None,
    ):
        super().__init__()
        if centers is None and (memory_dim, nms_threshold, margin) != (None, 0.5, None):
            options = "`memory_dim`, `nms_threshold` and `margin`"
            raise ValueError(f"{options} must be left out without `centers`, for learned queries")
        self.dim, self.set_outputs = dim, blocks
        self.num_queries, self.num_classes = num_queries, num_classes
        self.nms_threshold, self.axes = nms_threshold, axes
        self.region_embedding = RegionEmbedding(axes, dim)
        self.class_heads = nn.ModuleList(
            _class_head(dim, num_classes, is_change=centers is not None) for _ in range(blocks)
        )
        self.region_heads = nn.ModuleList(_region_head(dim, axes) for _ in range(blocks))
        self.proposes = centers is not None
        self.queries_kind = "queries of the best proposals" if self.proposes else "learned queries"
        self.margin = (0.0,) * axes if margin is None else tuple(margin)
        self.centers: tuple[tuple[float, ...], ...] | None = None
        if isinstance(centers, Tensor):
            self.centers = tuple(map(tuple, centers.double().tolist()))
        if centers is None:
            self.queries = nn.Parameter(torch.randn(num_queries, dim) * dim**-0.5)
            points = torch.rand(num_queries, axes) * 0.9 + 0.05
            references = torch.cat((points, torch.full_like(points, 0.2)), -1)
            self.references = nn.Parameter(torch.logit(references))
        else:
            memory_dim = memory_dim or dim
            self.proposal_norm = nn.LayerNorm(memory_dim)
            self.proposal_class_head = _class_head(memory_dim, num_classes)
            self.proposal_region_head = _region_head(memory_dim, axes)
            self.query = Linear(memory_dim, dim)
            self.class_embedding = Linear(num_classes, dim)

    def label_axes(self) -> dict[str, int]:
        heads = ("class_heads.", "proposal_class_head.")
        axes = {name: 0 for name, _ in self.named_parameters() if name.startswith(heads)}
        if self.proposes:
            axes["class_embedding.weight"] = 1
        return axes

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> SetHidden:
        """Return predictions of each block, and proposals. Raises: TypeError without centers."""
        run_pre_hooks(self, encoded)
        centers, proposed = None, None
        if self.proposes:
            centers = self._centers(encoded)
            proposed = self.propose(encoded, centers)
        queries, start = self.select_queries(encoded.items, proposed)
        hidden = core.decode_set(queries, encoded)
        predictions, (logits, regions) = [], start
        for h, classes, changes in zip(hidden, self.class_heads, self.region_heads, strict=True):
            regions = refine_regions(regions, widen(changes(h)))
            change = widen(classes(h))
            logits = logits + change if self.proposes else change
            predictions.append(SetPredictions(logits, regions))
            logits, regions = self._detach(predictions[-1])
        return SetHidden(predictions, proposed, centers)

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        queries = ("batch", self.num_queries)
        return (*queries, self.dim or "model"), (*queries, f"{self.num_classes} + {2 * self.axes}")

    def answer(self, hidden: SetHidden) -> SetPredictions:
        return hidden.predictions[-1]

    def count(self, target: Any) -> int:
        return int((cpu_copy(target.labels) >= 0).sum()) + len(target.labels)

    def propose(
        self, encoded: Padded, centers: Float[Tensor, "*rows items axes"]
    ) -> SetPredictions:
        items, mask = encoded.items, encoded.mask
        normed = self.proposal_norm(items)
        references = torch.cat((centers, torch.full_like(centers, _SIDE)), -1)
        logits = widen(self.proposal_class_head(normed))
        if mask is not None:
            padding = ~mask.tensor(1, items.shape[1], device=items.device).squeeze(1)
            logits = logits.masked_fill(padding[..., None], -100.0)
        references = references.expand(items.shape[0], -1, -1)
        change = widen(self.proposal_region_head(normed))
        return SetPredictions(logits, refine_regions(references, change))

    def select_queries(
        self, items: Tensor, proposed: SetPredictions | None
    ) -> tuple[Tensor, SetPredictions]:
        """Return the initial queries and predictions: learned, or of the best proposals."""
        if proposed is None:
            references = torch.sigmoid(self.references).expand(items.shape[0], -1, -1)
            logits = references.new_zeros(*references.shape[:2], self.num_classes)
            queries = self.queries + self.region_embedding(references)
            return queries, SetPredictions(logits, references)
        logits, regions = self._detach(proposed)  # the proposals have a loss of their own
        score, label = logits.max(-1)
        order, keep = class_wise_nms(score, label, regions, overlap=self.nms_threshold)
        index = order[:, : self.num_queries, None]
        logits, regions, items = (
            part.gather(1, index.expand(-1, -1, part.shape[-1]))
            for part in (logits, regions, self.proposal_norm(items))
        )
        logits = torch.where(keep[:, : self.num_queries, None], logits, logits.clamp(max=_RARE))
        queries = self.query(items) + self.region_embedding(regions)
        queries = queries + self.class_embedding(logits.sigmoid().to(items.dtype))
        return queries, SetPredictions(logits, regions)

    def _centers(self, encoded: Padded) -> Tensor:
        items = encoded.items
        if self.centers is not None:
            dtype = torch.promote_types(items.dtype, torch.float32)
            return constant(tensor_of, self.centers, device=items.device, dtype=dtype)
        if not isinstance(encoded, Placed):
            kind = type(encoded).__name__
            raise TypeError(f'`encoded` must be Placed with centers="items", got {kind}')
        return encoded.centers

    def _detach(self, predictions: SetPredictions) -> tuple[Tensor, Tensor]:
        """Return logits and regions, detached in training: each block has its own loss (zhu2021).

        In evaluation the whole graph is kept, so that input gradients are exact.
        """
        logits, regions = predictions
        return (logits.detach(), regions.detach()) if self.training else (logits, regions)

    def loss(self, hidden: SetHidden, target: Any) -> TokenLoss:
        rows, elements = hidden.predictions[0].logits.shape[0], target.labels.shape[1]
        check_target(self, target.labels, (rows, elements))
        check_target(self, target.regions, (rows, elements, 2 * self.axes))
        costs = torch.stack([_cost(predictions, target) for predictions in hidden.predictions])
        proposed, centers = hidden.proposed, hidden.centers
        assigned = quality = costs[:0]
        if proposed is not None and centers is not None:
            probability, is_real = _target_probability(proposed, target), target.labels >= 0
            margin = constant(tensor_of, self.margin, device=centers.device, dtype=centers.dtype)
            assigned, quality = task_aligned_assignment(
                probability, proposed.regions, centers, target.regions, is_real, margin=margin
            )
        # Only here the loss waits for the device.
        numbers = torch.cat((costs.float().flatten(), assigned.float().flatten())).cpu()
        parts = numbers.split((costs.numel(), assigned.numel()))
        costs, assigned = parts[0].view(costs.shape), parts[1].view(assigned.shape).long()
        is_real, losses = cpu_copy(target.labels) >= 0, []
        for predictions, cost in zip(hidden.predictions, costs, strict=True):
            losses.append(self.matched_loss(predictions, target, hungarian_matching(cost, is_real)))
        total = sum(losses[1:], losses[0])
        if proposed is not None:
            total = total + self.proposal_loss(proposed, target, assigned.long(), quality)
        return TokenLoss(total, losses[-1].detach())

    def matched_loss(
        self, predictions: SetPredictions, target: Any, pairs: Int[Tensor, "3 pairs"]
    ) -> Float[Tensor, ""]:
        """Return the loss summed over the rows, with one query per target (Hungarian matching)."""
        rows, queries, elements = copy_to(pairs, predictions.logits.device)
        target_scores = torch.zeros_like(predictions.logits)
        regions, own = predictions.regions[rows, queries], target.regions[rows, elements]
        iou, giou = overlaps(regions, own)
        target_scores[rows, queries, target.labels[rows, elements]] = iou.detach().clamp(min=0.01)
        distance = (regions - own).abs().sum(-1)
        class_loss = _varifocal(predictions.logits, target_scores)
        return class_loss + _COST_DISTANCE * distance.sum() + _COST_GIOU * (1 - giou).sum()

    def proposal_loss(
        self, predictions: SetPredictions, target: Any, assigned: Tensor, quality: Tensor
    ) -> Float[Tensor, ""]:
        """Return the loss of the proposals, several per target, summed over the rows."""
        pairs = (*(assigned >= 0).nonzero(as_tuple=True), assigned[assigned >= 0])
        row, position, element = copy_to(torch.stack(pairs), predictions.logits.device)
        weight = quality[row, position].clamp(min=0.01)
        target_scores = torch.zeros_like(predictions.logits)
        target_scores[row, position, target.labels[row, element]] = weight
        regions, own = predictions.regions[row, position], target.regions[row, element]
        _, giou = overlaps(regions, own)
        error = _COST_DISTANCE * (regions - own).abs().sum(-1) + _COST_GIOU * (1 - giou)
        return _varifocal(predictions.logits, target_scores) + (weight * error).sum()


def _target_probability(predictions: SetPredictions, target: Any) -> Tensor:
    labels = target.labels.clamp(min=0)[:, None].expand(-1, predictions.logits.shape[1], -1)
    return predictions.logits.sigmoid().gather(2, labels)


@torch.no_grad()
def _cost(predictions: SetPredictions, target: Any) -> Float[Tensor, "rows queries elements"]:
    probability = _target_probability(predictions, target)
    # Focal cost of a positive minus that of a negative (zhu2021).
    positive = 0.25 * (1 - probability) ** 2 * -(probability + 1e-8).log()
    negative = 0.75 * probability**2 * -(1 - probability + 1e-8).log()
    _, giou = overlaps(predictions.regions[:, :, None], target.regions[:, None])
    distance = (predictions.regions[:, :, None] - target.regions[:, None]).abs().sum(-1)
    return _COST_CLASS * (positive - negative) + _COST_DISTANCE * distance - _COST_GIOU * giou


def _varifocal(logits: Tensor, target_scores: Tensor) -> Float[Tensor, ""]:
    """Return the cross-entropy of soft targets, weighted by the target or the error."""
    with torch.no_grad():
        weight = torch.where(
            target_scores > 0, target_scores, _NEGATIVE * logits.sigmoid() ** _FOCUS
        )
    return nn.functional.binary_cross_entropy_with_logits(
        logits, target_scores, weight=weight, reduction="sum"
    )


def _class_head(dim: int, num_classes: int, *, is_change: bool = False) -> Linear:
    head = Linear(dim, num_classes)
    nn.init.constant_(head.bias, 0.0 if is_change else _RARE)
    if is_change:
        nn.init.zeros_(head.weight)
    return head


def _region_head(dim: int, axes: int) -> nn.Sequential:
    first, last = Linear(dim, dim), Linear(dim, 2 * axes)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(first, nn.GELU(), last)
