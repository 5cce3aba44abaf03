"""A classifier: what is read becomes items, a core lets them read one another, a learned query reads them all.

    items  = core.encode(reads(source))        one vector an item
    vector = pool(items)                       one vector a row: attention decides which items count
    loss   = writes.loss(vector, target)

What is written of the vector is its writer's: a class, any number of labels, numbers.

Source: lectures, E (sequence to vector, image to vector).
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.pool import Pool
from regard.models.cores.core import Core
from regard.models.model import Loss
from regard.models.writes.vector import VectorWriter


@runtime_checkable
class Labeled(Protocol):
    """What a classifier learns from: a batch of sources, and what is right for each."""

    @property
    def source(self) -> Padded | Tensor:
        """What is read: ids of tokens, or images."""
        ...

    @property
    def target(self) -> Tensor:
        """The class of each row, its labels or its numbers, as the writer takes them: (batch, ...)."""
        ...


class Classifier(nn.Module):
    """reads + core + pool + writes."""

    def __init__(self, reads: nn.Module, core: Core, pool: Pool, writes: VectorWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.pool = pool
        self.writes = writes

    def vector(self, source: Padded | Tensor) -> Float[Tensor, "batch dim"]:
        """What was read, as one vector a row."""
        return self.pool(self.core.encode(self.reads(source)))

    def forward(self, source: Padded | Tensor) -> Float[Tensor, "batch ..."]:
        """The answer of each row: probabilities of the classes or labels, or numbers."""
        return self.writes(self.vector(source))

    def loss(self, batch: Labeled) -> Loss:
        """Loss of a batch, summed over its rows."""
        total, nll = self.writes.loss(self.vector(batch.source), batch.target)
        return Loss(total, nll, self.count(batch))

    def count(self, batch: Labeled) -> int:
        """Rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()
