"""Classifier and regressor: the encoder of a core, attention pooling by a learned query, and an output head.

    items  = core.encode(reads(source))        one vector per item
    vector = pool(items)                       one vector per row: weighted sum of the items
    loss   = writes.loss(vector, target)

The writer determines the prediction: a class, several labels, or numbers.

Source: lectures, E (sequence to vector, image to vector).
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.pool import AttentionPooling
from regard.models.cores.core import Core
from regard.models.model import BatchLoss
from regard.models.writers.vector import VectorWriter


@runtime_checkable
class ClassificationBatch(Protocol):
    """Training batch of a classifier: sources and their targets."""

    @property
    def source(self) -> Padded | Tensor:
        """Input of the reader: token ids or images."""
        ...

    @property
    def target(self) -> Tensor:
        """Class, labels or numbers of each row, as the writer expects them: (batch, ...)."""
        ...


class Classifier(nn.Module):
    """Classifier: reads + core + pool + writes."""

    def __init__(self, reads: nn.Module, core: Core, pool: AttentionPooling, writes: VectorWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.pool = pool
        self.writes = writes

    def vector(self, source: Padded | Tensor) -> Float[Tensor, "batch dim"]:
        """Return the pooled vector of each row."""
        return self.pool(self.core.encode(self.reads(source)))

    def forward(self, source: Padded | Tensor) -> Float[Tensor, "batch ..."]:
        """Return the prediction of each row: probabilities of classes or labels, or numbers."""
        return self.writes(self.vector(source))

    def loss(self, batch: ClassificationBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its rows."""
        total, nll = self.writes.loss(self.vector(batch.source), batch.target)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: ClassificationBatch) -> int:
        """Return the number of rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()
