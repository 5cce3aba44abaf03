"""Detector (DETR): queries that read the encoded source predict a set of elements, such as boxes or events.

    items  = core.encode(reads(source))
    q, y_0 = writes.select_queries(...)                   queries and their references: learned, or from proposals
    h_l    = core.decode_set(q, items)_l                  self-attention of the queries, and attention to the items
    y_l    = writes.predictions_per_block(h, y_0)_l       a class and a region for each query, after every block

    loss   = sum_l matched loss of y_l + loss of the proposals

Source: lectures, E (image to set, sequence to set); carion2020.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import BatchLoss
from regard.models.writers.sets import SetPredictions, SetTargets, SetWriter


@runtime_checkable
class DetectionBatch(Protocol):
    """Training batch of a detector: sources and the elements in them."""

    @property
    def source(self) -> Padded | Tensor:
        """Input of the reader: images or sounds."""
        ...

    @property
    def target(self) -> SetTargets:
        """Elements of each source."""
        ...


class Detector(nn.Module):
    """Detector: reads + core + writes. Proposals need `reads.centers` (items, axes), the positions of the items."""

    def __init__(self, reads: nn.Module, core: Core, writes: SetWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def forward(self, source: Padded | Tensor) -> SetPredictions:
        """Return the predictions of the last decoder block."""
        return self._predict(source)[0][-1]

    def proposals(self, source: Padded | Tensor) -> SetPredictions:
        """Return the proposals of all items. Raises ValueError if the queries are learned."""
        proposed = self._predict(source)[1]
        if proposed is None:
            raise ValueError("there are no proposals: the queries of this detector are learned")
        return proposed

    def loss(self, batch: DetectionBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its rows; `nll` is that of the last block."""
        predictions, proposed = self._predict(batch.source)
        losses = [self.writes.loss(of_block, batch.target) for of_block in predictions]
        total = sum(losses[1:], losses[0])
        if proposed is not None:
            total = total + self.writes.proposal_loss(proposed, self.reads.get_buffer("centers"), batch.target)
        return BatchLoss(total, losses[-1].detach(), self.count(batch))

    def count(self, batch: DetectionBatch) -> int:
        """Return the number of elements plus the number of rows, since rows without elements have a loss as well."""
        return int(batch.target.real.sum()) + len(batch.target.labels)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()

    def _predict(self, source: Padded | Tensor) -> tuple[list[SetPredictions], SetPredictions | None]:
        encoded = self.core.encode(self.reads(source))
        proposed = None
        if self.writes.proposes:
            proposed = self.writes.propose(encoded.items, self.reads.get_buffer("centers"), _hidden(encoded))
        queries, start = self.writes.select_queries(encoded.items, proposed)
        return self.writes.predictions_per_block(self.core.decode_set(queries, encoded), start), proposed


def _hidden(encoded: Padded) -> Tensor | None:
    return None if encoded.mask is None else ~encoded.mask.tensor(1, encoded.items.shape[1]).squeeze(1)
