"""A tagger: what is read becomes items, a core lets them read one another, each is answered for itself.

    items = core.encode(reads(source))        one vector an item
    loss  = writes.loss(items, tags)          summed over the items that have a tag

Source: lectures, E (sequence to sequence of the same length).
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import Loss
from regard.models.writes.tags import TagWriter


@runtime_checkable
class Tagged(Protocol):
    """What a tagger learns from: a batch of sources and the tags of their items."""

    @property
    def source(self) -> Padded | Tensor:
        """What is read."""
        ...

    @property
    def target(self) -> Int[Tensor, "batch time"]:
        """The tag of each item, or NONE (regard.models.writes.tags)."""
        ...


class Tagger(nn.Module):
    """reads + core + writes, item by item."""

    def __init__(self, reads: nn.Module, core: Core, writes: TagWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def items(self, source: Padded | Tensor) -> Padded:
        """What was read, each item having read the others."""
        return self.core.encode(self.reads(source))

    def forward(self, source: Padded | Tensor) -> Float[Tensor, "batch time tags"]:
        """Probabilities of the tags of every item."""
        return self.writes(self.items(source))

    def loss(self, batch: Tagged) -> Loss:
        """Loss of a batch, summed over its tagged items."""
        total, nll = self.writes.loss(self.items(batch.source), batch.target)
        return Loss(total, nll, self.count(batch))

    def count(self, batch: Tagged) -> int:
        """Tagged items of a batch."""
        return self.writes.count(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()
