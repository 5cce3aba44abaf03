"""Tagger (token classification): the encoder of a core, and a prediction for each item.

    items = core.encode(reads(source))        one vector per item
    loss  = writes.loss(items, tags)          summed over the tagged items

Source: lectures, E (sequence to sequence of the same length).
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import BatchLoss
from regard.models.writers.tags import TagWriter


@runtime_checkable
class TaggingBatch(Protocol):
    """Training batch of a tagger: sources and the tags of their items."""

    @property
    def source(self) -> Padded | Tensor:
        """Input of the reader, such as token ids."""
        ...

    @property
    def target(self) -> Int[Tensor, "batch time"]:
        """Tag of each item, or NONE (regard.models.writers.tags)."""
        ...


class Tagger(nn.Module):
    """Tagger: reads + core + writes, item by item."""

    def __init__(self, reads: nn.Module, core: Core, writes: TagWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def items(self, source: Padded | Tensor) -> Padded:
        """Return the encoded items."""
        return self.core.encode(self.reads(source))

    def forward(self, source: Padded | Tensor) -> Float[Tensor, "batch time tags"]:
        """Return the probabilities of the tags of every item."""
        return self.writes(self.items(source))

    def loss(self, batch: TaggingBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its tagged items."""
        total, nll = self.writes.loss(self.items(batch.source), batch.target)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: TaggingBatch) -> int:
        """Return the number of tagged items of a batch."""
        return self.writes.count(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()
