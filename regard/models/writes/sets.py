"""Writes a set: each query says of which class its element is, if there is one, and where.

    p_qc    = sigmoid(W h_q + b)_c                   "no object" is that no class is likely
    r_q     = sigmoid(logit(reference_q) + MLP(h_q)) a region: center and size
    pairs   = Hungarian matching by  2 class + 5 |r - r*|_1 - 2 GIoU
    loss    = sum over queries and classes of varifocal(p, IoU of the pair)
              + sum over pairs of 5 |r - r*|_1 + 2 (1 - GIoU)

at every decoder block; block l moves the regions of block l - 1. A pair's class is taught to be as sure as its region
overlaps, so that the surest of several answers is the best placed one. References are learned (carion2020, liu2022) or
proposed by the places of the memory themselves, each of which learns to see the elements around it: many lessons an
element, without which a few hundred images are too few. Places that say the same are one query, and a query changes
what its place said: p_qc = sigmoid(logit p_place + W h_q + b), so that a fresh decoder says what the places say.

Source: lectures, E (image to set, sequence to set); carion2020; proposals zhu2021, section 4.2, and distinct
ones zhang2023; varifocal zhang2021.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.features import widen
from regard.layers.linear import Linear
from regard.models.regions import RegionEmbedding, moved, overlaps
from regard.models.writes.matching import aligned, distinct, one_to_one

_COST_CLASS, _COST_DISTANCE, _COST_GIOU = 2.0, 5.0, 2.0
_NEGATIVE, _FOCUS = 0.75, 2.0
_RARE = -4.6  # the logit of 0.01: at first nothing is likely (lin2017, section 3.3)
_SIDE = 0.1


@runtime_checkable
class Elements(Protocol):
    """The elements of each row, in no order."""

    @property
    def labels(self) -> Int[Tensor, "rows elements"]:
        """Class of each; -1 behind the last."""
        ...

    @property
    def regions(self) -> Float[Tensor, "rows elements sides"]:
        """Where each is."""
        ...

    @property
    def real(self) -> Bool[Tensor, "rows elements"]:
        """Which there are."""
        ...


class Found(NamedTuple):
    """What queries say."""

    logits: Float[Tensor, "rows queries classes"]
    regions: Float[Tensor, "rows queries sides"]

    def order(self) -> Int[Tensor, "rows queries"]:
        """The queries, the surest first, as `best` has them."""
        return self.logits.sigmoid().amax(-1).sort(dim=1, descending=True, stable=True).indices

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """Probability and class of the likeliest class of each query, and its region, the surest first."""
        (score, label), order = self.logits.sigmoid().max(-1), self.order()
        regions = self.regions.gather(1, order[..., None].expand_as(self.regions))
        return score.gather(1, order), label.gather(1, order), regions


class SetWriter(nn.Module):
    """num_queries queries of a decoder of so many blocks, about regions of so many axes.

    proposing_dim: size of the memory's items, if these propose what queries start from; None for learned regions.
    overlap:       places that propose the same class and whose IoU is above it are one query.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        axes: int,
        num_queries: int,
        blocks: int,
        proposing_dim: int | None = None,
        overlap: float = 0.5,
    ):
        super().__init__()
        self.num_queries, self.num_classes, self.overlap = num_queries, num_classes, overlap
        self.where = RegionEmbedding(axes, dim)
        self.classes = nn.ModuleList(
            _class_head(dim, num_classes, is_change=proposing_dim is not None) for _ in range(blocks)
        )
        self.changes = nn.ModuleList(_region_head(dim, axes) for _ in range(blocks))
        self.proposes = proposing_dim is not None
        if proposing_dim is None:
            self.queries = nn.Parameter(torch.randn(num_queries, dim) * dim**-0.5)
            centers = torch.rand(num_queries, axes) * 0.9 + 0.05
            self.references = nn.Parameter(torch.logit(torch.cat((centers, torch.full_like(centers, 0.2)), -1)))
        else:
            self.place_norm = nn.LayerNorm(proposing_dim)
            self.place_classes = _class_head(proposing_dim, num_classes)
            self.place_changes = _region_head(proposing_dim, axes)
            self.query = Linear(proposing_dim, dim)
            self.sure = Linear(num_classes, dim)

    def propose(
        self,
        items: Float[Tensor, "rows places dim"],
        centers: Float[Tensor, "places axes"],
        hidden: Tensor | None = None,
    ) -> Found:
        """What every place of the memory says itself; `hidden` marks the places that do not exist."""
        normed = self.place_norm(items)
        references = torch.cat((centers, torch.full_like(centers, _SIDE)), -1)
        logits = widen(self.place_classes(normed))
        if hidden is not None:
            logits = logits.masked_fill(hidden[..., None], -100.0)
        regions = moved(references.expand(len(items), -1, -1), widen(self.place_changes(normed)))
        return Found(logits, regions)

    def asked(self, items: Tensor, proposed: Found | None) -> tuple[Tensor, Found]:
        """The queries (rows, queries, dim) and what they start from: learned, or what the surest places say."""
        if proposed is None:
            references = torch.sigmoid(self.references).expand(len(items), -1, -1)
            nothing = references.new_zeros(*references.shape[:2], self.num_classes)
            return self.queries + self.where(references), Found(nothing, references)
        logits, regions = self._taught_apart(proposed)  # the decoder's lessons do not reach what is proposed
        best = logits.max(-1)
        order, new = distinct(best.values, best.indices, regions, overlap=self.overlap)
        index = order[:, : self.num_queries, None]
        logits, regions, chosen = (
            part.gather(1, index.expand(-1, -1, part.shape[-1])) for part in (logits, regions, self.place_norm(items))
        )
        logits = torch.where(new[:, : self.num_queries, None], logits, logits.clamp(max=_RARE))
        return self.query(chosen) + self.where(regions) + self.sure(logits.sigmoid()), Found(logits, regions)

    def answers(self, hidden: list[Tensor], start: Found) -> list[Found]:
        """What the queries say after each block."""
        found, (logits, regions) = [], start
        for h, classes, changes in zip(hidden, self.classes, self.changes, strict=True):
            regions = moved(regions, widen(changes(h)))
            said = widen(classes(h))
            logits = logits + said if self.proposes else said
            found.append(Found(logits, regions))
            logits, regions = self._taught_apart(found[-1])
        return found

    def _taught_apart(self, found: Found) -> tuple[Tensor, Tensor]:
        """What was found, as what comes next starts from it: in training each has lessons of its own.

        A model in use has its whole graph, so that gradients of its answers are their slopes.
        """
        if not self.training:
            return found.logits, found.regions
        return found.logits.detach(), found.regions.detach()

    def loss(self, found: Found, target: Elements) -> Float[Tensor, ""]:
        """Summed over the rows, each target answered for by one query."""
        rows, queries, elements = one_to_one(_cost(found, target), target.real)
        wanted = torch.zeros_like(found.logits)
        regions, own = found.regions[rows, queries], target.regions[rows, elements]
        iou, giou = overlaps(regions, own)
        wanted[rows, queries, target.labels[rows, elements]] = iou.detach().clamp(min=0.01)
        distance = (regions - own).abs().sum(-1)
        return _varifocal(found.logits, wanted) + _COST_DISTANCE * distance.sum() + _COST_GIOU * (1 - giou).sum()

    def proposal_loss(self, found: Found, centers: Tensor, target: Elements) -> Float[Tensor, ""]:
        """Summed over the rows, each target answered for by several places."""
        if target.labels.shape[1] == 0:
            return _varifocal(found.logits, torch.zeros_like(found.logits))
        labels = target.labels.clamp(min=0)
        own_class = found.logits.sigmoid().gather(2, labels[:, None].expand(-1, found.logits.shape[1], -1))
        chosen, quality = aligned(own_class, found.regions, centers, target.regions, target.real)
        row, place = (chosen >= 0).nonzero(as_tuple=True)
        element, weight = chosen[row, place], quality[row, place]
        wanted = torch.zeros_like(found.logits)
        wanted[row, place, target.labels[row, element]] = weight.clamp(min=0.01)
        regions, own = found.regions[row, place], target.regions[row, element]
        _, giou = overlaps(regions, own)
        away = _COST_DISTANCE * (regions - own).abs().sum(-1) + _COST_GIOU * (1 - giou)
        return _varifocal(found.logits, wanted) + (weight.clamp(min=0.01) * away).sum()


