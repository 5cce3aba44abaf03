"""Interface of readers: what is read becomes a sequence of vectors.

    items = reads(source)        (batch, item, dim)

Source: lectures, E.11 (encoder-predictor-decoder view).
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from regard.attention.masks import Padded


class Reader(nn.Module, ABC):
    """Base class of readers, the first part of a model (regard.models.model)."""

    dim: int | None = None
    """Size of the items, which must be the width of the core; None: not checked when a model is
    made."""

    @abstractmethod
    def forward(self, source: Any) -> Padded:
        """Return the items of each row: (batch, item, dim)."""
