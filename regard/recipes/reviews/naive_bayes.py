"""Naive-Bayes classifier: attention over log-count ratios, added to a neural classifier's scores.

    scores = W h + b + n sum_i a_i sum_k s_k r_ik        a = softmax_i(q . W_k x_i / sqrt(d))

r_ik: log-count ratios of subword i for each class, by words, by bigrams ...
(regard.recipes.reviews.log_count_ratios);
x_i: the n items of the core; h: the pooled vector. Initially q = 0, W = 0 and b = 0, so that a_i =
1 / n and the scores are those of naive Bayes. Training learns the weights a_i of the ratios, and
through h what the counts do not contain.

Source: wang2012, section 2 (features that are log-count ratios); lectures, A.2 (one query reads a
        memory).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.attention.axes import widen
from regard.attention.kernels import reference
from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.layers.linear import Linear
from regard.layers.read import Read, Role
from regard.models.cores.core import Core
from regard.models.readers.tokens import TokenReader
from regard.models.writers.classes import ClassWriter
from regard.models.writers.vector import Contributions
from regard.ops.copies import copy_to


class RatioTexts(NamedTuple):
    """Texts with the log-count ratios of their subwords."""

    text: Padded
    """Ids of subwords."""
    ratios: Float[Tensor, "batch time kinds classes"]
    """Log-count ratios; zeros at padding."""

    def to(self, device: torch.device | str) -> "RatioTexts":
        return RatioTexts(self.text.to(device), copy_to(self.ratios, device))


def attach_ratios(source: Padded, ratios: Sequence[NDArray[np.float32]]) -> RatioTexts:
    """Pad the log-count ratios of the subwords of each text, and combine them with the texts."""
    tensors = [torch.from_numpy(rows) for rows in ratios]
    return RatioTexts(source, pad_sequence(tensors, batch_first=True))


class NaiveBayesScores(nn.Module):
    """Scores (batch, classes): weighted sum of log-count ratios (batch, time, kinds, classes).

    The scales s are initialized to 1/4: the words of a text are correlated, so that naive Bayes is
    overconfident.
    """

    def __init__(self, dim: int, kinds: int, *, kernel: str = "auto"):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.key = Linear(dim, dim, bias=False)
        self.scale = nn.Parameter(torch.full((kinds,), 0.25))
        self.read = Read(kernel=kernel, role=Role("other", queries="queries", keys="source"))

    def forward(
        self, items: Padded, ratios: Float[Tensor, "batch time kinds classes"]
    ) -> Float[Tensor, "batch classes"]:
        scaled = (self.scale[:, None] * ratios.to(items.items.dtype)).sum(2)
        memory = Memory(self.key(items.items), scaled, items.mask)
        mean = self.read(self.query.expand(ratios.shape[0], 1, -1), memory).squeeze(1)
        return items.lengths[:, None] * mean

    def decompose(
        self, items: Padded, ratios: Float[Tensor, "batch time kinds classes"]
    ) -> Float[Tensor, "batch classes kinds time"]:
        """Return the terms n a_i s_k r_ik of the scores."""
        memory = Memory(self.key(items.items), items.items, items.mask)
        inputs = self.read.prepare_inputs(self.query.expand(len(ratios), 1, -1), memory)
        counts = items.lengths[:, None, None] * reference.weights(inputs)  # (batch, 1, time)
        scaled = self.scale[:, None] * ratios.to(items.items.dtype)
        return counts[:, None] * scaled.permute(0, 3, 2, 1)


class RatioTextReader(TokenReader):
    """Reader of the subwords of texts with log-count ratios (RatioTexts)."""

    def forward(self, source: RatioTexts) -> Padded:  # type: ignore[override]
        return super().forward(source.text)


class NaiveBayesWriter(ClassWriter):
    """Classification head for texts with log-count ratios (RatioTexts).

    kinds:   names of the kinds of features.
    options: of `ClassWriter`.
    """

    def __init__(self, dim: int, num_classes: int, *, kinds: Sequence[str], **options: Any):
        super().__init__(dim, num_classes, **options)
        self.kinds = tuple(kinds)
        self.ratio_scores = NaiveBayesScores(dim, len(kinds))
        nn.init.zeros_(self.output.weight)  # initially the scores are those of naive Bayes alone
        nn.init.zeros_(self.output.bias)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the pooled vector and the naive-Bayes scores of each row."""
        vector = super().read(core, encoded)
        return vector, self.ratio_scores(encoded, source.ratios)

    def scores(self, hidden: tuple[Tensor, Tensor]) -> Float[Tensor, "batch classes"]:  # type: ignore[override]
        vector, ratio_scores = hidden
        return widen(super().scores(vector)) + ratio_scores

    def divide_scores(self, temperature: float) -> None:
        super().divide_scores(temperature)
        self.ratio_scores.scale.data /= temperature

    def terms(
        self, encoded: Padded, weights: Float[Tensor, "combination size"], source: Any
    ) -> Contributions:
        vector = super().terms(encoded, weights, source)
        by_class = self.ratio_scores.decompose(encoded, source.ratios)
        counted = torch.einsum("cs,bskt->bckt", weights, by_class)
        names = tuple(f"counts: {kind}" for kind in self.kinds)
        terms = torch.cat((counted, vector.terms), 2)
        return Contributions((*names, *vector.parts), terms, vector.bias)