@torch.no_grad()
def _cost(found: Found, target: Elements) -> Float[Tensor, "rows queries elements"]:
    probability = found.logits.sigmoid().gather(
        2, target.labels.clamp(min=0)[:, None].expand(-1, found.logits.shape[1], -1)
    )
    # Focal cost of saying the class, less that of not saying it. (zhu2021)
    say = 0.25 * (1 - probability) ** 2 * -(probability + 1e-8).log()
    deny = 0.75 * probability**2 * -(1 - probability + 1e-8).log()
    _, giou = overlaps(found.regions[:, :, None], target.regions[:, None])
    distance = (found.regions[:, :, None] - target.regions[:, None]).abs().sum(-1)
    return _COST_CLASS * (say - deny) + _COST_DISTANCE * distance - _COST_GIOU * giou


def _varifocal(logits: Tensor, wanted: Tensor) -> Float[Tensor, ""]:
    """Cross-entropy with soft targets: those above zero count as they are large, others as they are mistaken."""
    with torch.no_grad():
        weight = torch.where(wanted > 0, wanted, _NEGATIVE * logits.sigmoid() ** _FOCUS)
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted, weight=weight, reduction="sum")


def _class_head(dim: int, num_classes: int, *, is_change: bool = False) -> Linear:
    head = Linear(dim, num_classes)
    nn.init.constant_(head.bias, 0.0 if is_change else _RARE)
    if is_change:
        nn.init.zeros_(head.weight)
    return head


def _region_head(dim: int, axes: int) -> nn.Sequential:
    head = nn.Sequential(Linear(dim, dim), nn.GELU(), Linear(dim, 2 * axes))
    last = head[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return head
