"""Naive-Bayes classifier: attention over naive-Bayes log-count ratios, added to the scores of a neural classifier.

    scores = W h + b + n sum_i a_i sum_k s_k r_ik        a = softmax_i(q . W_k x_i / sqrt(d))

r_ik: log-count ratios of subword i for each class, by words, by bigrams ... (regard.data.text.log_count_ratios); x_i:
the n items of the core; h: the pooled vector. Initially q = 0, W = 0 and b = 0, so that a_i = 1 / n and the scores are
those of naive Bayes. Training learns the weights a_i of the ratios, and through h what the counts do not contain.

Source: wang2012, section 2 (features that are log-count ratios); lectures, A (one query reads a memory).
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.layers.linear import Linear
from regard.layers.pool import AttentionPooling
from regard.layers.read import Read
from regard.models.classifier import ClassificationBatch, Classifier
from regard.models.cores.core import Core
from regard.models.model import BatchLoss
from regard.models.writers.classes import ClassWriter
from regard.models.writers.vector import VectorWriter


@runtime_checkable
class RatioTexts(Protocol):
    """Texts with the log-count ratios of their subwords."""

    @property
    def text(self) -> Padded:
        """Ids of subwords."""
        ...

    @property
    def ratios(self) -> Float[Tensor, "batch time kinds classes"]:
        """Log-count ratios; zeros at padding."""
        ...


class NaiveBayesScores(nn.Module):
    """Attention-weighted sum of log-count ratios (batch, time, kinds, classes), giving scores (batch, classes).

    The scales s are initialized to 1/4: the words of a text are correlated, so that naive Bayes is overconfident.
    """

    def __init__(self, dim: int, kinds: int, *, kernel: str = "auto"):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.key = Linear(dim, dim, bias=False)
        self.scale = nn.Parameter(torch.full((kinds,), 0.25))
        self.read = Read(kernel=kernel)

    def forward(
        self, items: Padded, ratios: Float[Tensor, "batch time kinds classes"]
    ) -> Float[Tensor, "batch classes"]:
        """Return the weighted sum of the ratios of each row; queries read `items`."""
        scaled = (self.scale[:, None] * ratios.to(items.items.dtype)).sum(2)
        memory = Memory(self.key(items.items), scaled, items.mask)
        mean = self.read(self.query.expand(len(ratios), 1, -1), memory).squeeze(1)
        return items.lengths[:, None] * mean


class NaiveBayesClassifier(Classifier):
    """Classifier of texts with log-count ratios (RatioTexts)."""

    writes: ClassWriter

    def __init__(self, reads: nn.Module, core: Core, pool: AttentionPooling, writes: VectorWriter, *, kinds: int):
        if not isinstance(writes, ClassWriter):
            raise TypeError(f"writes must be a ClassWriter, since ratios are by class, got {type(writes).__name__}")
        super().__init__(reads, core, pool, writes)
        self.ratio_scores = NaiveBayesScores(core.memory_dim, kinds)
        nn.init.zeros_(writes.output.weight)  # initially the scores are those of naive Bayes alone
        nn.init.zeros_(writes.output.bias)

    def forward(self, source: RatioTexts) -> Float[Tensor, "batch classes"]:
        """Return the probabilities of the classes."""
        return self.writes(*self.pool_and_sum(source))

    def pool_and_sum(self, source: RatioTexts) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch classes"]]:
        """Return the pooled vector of each row and its naive-Bayes scores."""
        items = self.core.encode(self.reads(source.text))
        return self.pool(items), self.ratio_scores(items, source.ratios)

    def loss(self, batch: ClassificationBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its rows."""
        assert isinstance(batch.source, RatioTexts)
        vector, scores = self.pool_and_sum(batch.source)
        total, nll = self.writes.loss(vector, batch.target, scores)
        return BatchLoss(total, nll, self.count(batch))
