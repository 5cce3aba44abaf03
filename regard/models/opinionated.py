"""A classifier that begins with what counting knows, and learns the rest.

    scores = W h + b + n * sum over pieces i of a_i sum over kinds k of s_k r_ik      a = softmax(q . W_k x_i / sqrt(d))

r_ik: what counting says of piece i for each class, by words, by pairs ... (regard.data.opinions); x_i: the n items of
the core; h: what the pooling query reads of them. At first q = 0, W = 0 and b = 0, so that a_i = 1 / n: every opinion
counts alike, and they are naive Bayes. Learning decides which to listen to, and h has only to say what counts do not.

Source: wang2012, section 2 (features that are log-count ratios); lectures, A (one query reads a memory).
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.layers.linear import Linear
from regard.layers.pool import Pool
from regard.layers.read import Read
from regard.models.classifier import Classifier, Labeled
from regard.models.cores.core import Core
from regard.models.model import Loss
from regard.models.writes.classes import ClassWriter
from regard.models.writes.vector import VectorWriter


@runtime_checkable
class WithOpinions(Protocol):
    """Texts, and what counting says of each of their pieces."""

    @property
    def text(self) -> Padded:
        """Ids of pieces."""
        ...

    @property
    def opinions(self) -> Float[Tensor, "batch time kinds classes"]:
        """Noughts where there is padding."""
        ...


class Sum(nn.Module):
    """Opinions (batch, time, kinds, classes) of items (batch, time, dim) to one a row: (batch, classes).

    Scales begin at a quarter: words of a text say much the same, so that naive Bayes is far too sure.
    """

    def __init__(self, dim: int, kinds: int, *, kernel: str = "auto"):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.key = Linear(dim, dim, bias=False)
        self.scale = nn.Parameter(torch.full((kinds,), 0.25))
        self.read = Read(kernel=kernel)

    def forward(
        self, items: Padded, opinions: Float[Tensor, "batch time kinds classes"]
    ) -> Float[Tensor, "batch classes"]:
        """The sum of a row's opinions, those that matter more counting more."""
        weighed = (self.scale[:, None] * opinions.to(items.items.dtype)).sum(2)
        memory = Memory(self.key(items.items), weighed, items.mask)
        mean = self.read(self.query.expand(len(opinions), 1, -1), memory).squeeze(1)
        return items.lengths[:, None] * mean


class Opinionated(Classifier):
    """A classifier of texts that come with opinions (WithOpinions)."""

    writes: ClassWriter

    def __init__(self, reads: nn.Module, core: Core, pool: Pool, writes: VectorWriter, *, kinds: int):
        if not isinstance(writes, ClassWriter):
            raise TypeError(f"opinions are of classes, but what is written is {type(writes).__name__}")
        super().__init__(reads, core, pool, writes)
        self.sum = Sum(core.memory_dim, kinds)
        nn.init.zeros_(writes.output.weight)  # what nobody has learned yet must not speak against the counts
        nn.init.zeros_(writes.output.bias)

    def forward(self, source: WithOpinions) -> Float[Tensor, "batch classes"]:
        """The probability of every class."""
        return self.writes(*self.told(source))

    def told(self, source: WithOpinions) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch classes"]]:
        """What was read, as one vector a row, and the sum of the opinions."""
        items = self.core.encode(self.reads(source.text))
        return self.pool(items), self.sum(items, source.opinions)

    def loss(self, batch: Labeled) -> Loss:
        """Loss of a batch, summed over its rows."""
        assert isinstance(batch.source, WithOpinions)
        vector, opinion = self.told(batch.source)
        total, nll = self.writes.loss(vector, batch.target, opinion)
        return Loss(total, nll, self.count(batch))
