"""A detector: what is read becomes items, and queries find the elements of a set among them: boxes, events.

    items   = core.encode(reads(source))
    q, r_0  = queries and where they start: learned, or what the surest items propose
    h_l     = core.answer(q, items)_l          the queries read one another and the items; they have no order
    found_l = writes.answers(h, r_0)_l         a class and a region for each query, after every block

    loss    = sum_l matched(found_l) + proposals' own

Source: lectures, E (image to set, sequence to set); carion2020.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import Loss
from regard.models.writes.sets import Elements, Found, SetWriter


@runtime_checkable
class Scenes(Protocol):
    """What a detector learns from: sources and the elements that are in them."""

    @property
    def source(self) -> Padded | Tensor:
        """What is read: images, or sound."""
        ...

    @property
    def target(self) -> Elements:
        """What is in each."""
        ...


class Detector(nn.Module):
    """reads + core + writes; `reads.centers` (places, axes) says where the items are if they propose."""

    def __init__(self, reads: nn.Module, core: Core, writes: SetWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def forward(self, source: Padded | Tensor) -> Found:
        """What the queries say after the last block."""
        return self._found(source)[0][-1]

    def proposals(self, source: Padded | Tensor) -> Found:
        """What the places say themselves. Raises ValueError if the queries are learned."""
        proposed = self._found(source)[1]
        if proposed is None:
            raise ValueError("there are no proposals: the queries of this detector are learned")
        return proposed

    def loss(self, batch: Scenes) -> Loss:
        """Summed over the rows; what is reported is that of the last block."""
        found, proposed = self._found(batch.source)
        losses = [self.writes.loss(one, batch.target) for one in found]
        total = sum(losses[1:], losses[0])
        if proposed is not None:
            total = total + self.writes.proposal_loss(proposed, self.reads.get_buffer("centers"), batch.target)
        return Loss(total, losses[-1].detach(), self.count(batch))

    def count(self, batch: Scenes) -> int:
        """Elements, and one for each row: an empty one has something to learn as well."""
        return int(batch.target.real.sum()) + len(batch.target.labels)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()

    def _found(self, source: Padded | Tensor) -> tuple[list[Found], Found | None]:
        encoded = self.core.encode(self.reads(source))
        proposed = None
        if self.writes.proposes:
            proposed = self.writes.propose(encoded.items, self.reads.get_buffer("centers"), _hidden(encoded))
        queries, start = self.writes.asked(encoded.items, proposed)
        return self.writes.answers(self.core.answer(queries, encoded), start), proposed


def _hidden(encoded: Padded) -> Tensor | None:
    return None if encoded.mask is None else ~encoded.mask.tensor(1, encoded.items.shape[1]).squeeze(1)
